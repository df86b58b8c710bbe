#pragma once

#include "megatron/config/schema/moe_config.h"
#include "megatron/config/schema/setting.h"
#include "megatron/config/schema/vision_config.h"

namespace megatron {

enum class ModelType { none, gpt, bert, t5 };
constexpr auto names(ModelType) { return std::array{"none", "gpt", "bert", "t5"}; }
enum class PositionEmbedding { learned_absolute, rope, yarn, mrope, relative, none };
constexpr auto names(PositionEmbedding) {
  return std::array{"learned_absolute", "rope", "yarn", "mrope", "relative", "none"};
}
enum class Normalization { layer_norm, rms_norm };
constexpr auto names(Normalization) { return std::array{"LayerNorm", "RMSNorm"}; }
enum class Activation { gelu, gelu_tanh, silu, relu, squared_relu, quick_gelu, sigmoid, tanh };
constexpr auto names(Activation) {
  return std::array{"gelu", "gelu_tanh", "silu", "relu", "squared_relu", "quick_gelu", "sigmoid", "tanh"};
}
enum class SoftmaxType { vanilla, off_by_one, learnable };
constexpr auto names(SoftmaxType) { return std::array{"vanilla", "off-by-one", "learnable"}; }
enum class RopeType { rope, yarn };
constexpr auto names(RopeType) { return std::array{"rope", "yarn"}; }
enum class AttentionVariant { none, gdn, gdn2, dsa, gated_delta_net };
constexpr auto names(AttentionVariant) { return std::array{"none", "gdn", "gdn2", "dsa", "gated_delta_net"}; }

// One layer of a model whose layers differ: either part may be missing.
struct LayerBlock {
  bool attention = true, mlp = true;
  int64_t query_groups = 0, ffn_hidden_size = 0;
};

struct ModelConfig : MoeConfig, VisionConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/model.def"
#undef SETTING

  // Whether some layer's attention reads the keys alone that an indexer chose.
  bool attends_sparsely() const {
    return is_hybrid_model ? hybrid_layer_pattern.find('D') != std::string::npos
                           : experimental_attention_variant == AttentionVariant::dsa;
  }

  // Whether it learns to restore masked text, and not to go on from it.
  bool masks_text() const { return model_type == ModelType::bert || model_type == ModelType::t5; }

  std::vector<LayerBlock> layer_blocks;  // what that text says; no setting
};

}  // namespace megatron
