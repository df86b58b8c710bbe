#include "megatron/bridge/megatron/parts.h"

#include "megatron/base/error.h"
#include "megatron/bridge/megatron/names.h"

namespace megatron {

std::vector<int64_t> part_rows(std::string_view name, const ModelConfig& model) {
  if (key_parts(name).count == 0) return {};
  const bool in = name.find("in_proj") != std::string_view::npos;
  if (name.find("mixer.") != std::string_view::npos) {
    const int64_t inner = model.mamba_num_heads * model.mamba_head_dim,
                  groups = model.mamba_num_groups * model.mamba_state_dim;
    if (in) return {inner, inner, groups, groups, model.mamba_num_heads};
    return {inner, groups, groups};
  }
  const int64_t keys = model.linear_num_key_heads * model.linear_key_head_dim,
                values = model.linear_num_value_heads * model.linear_value_head_dim;
  if (in) return {keys, keys, values, values, model.linear_num_value_heads, model.linear_num_value_heads};
  return {keys, keys, values};
}

void refuse_unlike_layouts(const ModelConfig& model, const std::string& origin) {
  if (model.gates_channels() || model.gated_delta_product)
    throw ConfigError(
        fmt::format("{}: Megatron-LM's checkpoints of {} are neither read nor written; keep those that runs "
                    "write here",
                    origin, model.gates_channels() ? "gdn2" : "gated delta products"));
  if (model.attends_linearly() && model.layernorm_zero_centered_gamma)
    throw ConfigError(fmt::format(
        "{}: Megatron-LM keeps the delta net's output norm less one, which rounding would change; convert "
        "through the Hugging Face model",
        origin));
}

}  // namespace megatron
