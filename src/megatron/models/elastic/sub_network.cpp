#include "megatron/models/elastic/sub_network.h"

#include <numeric>

namespace megatron {
namespace {

std::vector<int64_t> first(int64_t count, int64_t begin = 0) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

// Channels of Mamba's heads, `size` each: the first heads of every group.
std::vector<int64_t> of_heads(const ModelConfig& model, int64_t heads, int64_t size, int64_t begin) {
  const int64_t groups = model.mamba_num_groups, in_group = model.mamba_num_heads / groups;
  std::vector<int64_t> indices;
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t i = 0; i < heads / groups * size; ++i)
      indices.push_back(begin + group * in_group * size + i);
  return indices;
}

// Rows of Mamba's projection (gate, x, B, C, steps), or of its convolution (x, B, C).
std::vector<int64_t> mamba_rows(const ModelConfig& model, int64_t heads, bool projection) {
  const int64_t inner = model.mamba_num_heads * model.mamba_head_dim,
                shared = 2 * model.mamba_num_groups * model.mamba_state_dim;
  std::vector<int64_t> rows;
  const auto append = [&](const std::vector<int64_t>& more) {
    rows.insert(rows.end(), more.begin(), more.end());
  };
  for (int64_t begin = 0; begin <= (projection ? inner : 0); begin += inner)
    append(of_heads(model, heads, model.mamba_head_dim, begin));
  const int64_t behind = projection ? 2 * inner : inner;
  append(first(shared, behind));
  if (projection) append(of_heads(model, heads, 1, behind + shared));
  return rows;
}

}  // namespace

ModelConfig sub_network(const ModelConfig& model, const SubNetworkSizes& sizes) {
  ModelConfig part = model;
  part.hidden_size = sizes[kStream];
  if (sizes[kFfn] > 0)
    (part.moe_ffn_hidden_size > 0 ? part.moe_ffn_hidden_size : part.ffn_hidden_size) = sizes[kFfn];
  if (sizes[kHeads] > 0) part.mamba_num_heads = sizes[kHeads];
  if (sizes[kExperts] > 0) part.num_moe_experts = sizes[kExperts];
  return part;
}

std::vector<std::vector<int64_t>> sub_network_indices(const std::string& name, const Shape& shape,
                                                      const ModelConfig& model,
                                                      const SubNetworkSizes& sizes) {
  std::vector<std::vector<int64_t>> all;
  for (const int64_t size : shape) all.push_back(first(size));
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  const auto stream = [&](size_t dim) { all[dim] = first(sizes[kStream]); };
  const int64_t heads = sizes[kHeads], channel = model.mamba_head_dim;
  if (name.find(".mixer.") != std::string::npos) {
    if (ends("in_proj.weight") || ends("in_proj.bias")) all[0] = mamba_rows(model, heads, true);
    if (ends("in_proj.weight")) stream(1);
    if (ends("conv1d.weight") || ends("conv1d.bias")) all[0] = mamba_rows(model, heads, false);
    if (ends(".A_log") || ends(".D") || ends(".dt_bias")) all[0] = of_heads(model, heads, 1, 0);
    if (ends("mixer.norm.weight")) all[0] = of_heads(model, heads, channel, 0);
    if (ends("out_proj.weight") || ends("out_proj.bias")) stream(0);
    if (ends("out_proj.weight")) all[1] = of_heads(model, heads, channel, 0);
  } else if (name.find(".experts.experts.") != std::string::npos) {
    all[0] = first(sizes[kExperts]);
    const int64_t width = model.moe_ffn_hidden_size > 0 ? model.moe_ffn_hidden_size : model.ffn_hidden_size;
    if (name.find("linear_fc1") != std::string::npos) {
      all[1] = first(sizes[kFfn]);
      if (model.gated_linear_unit)
        for (const int64_t up : first(sizes[kFfn], width)) all[1].push_back(up);
      if (ends(".weight") && model.moe_latent_size == 0) stream(2);
    } else {
      if (model.moe_latent_size == 0) stream(1);
      if (ends(".weight")) all[2] = first(sizes[kFfn]);
    }
  } else if (ends("router.weight") || ends("router.bias") || ends("router.expert_bias")) {
    all[0] = first(sizes[kExperts]);
    if (ends("router.weight")) stream(1);
  } else if (ends("fc1_latent_proj.weight") || ends("shared_experts.linear_fc1.weight") ||
             ends("shared_experts.gate_weight") || ends("linear_qkv.weight") ||
             ends("word_embeddings.weight") || ends("position_embeddings.weight") ||
             ends("output_layer.weight")) {
    stream(1);
  } else if (ends("fc2_latent_proj.weight") || ends("shared_experts.linear_fc2.weight") ||
             ends("linear_proj.weight") || ends("linear_proj.bias") || ends("linear_fc2.bias") ||
             ends(".input_layernorm.weight") || ends(".pre_mlp_layernorm.weight") || ends(".norm.weight") ||
             ends(".final_layernorm.weight")) {
    stream(0);
  }
  return all;
}

}  // namespace megatron
