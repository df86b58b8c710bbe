#include "megatron/nn/paged_cache.h"

#include "megatron/kernels/fp8_pages.h"

namespace megatron {
namespace {

// Rows of e4m3 have their scales behind them, which no element of the tensor is.
Tensor make_pool(RankContext& ctx, int64_t rows, int64_t heads, int64_t dim, DType dtype) {
  if (dtype != DType::F8E4M3) return ctx.zeros({rows, heads, dim}, dtype);
  const Tensor bytes = ctx.zeros({rows, fp8_row_bytes(heads, dim)}, dtype);
  return bytes.slice(1, 0, heads * dim).view({rows, heads, dim});
}

}  // namespace

PagedCache::PagedCache(RankContext& ctx, const CacheShapes& shapes, DType dtype, int64_t blocks,
                       int64_t block_size, int64_t slots)
    : block_size_(block_size) {
  const int64_t rows = blocks * block_size;
  for (const auto& [index, shape] : shapes) {
    Layer& layer = layers_[index];
    if (shape.kv_heads > 0) {
      layer.pages.keys = make_pool(ctx, rows, shape.kv_heads, shape.key_dim, dtype);
      layer.pages.values = shape.value_dim > 0 ? make_pool(ctx, rows, shape.kv_heads, shape.value_dim, dtype)
                                               : layer.pages.keys;
    }
    if (shape.kept > 0) layer.inputs = ctx.zeros({slots, shape.kept, shape.convolved}, dtype);
    if (shape.state.numel() > 0) {
      Shape all = {slots};
      for (int i = 0; i < shape.state.rank(); ++i) all.push_back(shape.state[i]);
      layer.states = ctx.zeros(all, accumulation_dtype(dtype));
    }
  }
}

int64_t PagedCache::block_bytes(const CacheShapes& shapes, DType dtype, int64_t block_size) {
  int64_t bytes = 0;
  for (const auto& [index, shape] : shapes)
    for (const int64_t dim : {shape.key_dim, shape.value_dim})
      if (shape.kv_heads > 0 && dim > 0)
        bytes += dtype == DType::F8E4M3 ? fp8_row_bytes(shape.kv_heads, dim)
                                        : shape.kv_heads * dim * static_cast<int64_t>(size_of(dtype));
  return bytes * block_size;
}

int64_t PagedCache::slot_bytes(const CacheShapes& shapes, DType dtype) {
  int64_t bytes = 0;
  for (const auto& [index, shape] : shapes)
    bytes += shape.kept * shape.convolved * static_cast<int64_t>(size_of(dtype)) +
             shape.state.numel() * static_cast<int64_t>(size_of(accumulation_dtype(dtype)));
  return bytes;
}

const PagedCache::Layer& PagedCache::at(int64_t layer) const {
  const auto found = layers_.find(layer);
  require(found != layers_.end(), "cache: layer {} keeps nothing on this rank", layer);
  return found->second;
}

const PagedCache::Pages& PagedCache::pages(int64_t layer) const { return at(layer).pages; }
const Tensor& PagedCache::inputs(int64_t layer) const { return at(layer).inputs; }
const Tensor& PagedCache::states(int64_t layer) const { return at(layer).states; }

}  // namespace megatron
