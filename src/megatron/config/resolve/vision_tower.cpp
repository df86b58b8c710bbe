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

// A decoder of Megatron-LM's multimodal examples, and the two layers that stand before it.
struct LanguageModel {
  std::string_view name;
  int64_t ffn_hidden_size;  // 0: as the flags say
  bool squared_relu, qkv_bias;
  int64_t projector_size;
  const char* activation;  // of the projector; "": the decoder's
  const char* norm;        // "": the decoder's
  bool projector_bias = false;
};
constexpr LanguageModel kLanguageModels[] = {
    {"llama3_8b", 14336, false, false, 14336, "gelu", ""},
    {"llama3.1_8b", 14336, false, false, 4096, "gelu", "LayerNorm", true},
    {"llama_nemotron_8b", 14336, false, false, 14336, "gelu", "LayerNorm", true},
    {"llama3.2_1b", 8192, false, false, 2048, "gelu", "LayerNorm"},
    {"mistral_7b", 14336, false, false, 14336, "gelu", "none"},
    {"yi-34b", 20480, false, false, 20480, "gelu", "LayerNorm"},
    {"qwen2.0_72B", 29568, false, true, 29568, "gelu", "LayerNorm"},
    {"qwen2.5_7B", 18944, false, true, 3584, "gelu", ""},
    {"qwen2.5_72B", 29568, false, true, 29568, "gelu", "LayerNorm"},
    {"nemotron5-8b", 21504, true, false, 21504, "squared_relu", ""},
    {"nemotron5-hybrid-8b", 21504, true, false, 21504, "squared_relu", ""},
    {"nemotron5-hybrid-12b", 20480, true, false, 20480, "squared_relu", ""},
    {"nemotron5-hybrid-56b", 32768, true, false, 32768, "squared_relu", ""},
    {"nemotron6-moe", 0, false, false, 20480, "", ""},
};

// CLIP ViT-L/14, the decoder's kind of layers and the projector; what is given stays as it is.
void derive_language_model(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const auto found =
      std::find_if(std::begin(kLanguageModels), std::end(kLanguageModels),
                   [&](const LanguageModel& each) { return each.name == model.language_model_type; });
  if (found == std::end(kLanguageModels)) return;
  // A checkpoint keeps what differs from the built-in values, so that what it does not say is such a value.
  const Source source = builder.origin("model.language_model_type").source;
  const bool read = source == Source::hf || source == Source::checkpoint;
  const auto derive = [&](const char* key, const Json& value) {
    if (const std::string name = std::string("model.") + key; !read && !builder.given(name))
      builder.derive(name, value, "language_model_type");
  };
  if (found->ffn_hidden_size > 0) {
    derive("ffn_hidden_size", found->ffn_hidden_size);
    derive("activation_func", found->squared_relu ? "squared_relu" : "silu");
    derive("gated_linear_unit", !found->squared_relu);
    derive("add_bias_linear", false);
    if (found->qkv_bias) derive("add_qkv_bias", true);
  }
  derive("vision_num_layers", 24);
  derive("vision_hidden_size", 1024);
  derive("vision_num_attention_heads", 16);
  derive("vision_ffn_hidden_size", 4096);
  derive("vision_layernorm_epsilon", model.layernorm_epsilon);
  derive("vision_projector_size", found->projector_size);
  derive("vision_projector_activation",
         *found->activation ? found->activation : name_of(model.activation_func));
  derive("vision_projector_bias", found->projector_bias);
  derive("vision_projector_norm", *found->norm ? found->norm : name_of(model.normalization));
  derive("vision_projector_epsilon", found->projector_bias ? 1e-5 : model.layernorm_epsilon);
  if (model.decoder_seq_length == 0) return;
  // --seq-length of those scripts counts an image's tokens, --decoder-seq-length all that the decoder reads.
  builder.derive("model.seq_length", model.decoder_seq_length, "decoder_seq_length, language_model_type");
  builder.derive("dataset.seq_length", model.decoder_seq_length, "model.seq_length");
  if (model.max_position_embeddings > 0 && model.max_position_embeddings < model.decoder_seq_length)
    builder.derive("model.max_position_embeddings", model.decoder_seq_length, "decoder_seq_length");
}

}  // namespace

void derive_vision(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.model_provider == ModelProvider::llava_vlm) derive_llava(builder);
  if (!model.has_tower() && builder.given("model.vision_image_size") && model.vision_image_size > 0)
    builder.derive("model.vision_tower", "clip", "vision_image_size");
  if (!model.has_tower()) return;
  if (model.vision_tower == VisionTowerKind::clip) derive_language_model(builder);
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
         model.image_tokens(model.most_patches()), "vision_image_size, vision_patch_size");
}

// The length in a checkpoint has room for images; one that is given beside --img-h has not, as in the run
// that wrote it.
void add_image_tokens(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const Source size = builder.origin("model.vision_image_size").source;
  const bool by_flags = size > Source::hf && size != Source::checkpoint &&
                        builder.origin("model.seq_length").source != Source::checkpoint &&
                        model.model_provider == ModelProvider::none &&
                        model.vision_tower == VisionTowerKind::clip;
  const bool counts_images = !model.language_model_type.empty() && model.decoder_seq_length > 0;
  if (!by_flags || counts_images || builder.purpose == Purpose::forward || model.seq_length == 0) return;
  // As many more as context- and sequence-parallel ranks need for equal parts.
  const ParallelConfig& p = builder.config.parallel;
  const int64_t parts = (p.context_parallel_size > 1 ? 2 * p.context_parallel_size : 1) *
                        (p.sequence_parallel ? p.tensor_model_parallel_size : 1);
  // An image that is its only tile has no thumbnail.
  const int64_t tiles =
      model.use_tiling && model.max_num_tiles > 1 ? model.max_num_tiles + (model.use_thumbnail ? 1 : 0) : 1;
  const int64_t tokens = model.seq_length + tiles * model.vision_tokens_per_image;
  const int64_t whole = (tokens + parts - 1) / parts * parts;
  builder.derive("model.seq_length", whole, "text and an image before it");
  builder.derive("dataset.seq_length", whole, "model.seq_length");
  if (model.max_position_embeddings > 0 && model.max_position_embeddings < whole)
    builder.derive("model.max_position_embeddings", whole, "text and an image before it");
}

}  // namespace megatron
