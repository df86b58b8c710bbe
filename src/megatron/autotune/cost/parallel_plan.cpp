#include "megatron/autotune/cost/parallel_plan.h"

#include <fmt/core.h>

namespace megatron::autotune {

std::string_view precision_name(Precision precision) {
  constexpr std::string_view names[] = {"bf16", "fp16", "fp8", "mxfp8", "nvfp4"};
  return names[static_cast<size_t>(precision)];
}

std::string_view recompute_name(Recompute recompute) {
  constexpr std::string_view names[] = {"none", "core_attn", "moe", "half_gemms", "full"};
  return names[static_cast<size_t>(recompute)];
}

std::string plan_text(const ParallelPlan& plan) {
  std::string text = fmt::format("tp{} pp{} cp{}", plan.tp, plan.pp, plan.cp);
  if (plan.vpp > 1) text += fmt::format(" vp{}", plan.vpp);
  if (plan.ep > 1) text += fmt::format(" ep{}", plan.ep);
  if (plan.etp > 1) text += fmt::format(" etp{}", plan.etp);
  text += fmt::format(" mbs{}", plan.mbs);
  if (plan.shards > 1) text += fmt::format(" fsdp{}", plan.shards);
  if (plan.recompute != Recompute::none) text += fmt::format(" {}", recompute_name(plan.recompute));
  return text;
}

}  // namespace megatron::autotune
