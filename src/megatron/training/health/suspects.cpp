#include "megatron/training/health/suspects.h"

#include <algorithm>
#include <cmath>

#include "megatron/comm/string_collectives.h"

namespace megatron {
namespace {

// The sum of a tensor's squares: not finite where an element is not.
double square_sum(RankContext& ctx, const Tensor& tensor) {
  if (!tensor || tensor.numel() == 0) return 0;
  constexpr int64_t kAtOnce = int64_t{4} << 20;
  const Tensor flat = tensor.detach().view({tensor.numel()});
  double sum = 0;
  for (int64_t begin = 0; begin < flat.numel(); begin += kAtOnce) {
    const Tensor part = flat.slice(0, begin, std::min(begin + kAtOnce, flat.numel()));
    Tensor wide = ctx.empty(part.shape(), DType::F64, MemoryTag::Workspace);
    ctx.kernels->copy(ctx.kernel_context(), {part, wide});
    for (const double value : ctx.to_vector<double>(wide)) sum += value * value;
  }
  return sum;
}

}  // namespace

std::string find_not_finite(RankContext& ctx, const ProcessGroup& world, RankTrainer& trainer) {
  std::string own;
  const auto look = [&](const char* what, const Tensor& tensor, const ParameterSlice& slice) {
    if (own.empty() && !std::isfinite(square_sum(ctx, tensor)))
      own = fmt::format("rank {}: {} {}", world.rank(), what, slice.parameter->name);
  };
  for (const ParameterSlice& slice : trainer.slices()) look("the weight", slice.value, slice);
  for (const ParameterSlice& slice : trainer.slices()) look("the gradient of", slice.gradient, slice);
  constexpr int kNamed = 4;
  std::string text;
  int found = 0;
  for (const std::string& rank : all_gather_strings(world, own))
    if (!rank.empty() && found++ < kNamed) text += (text.empty() ? "" : "; ") + rank;
  return found > kNamed ? fmt::format("{}; and {} more ranks", text, found - kNamed) : text;
}

std::string find_largest_gradient(RankContext& ctx, const ProcessGroup& world, RankTrainer& trainer) {
  double largest = -1;
  std::string name;
  for (const ParameterSlice& slice : trainer.slices())
    if (const double sum = square_sum(ctx, slice.gradient); sum > largest) {
      largest = sum;
      name = slice.parameter->name;
    }
  std::string text;
  double most = -1;
  int rank = 0;
  for (const std::string& line : all_gather_strings(world, fmt::format("{} {}", largest, name))) {
    const size_t blank = line.find(' ');
    if (const double sum = std::stod(line.substr(0, blank)); sum > most) {
      most = sum;
      text = fmt::format("the largest gradient is that of {} on rank {}", line.substr(blank + 1), rank);
    }
    ++rank;
  }
  return text;
}

void require_finite(RankContext& ctx, const ProcessGroup& world, RankTrainer& trainer, const Config& config,
                    int64_t iteration, const StepReport& step) {
  const auto culprit = [&]() -> std::string {
    const std::string found = find_not_finite(ctx, world, trainer);
    return found.empty() ? "" : fmt::format(" ({})", found);
  };
  if (config.rerun_state_machine.check_for_nan_in_loss && !std::isfinite(step.loss))
    fail(
        "iteration {}: the loss is not finite ({}){}; a lower learning rate may help, "
        "--no-check-for-nan-in-loss-and-grad skips such updates",
        iteration, step.loss, culprit());
  // In fp16 that is an overflow, which a smaller loss scale mends.
  if (config.ddp.check_for_nan_in_grad && !config.precision.fp16 && !std::isfinite(step.grad_norm))
    fail(
        "iteration {}: the gradient is not finite (norm {}, loss {}){}; a lower learning rate or --clip-grad "
        "may help, ddp.check_for_nan_in_grad=false skips such updates",
        iteration, step.grad_norm, step.loss, culprit());
}

}  // namespace megatron
