#include "megatron/nn/parameter.h"

#include "megatron/base/hash.h"

namespace megatron {

void Parameter::allocate(RankContext& ctx, DType dtype) {
  value = ctx.empty(shard.local_shape, wide ? accumulation_dtype(dtype) : dtype, MemoryTag::Parameter);
}

bool Parameter::replicated_over_tp() const {
  if (!expert) return shard.is_whole();
  for (int d = 1; d < shard.global_shape.rank(); ++d)
    if (shard.local_shape[d] != shard.global_shape[d]) return false;
  return true;
}

void Parameter::allocate_gradient(RankContext& ctx) {
  if (trainable)
    sink.main_grad = ctx.zeros(shard.local_shape, accumulation_dtype(value.dtype()), MemoryTag::Gradient);
}

void Parameter::initialize(RankContext& ctx, uint64_t seed) {
  if (initializer.kind == Initializer::Kind::Constant) {
    ctx.kernels->fill(ctx.kernel_context(), {value, initializer.value});
    return;
  }
  // Padding, which belongs to no block, is zero.
  ctx.kernels->fill(ctx.kernel_context(), {value, 0});
  Shape strides = shard.global_shape.row_major_strides();
  for (const ShardBlock& block : shard.blocks) {
    Tensor piece = ctx.empty(block.extent, value.dtype(), MemoryTag::Workspace);
    Tensor target = value;
    int64_t base = 0;
    for (int d = 0; d < block.extent.rank(); ++d) {
      target = target.slice(d, block.local_offset[d], block.local_offset[d] + block.extent[d]);
      base += block.global_offset[d] * strides[d];
    }
    ctx.kernels->random(ctx.kernel_context(), {.kind = Distribution::Normal,
                                               .out = piece,
                                               .a = 0,
                                               .b = initializer.value,
                                               .key = {seed, hash_text(name)},
                                               .base = base,
                                               .global_strides = strides});
    ctx.kernels->copy(ctx.kernel_context(), {piece, target});
  }
}

std::vector<Parameter*> Module::parameters() {
  std::vector<Parameter*> list;
  visit([&](Parameter& parameter) { list.push_back(&parameter); });
  return list;
}

}  // namespace megatron
