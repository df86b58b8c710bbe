#include "megatron/autotune/cost/parallel_plan.h"

#include <fmt/core.h>

namespace megatron::autotune {

std::string_view precision_name(Precision precision) {
  constexpr std::string_view names[] = {"bf16", "fp16", "fp8", "mxfp8", "nvfp4"};
  return names[static_cast<size_t>(precision)];
}

std::string_view recompute_name(Recompute recompute) {
  constexpr std::string_view names[] = {"none", "core_attn", "moe", "half_gemms", "selective", "full"};
  return names[static_cast<size_t>(recompute)];
}

std::string_view exchange_name(ContextExchange exchange) {
  constexpr std::string_view names[] = {"p2p", "all_gather", "a2a"};
  return names[static_cast<size_t>(exchange)];
}

std::string_view schedule_name(Schedule schedule) {
  constexpr std::string_view names[] = {"auto", "zb-h1", "zb-v"};
  return names[static_cast<size_t>(schedule)];
}

std::vector<std::string_view> module_names(uint8_t modules) {
  std::vector<std::string_view> names;
  for (const NamedModule& known : kRecomputeModules)
    if ((modules & known.module) != 0) names.push_back(known.name);
  return names;
}

std::string plan_text(const ParallelPlan& plan) {
  std::string text = fmt::format("tp{} pp{} cp{}", plan.tp, plan.pp, plan.cp);
  if (plan.cp > 1 && plan.cp_exchange != ContextExchange::ring)
    text += fmt::format(" {}", exchange_name(plan.cp_exchange));
  if (plan.vpp > 1) text += fmt::format(" vp{}", plan.vpp);
  if (plan.schedule != Schedule::one_f_one_b) text += fmt::format(" {}", schedule_name(plan.schedule));
  if (plan.ep > 1) text += fmt::format(" ep{}", plan.ep);
  if (plan.etp > 1) text += fmt::format(" etp{}", plan.etp);
  text += fmt::format(" mbs{}", plan.mbs);
  if (plan.shards > 1) text += fmt::format(" fsdp{}", plan.shards);
  if (plan.shard_grads) text += " zero2";
  if (plan.recompute == Recompute::selective)
    for (const std::string_view name : module_names(plan.modules)) text += fmt::format(" {}", name);
  else if (plan.recompute != Recompute::none)
    text += fmt::format(" {}", recompute_name(plan.recompute));
  if (plan.recompute != Recompute::none && plan.recompute_share < 1)
    text += fmt::format(" {:.0f}%", 100 * plan.recompute_share);
  if (plan.offload_share > 0) text += fmt::format(" offload{:.0f}%", 100 * plan.offload_share);
  if (plan.cuda_graphs) text += " graphs";
  if (plan.unequal()) text += fmt::format(" {}xtp{}", plan.reduced_replicas, plan.tp - plan.tp_spares);
  if (plan.packed > 0) text += fmt::format(" packed{}", plan.seq);
  return text;
}

}  // namespace megatron::autotune
