#include "megatron/transformer/activation_plan.h"

#include <algorithm>

namespace megatron {
namespace {

bool holds(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr struct {
  std::string_view name;
  bool ActivationPlan::*module;
} kModules[] = {{"core_attn", &ActivationPlan::core_attention},
                {"layernorm", &ActivationPlan::layernorm},
                {"mlp", &ActivationPlan::mlp},
                {"mlp_act", &ActivationPlan::mlp_activation},
                {"moe", &ActivationPlan::experts},
                {"moe_act", &ActivationPlan::expert_activation},
                {"shared_experts", &ActivationPlan::shared_experts},
                {"mla_up_proj", &ActivationPlan::latent_up_projection},
                {"gdn_norm_out", &ActivationPlan::delta_norm},
                {"gdp_in_proj", &ActivationPlan::delta_projection},
                {"gdp_qkv", &ActivationPlan::delta_convolution},
                {"mhc", &ActivationPlan::hyper_connections}};

}  // namespace

ActivationPlan ActivationPlan::from(const ExecutionConfig& config) {
  ActivationPlan plan;
  plan.fixed_shapes = config.cuda_graph_impl == GraphImpl::full_iteration;
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
          "them here, as in --recompute-modules layernorm");
    plan.core_attention = modules.empty();
    for (size_t i = 0; i < modules.size(); ++i) {
      const auto known = std::find_if(std::begin(kModules), std::end(kModules),
                                      [&](auto& m) { return m.name == modules[i]; });
      if (known == std::end(kModules)) continue;
      plan.*known->module = true;
      if (i < config.recompute_module_layers.size())
        plan.limits.push_back({known->module, config.recompute_module_layers[i]});
    }
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
        .min_elements = config.min_offloaded_tensor_size,
        .fraction = config.activation_offload_fraction,
        .max_in_flight = static_cast<int>(config.fine_grained_offloading_max_inflight_offloads.value_or(8))};
  }
  return plan;
}

ActivationPlan ActivationPlan::of_layer(int64_t layer) const {
  ActivationPlan plan = *this;
  for (const Limit& limit : limits)
    if (layer >= limit.layers) plan.*limit.module = false;
  return plan;
}

int64_t ActivationPlan::region_at(int64_t layer) const {
  if (uniform_layers > 0) return uniform_layers;
  return layer < block_layers ? 1 : 0;
}

}  // namespace megatron
