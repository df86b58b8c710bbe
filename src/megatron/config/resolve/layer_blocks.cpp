#include "megatron/config/resolve/layer_blocks.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

const Json* part_of(const Json& block, std::string_view name) {
  const Json* part = block.find(name);
  return part && !part->is_null() ? part : nullptr;
}

bool is_set(const Json& part, std::string_view key) {
  const Json* value = part_of(part, key);
  return value && value->as_bool();
}

// Whether the part is there at all.
bool is_kept(const Json& part, size_t layer) {
  require(!is_set(part, "replace_with_linear"),
          "layer {}: replace_with_linear is not built; attention, MLP or no_op are", layer);
  return !is_set(part, "no_op");
}

// A multiple of the width, of which a gated unit has two thirds, in whole groups of 256.
int64_t width_of(double multiple, int64_t hidden) {
  const auto width = static_cast<int64_t>(2 * multiple * static_cast<double>(hidden) / 3);
  return (width + 255) / 256 * 256;
}

LayerBlock read_block(const ModelConfig& config, const Json& block, size_t layer) {
  LayerBlock own{.query_groups = config.num_query_groups, .ffn_hidden_size = config.ffn_hidden_size};
  if (const Json* attention = part_of(block, "attention")) {
    own.attention = is_kept(*attention, layer);
    if (const Json* heads = part_of(*attention, "n_heads_in_group")) {
      require(heads->as_int() > 0 && config.num_attention_heads % heads->as_int() == 0,
              "layer {}: groups of {} do not divide {} heads", layer, heads->as_int(),
              config.num_attention_heads);
      own.query_groups = config.num_attention_heads / heads->as_int();
    }
    if (const Json* groups = part_of(*attention, "num_query_groups")) own.query_groups = groups->as_int();
  }
  const Json* mlp = part_of(block, "ffn");
  if (!mlp) mlp = part_of(block, "mlp");
  if (!mlp) return own;
  own.mlp = is_kept(*mlp, layer);
  if (const Json* multiple = part_of(*mlp, "ffn_mult"))
    own.ffn_hidden_size = width_of(multiple->as_double(), config.hidden_size);
  for (const char* key : {"intermediate_size", "ffn_hidden_size"})
    if (const Json* width = part_of(*mlp, key)) own.ffn_hidden_size = width->as_int();
  return own;
}

}  // namespace

std::vector<LayerBlock> read_layer_blocks(const ModelConfig& config) {
  if (config.heterogeneous_layers_config_encoded_json.empty()) return {};
  const Json description =
      Json::parse(config.heterogeneous_layers_config_encoded_json, "heterogeneous layers");
  const Json* list = part_of(description, "block_configs");
  require(list && list->is_array() && list->size() > 0,
          "heterogeneous layers: there is no list block_configs");
  std::vector<LayerBlock> blocks;
  for (const Json& block : list->as_array()) blocks.push_back(read_block(config, block, blocks.size()));
  return blocks;
}

LayerBlock layer_block(const ModelConfig& config, int64_t layer) {
  const std::vector<LayerBlock>& blocks = config.layer_blocks;
  require(blocks.empty() == config.heterogeneous_layers_config_encoded_json.empty(),
          "heterogeneous layers: their description was not read");
  if (blocks.empty())
    return {.query_groups = config.num_query_groups, .ffn_hidden_size = config.ffn_hidden_size};
  const auto index = static_cast<size_t>(layer);
  require(index < blocks.size(), "layer {}: block_configs ends before it", layer);
  return blocks[index];
}

ModelConfig of_layer(const ModelConfig& config, int64_t layer) {
  ModelConfig own = config;
  if (config.heterogeneous_layers_config_encoded_json.empty()) return own;
  const LayerBlock block = layer_block(config, layer);
  own.num_query_groups = block.query_groups;
  own.group_query_attention = block.query_groups != config.num_attention_heads;
  own.ffn_hidden_size = block.ffn_hidden_size;
  return own;
}

}  // namespace megatron
