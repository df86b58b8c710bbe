#include "megatron/optimizer/muon_matrix.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron {

double muon_scale(MuonScale mode, int64_t rows, int64_t columns) {
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  switch (mode) {
    case MuonScale::spectral:
      return std::sqrt(std::max(m, n));
    case MuonScale::unit_rms_norm:
      return std::sqrt(m / n);
    case MuonScale::shape_scaling:
      return std::sqrt(std::max(1.0, m / n));
  }
  fail("Muon: unknown scale");
}

Tensor matrix_norms(RankContext& ctx, const Tensor& matrices, const ProcessGroup* group) {
  const auto kernels = ctx.kernel_context();
  const int64_t count = matrices.size(0);
  Tensor norms = ctx.zeros({count}, DType::F64);
  for (int64_t i = 0; i < count; ++i) {
    const Tensor one = matrices.select(0, i);
    ctx.kernels->sum_squares(kernels, {{&one, 1}, norms.slice(0, i, i + 1)});
  }
  if (group) group->all_reduce(norms).wait();
  ctx.kernels->unary(kernels, {.kind = Unary::Sqrt, .x = norms, .y = norms});
  return norms;
}

}  // namespace megatron
