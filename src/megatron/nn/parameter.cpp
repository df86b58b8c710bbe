#include "megatron/nn/parameter.h"

#include <cmath>

#include "megatron/base/hash.h"

namespace megatron {
namespace {

// From the numbers drawn to the values that the initialiser wants, in place.
void transform(RankContext& ctx, Initializer::Kind kind, const Tensor& x) {
  auto apply = [&](Unary f) { ctx.kernels->unary(ctx.kernel_context(), {f, x, {}, x}); };
  if (kind == Initializer::Kind::LogUniform) apply(Unary::Log);
  if (kind != Initializer::Kind::StepBias) return;
  apply(Unary::Exp);
  // ln(eᵘ − 1)
  apply(Unary::Exp);
  Tensor one = ctx.full(x.shape(), x.dtype(), 1, MemoryTag::Workspace);
  ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 1, .a = x, .beta = -1, .b = one, .out = x});
  apply(Unary::Log);
}

}  // namespace

void Parameter::allocate(RankContext& ctx, DType dtype) {
  value = ctx.empty(shard.local_shape, keep_fp32 ? accumulation_dtype(dtype) : dtype, MemoryTag::Parameter);
}

bool Parameter::replicated_over_tp() const {
  if (!expert) return shard.is_whole();
  for (int d = 1; d < shard.global_shape.rank(); ++d)
    if (shard.local_shape[d] != shard.global_shape[d]) return false;
  return true;
}

void Parameter::allocate_gradient(RankContext& ctx) {
  if (trainable)
    accumulator.main_grad =
        ctx.zeros(shard.local_shape, accumulation_dtype(value.dtype()), MemoryTag::Gradient);
}

void Parameter::initialize(RankContext& ctx, uint64_t seed) {
  if (initializer.kind == Initializer::Kind::Constant) {
    ctx.kernels->fill(ctx.kernel_context(), {value, initializer.value});
    return;
  }
  // Padding, which belongs to no block, is zero.
  ctx.kernels->fill(ctx.kernel_context(), {value, 0});
  Shape strides = shard.global_shape.row_major_strides();
  using Kind = Initializer::Kind;
  const Kind kind = initializer.kind;
  double low = initializer.value, high = initializer.upper;
  if (kind == Kind::StepBias) low = std::log(low), high = std::log(high);
  if (kind == Kind::Normal) low = 0, high = initializer.value;
  if (kind == Kind::XavierUniform) {
    require(strides.rank() >= 2, "{}: Xavier's initialisation is for matrices", name);
    const auto rows = static_cast<double>(shard.global_shape[-2]),
               columns = static_cast<double>(shard.global_shape[-1]);
    high = std::sqrt(6 / (rows + columns)), low = -high;
  }
  for (const ShardBlock& block : shard.blocks) {
    Tensor piece = ctx.empty(block.extent, value.dtype(), MemoryTag::Workspace);
    Tensor target = value;
    int64_t base = 0;
    for (int d = 0; d < block.extent.rank(); ++d) {
      target = target.slice(d, block.local_offset[d], block.local_offset[d] + block.extent[d]);
      base += block.global_offset[d] * strides[d];
    }
    ctx.kernels->random(ctx.kernel_context(),
                        {.kind = kind == Kind::Normal ? Distribution::Normal : Distribution::Uniform,
                         .out = piece,
                         .a = low,
                         .b = high,
                         .key = {seed, hash_text(name)},
                         .base = base,
                         .global_strides = strides});
    transform(ctx, kind, piece);
    ctx.kernels->copy(ctx.kernel_context(), {piece, target});
  }
}

std::vector<Parameter*> Module::parameters() {
  std::vector<Parameter*> list;
  visit([&](Parameter& parameter) { list.push_back(&parameter); });
  return list;
}

}  // namespace megatron
