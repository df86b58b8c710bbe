#include <algorithm>

#include "megatron/autotune/search/search.h"

namespace megatron::autotune {

std::string_view illegal(const ModelShape& model, const Cluster& cluster, const ParallelPlan& plan) {
  const auto divides = [](int64_t part, int64_t whole) { return part > 0 && whole % part == 0; };
  if (plan.tp < 1 || plan.pp < 1 || plan.cp < 1 || plan.ep < 1 || plan.etp < 1 || plan.mbs < 1)
    return "sizes below 1";
  if (!divides(int64_t{plan.tp} * plan.pp * plan.cp, plan.gpus))
    return "tp x pp x cp does not divide the GPUs";
  if (plan.tp_spares >= plan.tp && plan.tp_spares > 0) return "no tensor rank is left of a replica";
  if (plan.tp > cluster.nvlink_domain) return "tp leaves the NVLink domain";
  if (model.heads > 0 && !divides(plan.tp, model.heads)) return "tp does not divide the heads";
  if (model.kv_heads > 0 && !divides(plan.tp, model.kv_heads) && !divides(model.kv_heads, plan.tp))
    return "tp suits the KV heads neither way";
  if (model.ffn > 0 && !divides(plan.tp, model.ffn)) return "tp does not divide ffn";
  if (plan.pp > model.layers) return "more stages than layers";
  if (plan.cp > 1 && !divides(2 * plan.cp, plan.seq)) return "2 x cp does not divide the length";
  if (plan.cp > 1 && plan.cp_exchange == ContextExchange::all_to_all &&
      (!divides(plan.cp, model.heads / plan.tp) ||
       !divides(plan.cp, std::max<int64_t>(1, model.kv_heads / plan.tp))))
    return "a2a: cp does not divide a rank's heads";
  if (plan.tp > 1 && !divides(int64_t{plan.tp} * plan.cp, plan.seq))
    return "tp x cp does not divide the length";
  if (!divides(plan.mbs * plan.dp(), plan.gbs)) return "mbs x dp does not divide the batch";
  if (plan.schedule != Schedule::one_f_one_b && plan.pp == 1) return "a schedule needs stages";
  if (plan.schedule == Schedule::zb_v && 2 * plan.pp > model.layers) return "more chunks than layers";
  if (model.moe()) {
    if (!divides(plan.ep, model.experts)) return "ep does not divide the experts";
    if (!divides(int64_t{plan.ep} * plan.etp, plan.gpus / plan.pp))
      return "ep x etp does not divide tp x cp x dp";
    if (!divides(plan.etp, model.moe_ffn)) return "etp does not divide the experts' ffn";
  } else if (plan.ep > 1) {
    return "the model has no experts";
  }
  return "";
}

std::vector<uint8_t> recompute_sets(const CostInputs& in, const ParallelPlan& plan) {
  const ModelShape& m = in.model;
  const bool dense_mlp = m.mlp_share() > 0;
  struct Module {
    uint8_t bit;
    double seconds_per_byte;
  };
  ParallelPlan base = plan;
  base.recompute = Recompute::none;
  const double kept = kept_activation_bytes(in, base);
  const double seconds = layer_cost(in, base).backward.gpu();
  std::vector<Module> modules;
  base.recompute = Recompute::selective;
  base.recompute_share = 1;
  for (const NamedModule& known : kRecomputeModules) {
    const RecomputeModule module = known.module;
    if ((module == recompute_mlp || module == recompute_mlp_act) && !dense_mlp) continue;
    // In fp8 the activation is kept in one byte as it is.
    if (module == recompute_mlp_act && plan.fp8()) continue;
    if ((module == recompute_moe || module == recompute_moe_act) && !m.moe()) continue;
    if (module == recompute_shared_experts && m.shared_ffn == 0) continue;
    if (module == recompute_mla_up_proj && !m.latent()) continue;
    base.modules = module;
    const double saved = kept - kept_activation_bytes(in, base);
    if (saved < 0.01 * kept) continue;
    modules.push_back({module, (layer_cost(in, base).backward.gpu() - seconds) / saved});
  }
  std::sort(modules.begin(), modules.end(),
            [](const Module& a, const Module& b) { return a.seconds_per_byte < b.seconds_per_byte; });
  std::vector<uint8_t> sets;
  uint8_t set = 0;
  for (const Module& module : modules) {
    set |= module.bit;
    // A whole block makes its activation and shared experts needless.
    uint8_t shown = set;
    if (shown & recompute_mlp) shown &= static_cast<uint8_t>(~recompute_mlp_act);
    if (shown & recompute_moe) shown &= static_cast<uint8_t>(~(recompute_moe_act | recompute_shared_experts));
    if (std::find(sets.begin(), sets.end(), shown) == sets.end()) sets.push_back(shown);
  }
  return sets;
}

}  // namespace megatron::autotune
