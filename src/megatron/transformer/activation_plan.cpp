#include "megatron/transformer/activation_plan.h"

#include <algorithm>

namespace megatron {
namespace {

bool holds(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

ActivationPlan ActivationPlan::from(const ExecutionConfig& config) {
  ActivationPlan plan;
  if (config.recompute_granularity == RecomputeGranularity::full) {
    int64_t layers = std::max<int64_t>(1, config.recompute_num_layers);
    (config.recompute_method == RecomputeMethod::block ? plan.block_layers : plan.uniform_layers) = layers;
    plan.split_inputs = config.distribute_saved_activations;
  }
  if (config.recompute_granularity == RecomputeGranularity::selective) {
    const auto& modules = config.recompute_modules;
    if (holds(modules, "auto"))
      throw ConfigError(
          "model.recompute_modules = [auto]: pretrain, finetune, plan and bench train choose modules; name "
          "them "
          "here, as in --recompute-modules layernorm");
    plan.core_attention = modules.empty() || holds(modules, "core_attn");
    plan.layernorm = holds(modules, "layernorm");
    plan.mlp = holds(modules, "mlp");
    plan.mlp_activation = holds(modules, "mlp_act");
    plan.experts = holds(modules, "moe");
    plan.expert_activation = holds(modules, "moe_act");
    plan.shared_experts = holds(modules, "shared_experts");
    plan.latent_up_projection = holds(modules, "mla_up_proj");
  }
  if (config.cpu_offloading && config.cpu_offloading_activations)
    plan.offloaded_layers = config.cpu_offloading_num_layers;
  if (config.fine_grained_activation_offloading) {
    const auto& modules = config.offload_modules;
    plan.offloaded = {.attention_norm = holds(modules, "attn_norm"),
                      .qkv = holds(modules, "qkv_linear"),
                      .core_attention = holds(modules, "core_attn"),
                      .projection = holds(modules, "attn_proj"),
                      .mlp_norm = holds(modules, "mlp_norm"),
                      .expert_fc1 = holds(modules, "expert_fc1"),
                      .expert_activation = holds(modules, "moe_act")};
    plan.offload_options = {
        .least_elements = config.min_offloaded_tensor_size,
        .fraction = config.activation_offload_fraction,
        .max_in_flight = static_cast<int>(config.fine_grained_offloading_max_inflight_offloads.value_or(8))};
  }
  return plan;
}

int64_t ActivationPlan::region_at(int64_t layer) const {
  if (uniform_layers > 0) return uniform_layers;
  return layer < block_layers ? 1 : 0;
}

}  // namespace megatron
