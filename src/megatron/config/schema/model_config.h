#pragma once

#include <algorithm>

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

  // The layer, counted from 0, whose indexer chooses the keys of a layer that attends sparsely: often itself.
  int64_t chooser_of_keys(int64_t layer) const {
    const int64_t first =
        std::max<int64_t>(dsa_indexer_skip_topk_offset, 1) - 1;  // the last of the first ones
    if (layer <= first || layer >= num_layers) return layer;     // MTP layers have their own
    return layer - (layer - first) % dsa_indexer_topk_freq;
  }

  // Channels of the residual stream, or of all its streams.
  int64_t stream_width() const {
    return hidden_size * (enable_mhc_connections ? mhc_num_residual_streams : 1);
  }

  // Whether layers that are not of a hybrid pattern have delta nets in place of attention.
  bool attends_linearly() const {
    return experimental_attention_variant == AttentionVariant::gdn ||
           experimental_attention_variant == AttentionVariant::gdn2 ||
           experimental_attention_variant == AttentionVariant::gated_delta_net;
  }
  // Whether delta nets have decays and gates of channels, and not of heads.
  bool gates_channels() const { return experimental_attention_variant == AttentionVariant::gdn2; }

  // Whether it learns to restore masked text, and not to go on from it.
  bool masks_text() const { return model_type == ModelType::bert || model_type == ModelType::t5; }

  std::vector<LayerBlock> layer_blocks;  // what that text says; no setting
};

}  // namespace megatron
