#include "megatron/config/resolve/vision_tower.h"

#include <algorithm>

#include "megatron/config/config.h"

namespace megatron {
namespace {

struct Default {
  const char* name;
  Json value;
};

// CLIP ViT-L/14 at 336 pixels up to its last layer but one, as LLaVA 1.5 has it.
void derive_llava(ConfigBuilder& builder) {
  const Default defaults[] = {{"vision_tower", "clip"},         {"vision_image_size", 336},
                              {"vision_patch_size", 14},        {"vision_num_layers", 23},
                              {"vision_hidden_size", 1024},     {"vision_num_attention_heads", 16},
                              {"vision_ffn_hidden_size", 4096}, {"vision_layernorm_epsilon", 1e-5},
                              {"vision_class_token", false},    {"freeze_vision_model", true},
                              {"freeze_language_model", true}};
  for (const Default& each : defaults)
    if (const std::string name = std::string("model.") + each.name; !builder.given(name))
      builder.derive(name, each.value, "model_provider llava_vlm");
}

}  // namespace

void derive_vision(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.model_provider == ModelProvider::llava_vlm) derive_llava(builder);
  if (!model.has_tower() && builder.given("model.vision_image_size") && model.vision_image_size > 0)
    builder.derive("model.vision_tower", "clip", "vision_image_size");
  if (!model.has_tower()) return;
  const auto fill = [&](const char* name, int64_t now, int64_t value, const char* why) {
    if (now == 0 && value > 0) builder.derive(name, value, why);
  };
  fill("model.vision_num_layers", model.vision_num_layers, model.num_layers, "num_layers");
  fill("model.vision_hidden_size", model.vision_hidden_size, model.hidden_size, "hidden_size");
  fill("model.vision_num_attention_heads", model.vision_num_attention_heads, model.num_attention_heads,
       "num_attention_heads");
  fill("model.vision_ffn_hidden_size", model.vision_ffn_hidden_size, 4 * model.vision_hidden_size,
       "4 x vision_hidden_size");
  fill("model.vision_projector_size", model.vision_projector_size, model.ffn_hidden_size, "ffn_hidden_size");
  fill("model.vision_output_size", model.vision_output_size, model.hidden_size, "hidden_size");
  fill("model.vision_image_width", model.vision_image_width, model.vision_image_size, "vision_image_size");
  if (model.vision_tower != VisionTowerKind::clip) return;
  if (model.image_token_id == -1) builder.derive("model.image_token_id", -200, "vision_tower clip");
  const int64_t size = model.vision_image_size, patch = model.vision_patch_size;
  if (size >= patch)
    fill("model.vision_tokens_per_image", model.vision_tokens_per_image,
         model.image_tokens(model.image_patches()), "vision_image_size, vision_patch_size");
}

void add_image_tokens(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const bool by_flags = builder.origin("model.vision_image_size").source > Source::hf &&
                        model.model_provider == ModelProvider::none &&
                        model.vision_tower == VisionTowerKind::clip &&
                        builder.origin("model.vision_num_layers").source != Source::checkpoint;
  if (!by_flags || builder.purpose == Purpose::forward || model.seq_length == 0) return;
  // As many more as context- and sequence-parallel ranks need for equal parts.
  const ParallelConfig& p = builder.config.parallel;
  const int64_t parts = (p.context_parallel_size > 1 ? 2 * p.context_parallel_size : 1) *
                        (p.sequence_parallel ? p.tensor_model_parallel_size : 1);
  const int64_t tokens = model.seq_length + model.vision_tokens_per_image;
  const int64_t whole = (tokens + parts - 1) / parts * parts;
  builder.derive("model.seq_length", whole, "text and an image before it");
  builder.derive("dataset.seq_length", whole, "model.seq_length");
  if (model.max_position_embeddings > 0 && model.max_position_embeddings < whole)
    builder.derive("model.max_position_embeddings", whole, "text and an image before it");
}

}  // namespace megatron
