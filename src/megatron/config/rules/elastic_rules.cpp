#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

#include "megatron/config/resolve/elastic_widths.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

bool trains_elastically(const ConfigBuilder& builder) {
  return builder.config.elastic.flextron && builder.purpose != Purpose::forward;
}

void budgets_fit(ConfigBuilder& builder) {
  const ElasticConfig& elastic = builder.config.elastic;
  if (!elastic.flextron) return;
  if (!elastic.enable_router)
    builder.reject("elastic.flextron", "nothing would choose the widths", "add --enable-router");
  const std::set<double, std::greater<>> budgets(elastic.budget_list.begin(), elastic.budget_list.end());
  if (budgets.size() < elastic.budget_list.size())
    builder.reject("elastic.budget_list", "it names a budget twice",
                   fmt::format("use {}", fmt::join(budgets, " ")));
  const auto& chances = elastic.budget_probs;
  if (!chances.empty() && chances.size() != elastic.budget_list.size())
    builder.reject("elastic.budget_probs",
                   fmt::format("has {} numbers for {} budgets", chances.size(), elastic.budget_list.size()),
                   "leave it out");
  else if (!chances.empty() && std::ranges::all_of(chances, [](double p) { return p == 0; }))
    builder.reject("elastic.budget_probs", "no budget would be trained", "leave it out");
  if (elastic.freeze_router && elastic.freeze_model)
    builder.reject("elastic.freeze_model", "nothing would learn",
                   "leave it out, or leave out --freeze-router");
  if (elastic.is_flex_eval && elastic.override_selected_budget.empty())
    builder.reject("elastic.is_flex_eval", "the budget is missing", "add --override-selected-budget 0.5");
}

// "elastic.emb_int_list" is --emb-int-list.
std::string flag_of(std::string_view setting) {
  std::string flag = fmt::format("--{}", setting.substr(setting.find('.') + 1));
  std::ranges::replace(flag, '_', '-');
  return flag;
}

void widths_fit(ConfigBuilder& builder) {
  const Config& config = builder.config;
  if (!config.elastic.flextron) return;
  const ElasticConfig& elastic = config.elastic;
  const std::pair<const std::vector<int64_t>*, const std::vector<double>*> lists[] = {
      {&elastic.emb_int_list, &elastic.emb_per_list},
      {&elastic.mlp_int_list, &elastic.mlp_per_list},
      {&elastic.mamba_int_list, &elastic.mamba_per_list},
      {&elastic.moe_expert_int_list, &elastic.moe_expert_per_list}};
  const auto all = elastic_sizes(config);
  for (size_t axis = 0; axis < kElasticAxes; ++axis) {
    const ElasticSizes& sizes = all[axis];
    if (!lists[axis].first->empty() && !lists[axis].second->empty())
      builder.reject(sizes.shares, fmt::format("{} says the same", sizes.list), "leave one of them out");
    if (sizes.full == 0) continue;
    const bool shares = lists[axis].first->empty();
    const int64_t step = axis == kHeads ? config.model.mamba_num_groups : 1,
                  least = axis == kExperts ? config.model.moe_router_topk : step;
    std::set<int64_t, std::greater<>> good{sizes.full};
    for (const int64_t size : sizes.given)
      good.insert(std::clamp(size / step * step, std::min(least, sizes.full), sizes.full));
    const std::string fix = fmt::format("use {}{}{}", shares ? flag_of(sizes.list) + " " : "",
                                        fmt::join(good, " "), shares ? " instead" : "");
    const auto reject_if = [&](bool wrong, const std::string& problem) {
      if (wrong) builder.reject(shares ? sizes.shares : sizes.list, problem, fix);
    };
    std::vector<int64_t> sorted = sizes.given;
    std::ranges::sort(sorted);
    reject_if(std::ranges::adjacent_find(sorted) != sorted.end(), "it names a size twice");
    reject_if(sorted.back() != sizes.full,
              fmt::format("the largest is {}, but {} is {}", sorted.back(), sizes.whole, sizes.full));
    reject_if(std::ranges::any_of(sorted, [&](int64_t size) { return size % step != 0; }),
              fmt::format("heads are taken alike of mamba_num_groups = {} groups", step));
    reject_if(sorted.front() < least, axis == kExperts ? fmt::format("a token goes to {} experts", least)
                                                       : std::string("a sub-network has nothing of it"));
  }
}

// Which models and runs have sub-networks.
void elastic_goes_with(ConfigBuilder& builder) {
  if (!trains_elastically(builder)) return;
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  const auto reject_if = [&](bool wrong, const char* setting, const char* problem, const char* fix) {
    if (wrong) builder.reject(setting, problem, fix);
  };
  const bool plain = !model.hybrid_layer_pattern.empty() &&
                     model.hybrid_layer_pattern.find_first_not_of("M*E|") == std::string::npos;
  reject_if(!plain, "elastic.flextron",
            "sub-networks are of hybrid models with layers M, * and E alone, without MTP layers",
            "leave it out");
  reject_if(model.normalization != Normalization::rms_norm, "model.normalization",
            "a LayerNorm's mean would count channels that a sub-network lacks",
            "use --normalization RMSNorm");
  reject_if(model.enable_mhc_connections, "model.enable_mhc_connections",
            "residual streams side by side have no sub-networks", "leave it out");
  const std::pair<bool, const char*> others[] = {
      {model.post_attention_layernorm, "model.post_attention_layernorm"},
      {model.post_mlp_layernorm, "model.post_mlp_layernorm"},
      {model.layernorm_after_residual, "model.layernorm_after_residual"},
      {model.parallel_residual, "model.parallel_residual"}};
  for (const auto& [on, setting] : others)
    reject_if(on, setting, "sub-networks are of layers that norm their input alone", "leave it out");
  if (model.num_moe_experts > 0) {
    reject_if(model.moe_router_score_function == RouterScore::softmax, "model.moe_router_score_function",
              "scores of experts are mixed one by one", "use --moe-router-score-function sigmoid");
    const auto& kinds = model.moe_router_load_balancing_type;
    reject_if(std::ranges::any_of(kinds, [](const std::string& kind) { return kind != "none"; }),
              "model.moe_router_load_balancing_type",
              "balancing would count experts that a sub-network lacks",
              "use --moe-router-load-balancing-type none");
  }
  reject_if(config.parallel.tensor_model_parallel_size > 1 && !config.parallel.sequence_parallel,
            "model.sequence_parallel", "each rank passes its own tokens' gradients to the router",
            "add --sequence-parallel, or use --tensor-model-parallel-size 1");
}

constexpr Rule kElasticRules[] = {
    {"elastic_budgets_fit",
     "elastic.flextron elastic.enable_router elastic.budget_list elastic.budget_probs elastic.freeze_router "
     "elastic.freeze_model elastic.is_flex_eval elastic.override_selected_budget",
     "a router chooses widths for different budgets", budgets_fit},
    {"elastic_widths_fit",
     "elastic.emb_int_list elastic.emb_per_list elastic.mlp_int_list elastic.mlp_per_list "
     "elastic.mamba_int_list elastic.mamba_per_list elastic.moe_expert_int_list elastic.moe_expert_per_list "
     "model.mamba_num_groups model.moe_router_topk",
     "widths of sub-networks are different parts of the model's", widths_fit},
    {"elastic_goes_with",
     "elastic.flextron model.hybrid_layer_pattern model.normalization model.enable_mhc_connections "
     "model.post_attention_layernorm model.post_mlp_layernorm "
     "model.layernorm_after_residual model.parallel_residual model.moe_router_score_function "
     "model.moe_router_load_balancing_type model.sequence_parallel",
     "hybrid models with RMSNorm have sub-networks", elastic_goes_with},
};

}  // namespace

std::span<const Rule> elastic_rules() { return kElasticRules; }

}  // namespace megatron
