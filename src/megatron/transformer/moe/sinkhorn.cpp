#include "megatron/transformer/moe/sinkhorn.h"

#include <cmath>
#include <limits>

#include "megatron/parallel/expert/row_collectives.h"

namespace megatron {
namespace {

constexpr double kTolerance = 1e-4, kGuard = 1e-8;

}  // namespace

Tensor sinkhorn(RankContext& ctx, const Tensor& logits, const MicrobatchShare& share) {
  auto kernels = ctx.kernel_context();
  Tensor wide = ctx.empty(logits.shape(), DType::F64);
  ctx.kernels->copy(kernels, {logits.detach(), wide});
  Tensor all =
      all_gather_rows(ctx, wide, share.max_rows, share.group, -std::numeric_limits<double>::infinity());
  if (ctx.device.is_meta()) return wide;
  auto experts = static_cast<size_t>(logits.size(1)), rows = static_cast<size_t>(all.size(0));
  std::vector<double> cost = ctx.to_vector<double>(all);
  for (double& value : cost) value = std::exp(value);

  std::vector<double> of_row(rows, 1), of_expert(experts, 1), sums(experts);
  double change = HUGE_VAL;
  auto tokens = static_cast<double>(share.all_tokens()), count = static_cast<double>(experts);
  while (change > kTolerance) {
    for (double& sum : sums) sum = 0;
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (size_t e = 0; e < experts; ++e) sum += of_expert[e] * cost[row * experts + e];
      of_row[row] = 1 / tokens / (sum + kGuard);
      for (size_t e = 0; e < experts; ++e) sums[e] += of_row[row] * cost[row * experts + e];
    }
    change = 0;
    for (size_t e = 0; e < experts; ++e) {
      double next = 1 / count / (sums[e] + kGuard);
      change += std::abs(next - of_expert[e]) / count;
      of_expert[e] = next;
    }
  }
  auto first = static_cast<size_t>(share.group.rank() * share.max_rows);
  std::vector<double> own(static_cast<size_t>(share.rows) * experts);
  for (size_t row = 0; row < static_cast<size_t>(share.rows); ++row)
    for (size_t e = 0; e < experts; ++e)
      own[row * experts + e] = of_expert[e] * cost[(first + row) * experts + e] * of_row[first + row];
  return ctx.from_vector(own, logits.shape());
}

}  // namespace megatron
