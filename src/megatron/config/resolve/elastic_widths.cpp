#include "megatron/config/resolve/elastic_widths.h"

#include <cmath>

namespace megatron {
namespace {

std::vector<int64_t> sizes_of(const std::vector<int64_t>& sizes, const std::vector<double>& shares,
                              int64_t full) {
  if (!sizes.empty()) return sizes;
  if (shares.empty()) return {full};
  std::vector<int64_t> result;
  for (const double share : shares)
    result.push_back(static_cast<int64_t>(std::floor(share * static_cast<double>(full))));
  return result;
}

}  // namespace

std::array<ElasticSizes, kElasticAxes> elastic_sizes(const Config& config) {
  const ElasticConfig& elastic = config.elastic;
  const ModelConfig& model = config.model;
  const auto has = [&](char layer) { return model.hybrid_layer_pattern.find(layer) != std::string::npos; };
  const int64_t expert = model.moe_ffn_hidden_size > 0 ? model.moe_ffn_hidden_size : model.ffn_hidden_size;
  std::array<ElasticSizes, kElasticAxes> all;
  all[kStream] = {"elastic.emb_int_list", "elastic.emb_per_list", "hidden_size", model.hidden_size, {}};
  all[kFfn] = {
      "elastic.mlp_int_list", "elastic.mlp_per_list", "an expert's width", has('E') ? expert : 0, {}};
  all[kHeads] = {"elastic.mamba_int_list",
                 "elastic.mamba_per_list",
                 "mamba_num_heads",
                 has('M') ? model.mamba_num_heads : 0,
                 {}};
  all[kExperts] = {"elastic.moe_expert_int_list",
                   "elastic.moe_expert_per_list",
                   "num_moe_experts",
                   has('E') ? model.num_moe_experts : 0,
                   {}};
  all[kStream].given = sizes_of(elastic.emb_int_list, elastic.emb_per_list, all[kStream].full);
  all[kFfn].given = sizes_of(elastic.mlp_int_list, elastic.mlp_per_list, all[kFfn].full);
  all[kHeads].given = sizes_of(elastic.mamba_int_list, elastic.mamba_per_list, all[kHeads].full);
  all[kExperts].given =
      sizes_of(elastic.moe_expert_int_list, elastic.moe_expert_per_list, all[kExperts].full);
  for (ElasticSizes& sizes : all)
    if (sizes.full == 0) sizes.given = {0};
  return all;
}

}  // namespace megatron
