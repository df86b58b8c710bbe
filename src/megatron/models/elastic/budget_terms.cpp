#include "megatron/models/elastic/budget_terms.h"

#include <algorithm>
#include <map>
#include <utility>

#include "megatron/models/elastic/sub_network.h"
#include "megatron/models/whole_model.h"

namespace megatron {
namespace {

// Bytes of an element: weights, keys and values, states, what experts work on.
struct Formats {
  double params, kv_cache, ssm_cache, max_buffer;
};

Formats formats_of(const ElasticConfig& config) {
  static const std::map<std::string, Formats> kProfiles = {
      {"bf16", {2, 2, 2, 2}},    {"fp8_kv", {2, 1, 2, 2}}, {"fp8_kv_ssm", {2, 1, 1, 2}},
      {"fp8_all", {1, 1, 1, 1}}, {"int8", {1, 1, 1, 2}},   {"fp4", {0.5625, 0.5625, 1, 2}}};
  const Formats& profile = kProfiles.at(config.memory_profile);
  return {config.bpe_params.value_or(profile.params), config.bpe_kv_cache.value_or(profile.kv_cache),
          config.bpe_ssm_cache.value_or(profile.ssm_cache),
          config.bpe_max_buffer.value_or(profile.max_buffer)};
}

double layers(const ModelConfig& model, char kind) {
  return static_cast<double>(std::ranges::count(model.hybrid_layer_pattern, kind));
}

int64_t expert_width(const ModelConfig& model) {
  return model.moe_ffn_hidden_size > 0 ? model.moe_ffn_hidden_size : model.ffn_hidden_size;
}

// Counts parameters: `active` counts the experts that a token goes to, else all experts count.
double parameters(const ModelConfig& model, bool active) {
  double count = 0;
  whole_model(model)->visit([&](Parameter& parameter) {
    double size = static_cast<double>(parameter.shard.global_shape.numel());
    if (active && parameter.expert)
      size *= static_cast<double>(model.moe_router_topk) / static_cast<double>(model.num_moe_experts);
    count += size;
  });
  return count;
}

// Bytes while a text is read: weights, keys and values of all tokens, states, and what experts make of a
// chunk.
double memory(const ModelConfig& model, const ElasticConfig& config) {
  const Formats bytes = formats_of(config);
  const double sequences = static_cast<double>(config.mem_batch_size);
  const int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : model.num_attention_heads;
  const double keys =
      2 * sequences * static_cast<double>(config.mem_infer_seq_len * groups * model.kv_channels);
  const double states =
      sequences * static_cast<double>(model.mamba_num_heads * model.mamba_head_dim * model.mamba_state_dim);
  const double expert_columns = layers(model, 'E') == 0
                                    ? 0
                                    : static_cast<double>(model.moe_shared_expert_intermediate_size +
                                                          model.moe_router_topk * expert_width(model));
  return bytes.params * parameters(model, config.param_budget_target == "active") +
         bytes.kv_cache * keys * layers(model, '*') + bytes.ssm_cache * states * layers(model, 'M') +
         bytes.max_buffer * sequences * static_cast<double>(config.prefill_chunk_size) * expert_columns;
}

}  // namespace

// The count is linear in each axis, so its values at the smallest and the largest sizes say it all.
BudgetTerms budget_terms(const Config& config) {
  const auto axes = elastic_sizes(config);
  SubNetworkSizes smallest{};
  for (size_t axis = 0; axis < kElasticAxes; ++axis)
    smallest[axis] = *std::ranges::min_element(axes[axis].given);
  BudgetTerms terms{};
  for (size_t set = 0; set < terms.size(); ++set) {  // of axes at their full size
    SubNetworkSizes sizes{};
    bool same = false;  // as another set
    for (size_t axis = 0; axis < kElasticAxes; ++axis) {
      const bool full = (set >> axis & 1) != 0;
      sizes[axis] = full ? axes[axis].full : smallest[axis];
      same |= !full && sizes[axis] == axes[axis].full;
    }
    if (same) continue;
    const ModelConfig model = sub_network(config.model, sizes);
    terms[set] = config.elastic.budget_type == "mem"
                     ? memory(model, config.elastic)
                     : parameters(model, config.elastic.param_budget_target == "active");
  }
  const double whole = terms.back();
  for (size_t axis = 0; axis < kElasticAxes; ++axis) {
    const double share =
        axes[axis].full == 0 ? 1 : static_cast<double>(smallest[axis]) / static_cast<double>(axes[axis].full);
    for (size_t set = 0; set < terms.size(); ++set) {
      if ((set >> axis & 1) != 0) continue;
      double &low = terms[set], &high = terms[set | size_t{1} << axis];
      if (share == 1) {  // it is one size: no share of it is asked for
        low = std::exchange(high, 0);
        continue;
      }
      const double slope = (high - low) / (1 - share);
      low = high - slope;
      high = slope;
    }
  }
  for (double& term : terms) term /= whole;
  return terms;
}

}  // namespace megatron
