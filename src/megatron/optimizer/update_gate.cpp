#include "megatron/optimizer/update_gate.h"

namespace megatron {

Tensor update_gate(RankContext& ctx, const Tensor& loss, const Tensor& norm, double limit) {
  auto kernels = ctx.kernel_context();
  // loss · 0 is 0 where the loss is finite and NaN elsewhere; a comparison with NaN is false.
  Tensor sum = ctx.full({1}, DType::F64, 0), most = ctx.full({1}, DType::F64, limit);
  Tensor open = ctx.empty({1}, DType::Bool);
  ctx.kernels->binary(kernels, {Binary::Mul, loss, sum, sum});
  ctx.kernels->binary(kernels, {Binary::Add, norm, sum, sum});
  ctx.kernels->compare(kernels, {Comparison::LessEqual, sum, most, open});
  return open;
}

}  // namespace megatron
