#pragma once

#include "megatron/config/schema/model_config.h"

namespace megatron {

enum class VisionTowerKind : uint8_t { qwen2, qwen2_5, siglip };

// The sizes of a vision tower, and which tokens of the text its rows stand for.
struct VisionConfig {
  VisionTowerKind kind = VisionTowerKind::qwen2;
  int64_t num_layers = 0, hidden_size = 0, num_attention_heads = 1, ffn_hidden_size = 0;
  int64_t output_size = 0;  // the width of the language model
  double layernorm_epsilon = 1e-6, init_method_std = 0.02;
  int64_t in_channels = 3, patch_size = 14;
  // Qwen
  int64_t temporal_patch_size = 2;
  int64_t spatial_merge_size = 2;              // this many rows and columns of patches become one token
  int64_t window_size = 0;                     // pixels; 0: every patch sees its whole frame
  std::vector<int64_t> full_attention_layers;  // that have no windows
  // SigLIP
  int64_t image_size = 0, tokens_per_image = 0;
  // Text
  int64_t image_token_id = -1, video_token_id = -1;
  bool bidirectional_images = false;  // tokens of one image see each other
};

// The tower's layers are those of a model of this configuration.
ModelConfig tower_config(const VisionConfig& vision);

}  // namespace megatron
