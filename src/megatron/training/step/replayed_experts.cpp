#include "megatron/training/step/replayed_experts.h"

#include <algorithm>

#include "megatron/transformer/layer_pattern.h"

namespace megatron {

void check_routed_experts(const Tensor& experts, int64_t tokens, const ModelConfig& model) {
  if (model.num_moe_experts == 0)
    throw ConfigError("routed experts: the model has none; leave --replay-routing out");
  const Shape wanted{tokens, expert_layers(model), model.moe_router_topk};
  if (experts.shape() != wanted)
    throw ConfigError(fmt::format(
        "routed experts: they are {}, not [tokens, layers with experts, --moe-router-topk] = {}; record them "
        "with the same model",
        experts.shape(), wanted));
  const auto* chosen = experts.data<int64_t>();
  for (int64_t i = 0; i < experts.numel(); ++i) {
    if (chosen[i] < -1 || chosen[i] >= model.num_moe_experts)
      throw ConfigError(fmt::format("routed experts: {} is none of the {} experts, nor -1 for a free choice",
                                    chosen[i], model.num_moe_experts));
    const int64_t first = i / model.moe_router_topk * model.moe_router_topk;
    if (chosen[i] >= 0 ? std::find(chosen + first, chosen + i, chosen[i]) != chosen + i || chosen[first] < 0
                       : i > first && chosen[first] >= 0)
      throw ConfigError(fmt::format(
          "routed experts: token {} has an expert twice, or some of its {} experts and not others",
          i / (wanted[1] * wanted[2]), model.moe_router_topk));
  }
}

Tensor replayed_experts(RankContext& ctx, const Batch& batch) {
  const auto found = batch.extra.find(kRoutedExperts);
  if (found == batch.extra.end()) return {};
  const auto* chosen = found->second.data<int64_t>();
  return ctx.from_vector(std::vector<int64_t>(chosen, chosen + found->second.numel()), found->second.shape());
}

}  // namespace megatron
