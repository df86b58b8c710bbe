#include "megatron/autotune/cost/unequal.h"

#include <algorithm>

namespace megatron::autotune {
namespace {

int64_t shared_units(const ModelShape& model, int ranks) {
  return std::max<int64_t>(1, model.kv_heads >= ranks ? model.kv_heads : std::max<int64_t>(1, model.heads));
}

}  // namespace

double fullest_share(const ModelShape& model, const ParallelPlan& plan) {
  const int ranks = std::max(1, plan.tp - plan.tp_spares);
  const int64_t units = shared_units(model, plan.tp);
  const double heads = static_cast<double>((units + ranks - 1) / ranks) / static_cast<double>(units);
  const double attention = model.attention_params(),
               all = attention + model.mlp_params() + model.expert_params();
  return (heads * attention + (all - attention) / ranks) / all;
}

double reduced_slowdown(const ModelShape& model, const ParallelPlan& plan) {
  const auto h = static_cast<double>(model.hidden);
  const int64_t units = shared_units(model, plan.tp);
  // Multiplications of a token in a layer.
  const double attention = model.attention_params() +
                           model.mean_context(plan.context()) * (model.query_width() + model.value_width());
  const double others =
      model.mlp_share() * model.mlp_params() +
      model.moe_share() * (static_cast<double>(model.topk) * model.expert_params() + model.shared_params()) +
      h * static_cast<double>(model.vocab) / static_cast<double>(model.layers);
  const auto time = [&](int ranks) {
    const double share = static_cast<double>((units + ranks - 1) / ranks) / static_cast<double>(units);
    return attention * share + others / ranks;
  };
  return time(std::max(1, plan.tp - plan.tp_spares)) / time(plan.tp);
}

UnequalBatches unequal_batches(const ParallelPlan& plan, double slowdown) {
  const int64_t all = std::max<int64_t>(1, plan.gbs / plan.mbs);
  const int64_t reduced = std::min<int64_t>(plan.reduced_replicas, plan.dp()), whole = plan.dp() - reduced;
  // Interleaved schedules go through micro-batches in rounds.
  const int64_t round = plan.vpp > 1 ? plan.pp : 1;
  const auto rounds_up = [&](int64_t number, int64_t parts) {
    return (number + parts * round - 1) / (parts * round) * round;
  };
  if (whole == 0) {
    const int64_t each = rounds_up(all, reduced);
    return {0, each, slowdown * static_cast<double>(each)};
  }
  UnequalBatches best{rounds_up(all, whole), 0, 0};
  best.steps = static_cast<double>(best.whole);
  for (int64_t few = round; few <= rounds_up(all, plan.dp()); few += round) {
    const int64_t many =
        std::max<int64_t>(round, rounds_up(std::max<int64_t>(0, all - reduced * few), whole));
    const double steps = std::max(static_cast<double>(many), slowdown * static_cast<double>(few));
    if (steps < best.steps) best = {many, few, steps};
  }
  return best;
}

}  // namespace megatron::autotune
