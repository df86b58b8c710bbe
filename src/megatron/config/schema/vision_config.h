#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class VisionTowerKind { none, clip, siglip, qwen2, qwen2_5 };
constexpr auto names(VisionTowerKind) { return std::array{"none", "clip", "siglip", "qwen2", "qwen2_5"}; }

enum class Activation { gelu, gelu_tanh, silu, relu, squared_relu, quick_gelu, sigmoid, tanh };
constexpr auto names(Activation) {
  return std::array{"gelu", "gelu_tanh", "silu", "relu", "squared_relu", "quick_gelu", "sigmoid", "tanh"};
}

enum class ProjectorNorm { none, layer_norm, rms_norm };
constexpr auto names(ProjectorNorm) { return std::array{"none", "LayerNorm", "RMSNorm"}; }

enum class ModelProvider { none, gpt, mamba, hybrid, llava_vlm };
constexpr auto names(ModelProvider) { return std::array{"none", "gpt", "mamba", "hybrid", "llava_vlm"}; }

// The sizes of a vision tower, which tokens of the text its rows stand for, and what of it all learns.
struct VisionConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/vision.def"
#undef SETTING

  bool has_tower() const { return vision_tower != VisionTowerKind::none; }
  bool is_qwen() const {
    return vision_tower == VisionTowerKind::qwen2 || vision_tower == VisionTowerKind::qwen2_5;
  }
  // LLaVA's stands outside of the vocabulary.
  bool is_image_token(int64_t id) const { return id != -1 && (id == image_token_id || id == video_token_id); }
  // Tokens of an image, or of one of its tiles, of so many patches.
  int64_t image_tokens(int64_t patches) const {
    if (vision_tower == VisionTowerKind::siglip) return vision_tokens_per_image;
    if (vision_tower == VisionTowerKind::clip)
      return (patches + (vision_class_token ? 1 : 0)) / (vision_pixel_shuffle ? 4 : 1);
    return patches / (vision_spatial_merge_size * vision_spatial_merge_size);
  }
  // Patches of an image, for towers with a fixed image size.
  int64_t image_patches() const {
    const int64_t side = vision_image_size / vision_patch_size;
    return side * side;
  }
  // The same where images keep their ratio of sides, and may be larger or smaller.
  int64_t most_patches() const {
    return dynamic_resolution && dynamic_resolution_max_patches > 0 ? dynamic_resolution_max_patches
                                                                    : image_patches();
  }
};

}  // namespace megatron
