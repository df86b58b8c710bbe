#include "megatron/inference/cache_size.h"

#include <algorithm>

#include "megatron/inference/generate.h"
#include "megatron/models/decode_step.h"
#include "megatron/nn/paged_cache.h"

namespace megatron {
namespace {

int64_t smallest(RankContext& ctx, const ProcessGroup& world, int64_t own) {
  if (world.size() == 1) return own;
  Tensor all = ctx.zeros({world.size()}, DType::I64);
  world.all_gather(ctx.from_vector(std::vector<int64_t>{own}, {1}), all).wait();
  return std::ranges::min(ctx.to_vector<int64_t>(all));
}

int64_t blocks_for(int64_t tokens, int64_t block_size) { return (tokens + block_size - 1) / block_size; }

}  // namespace

CacheSize cache_size(RankContext& ctx, const ProcessGroup& world, Model& model,
                     const EngineOptions& options) {
  const CacheShapes shapes = model.cache_shapes();
  const DType kept = options.fp8_cache ? DType::F8E4M3 : model.dtype();
  const int64_t context = longest_context(model.config());
  CacheSize size;
  size.max_length = options.max_length > 0 ? std::min(options.max_length, context) : context;

  size.depths = std::min(options.speculative_tokens, model.draft_depths());
  const int64_t slot = PagedCache::slot_bytes(shapes, model.dtype());
  int64_t block = PagedCache::block_bytes(shapes, kept, options.block_size);
  for (int64_t depth = 0; depth < size.depths; ++depth)
    block += PagedCache::block_bytes(model.draft_shapes(depth), kept, options.block_size);
  const auto states = static_cast<int64_t>(static_cast<double>(options.cache_bytes) *
                                           options.state_ratio.value_or(0.5));  // bytes at most
  size.max_requests = slot > 0 ? std::min(options.max_requests, states / slot) : options.max_requests;
  size.max_requests = smallest(ctx, world, size.max_requests);
  const int64_t most = size.max_requests * blocks_for(size.max_length, options.block_size);
  const int64_t left =
      options.cache_bytes - (options.state_ratio && slot > 0 ? states : size.max_requests * slot);
  // Padding of captured steps has a block that no request gets.
  const bool captures = options.cuda_graphs && ctx.device.is_cuda() && world.size() == 1 &&
                        size.depths == 0 && !options.record_routing && block > 0 && left / block > 1 &&
                        can_capture_decode(model);
  size.spare = captures ? 1 : 0;
  size.blocks = smallest(ctx, world, block > 0 ? std::min(most, left / block - size.spare) : most);
  if (size.max_requests < 1 || size.blocks < 1)
    throw ConfigError(fmt::format(
        "inference: a cache of {} bytes holds no block of {} tokens ({} bytes, and {} of states a sequence); "
        "give it more",
        options.cache_bytes, options.block_size, block, slot));
  size.max_length = std::min(size.max_length, size.blocks * options.block_size);
  size.slots = slot > 0 ? size.max_requests : 1;
  return size;
}

}  // namespace megatron
