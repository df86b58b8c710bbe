#include "megatron/transformer/wide_norm.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/weight_tensor.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {

WideNorm::WideNorm(const std::string& name, int64_t size, int64_t units, const ModelConfig& config,
                   const TensorParallel& tp)
    : size_(size),
      epsilon_(config.layernorm_epsilon),
      tp_(tp),
      weight_(name + ".weight", tp.split(name, {size}, 0, units), Initializer::constant(1)) {
  require(config.normalization == Normalization::rms_norm && !config.layernorm_zero_centered_gamma,
          "attention: norms of all heads at once are plain RMSNorms");
  require(tp.key_group.size() == 1,
          "attention: norms of all heads at once need as many KV heads as tensor-parallel ranks; use a "
          "smaller tensor_model_parallel_size");
}

Tensor WideNorm::forward(RankContext& ctx, const Tensor& x) {
  Tensor wide = ops::view(ctx, x, {x.size(0), x.size(1) * x.size(2)});
  if (tp_.size() == 1) {
    wide = ops::norm(ctx, wide, weight_.get(ctx), {}, {.kind = NormKind::Rms, .epsilon = epsilon_});
    return ops::view(ctx, wide, x.shape());
  }
  const DType dtype = accumulation_dtype(x.dtype());
  wide = ops::cast(ctx, wide, dtype);
  Tensor squares = ops::sum(ctx, ops::mul(ctx, wide, wide), 1, true);
  Tensor mean = ops::scale(ctx, sum_tensor_parallel(ctx, squares, tp_), 1.0 / static_cast<double>(size_));
  Tensor inverse = ops::activation(ctx, Unary::Rsqrt, ops::add(ctx, mean, ctx.full({1}, dtype, epsilon_)));
  wide = ops::mul(ctx, ops::mul(ctx, wide, inverse), ops::weight_tensor(ctx, weight_.get(ctx), dtype));
  return ops::view(ctx, ops::cast(ctx, wide, x.dtype()), x.shape());
}

}  // namespace megatron
