#include <cmath>

#include "megatron/base/counted.h"
#include "megatron/config/resolve/inactive_slots.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

// Whether a run asks for something else than the model it reads, be that --hf or a checkpoint of ours, whose
// own settings come as --hf's do.
bool changes_tower(const ConfigBuilder& builder, std::string_view setting) {
  return builder.origin("model.vision_tower").source == Source::hf &&
         builder.origin(setting).source > Source::hf;
}

void tower_sizes(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!model.has_tower()) return;
  const int64_t heads = model.vision_num_attention_heads,
                tp = builder.config.parallel.tensor_model_parallel_size;
  if (heads > 0 && model.vision_hidden_size % heads != 0)
    builder.reject("model.vision_num_attention_heads",
                   fmt::format("does not divide the tower's width of {}", model.vision_hidden_size),
                   fmt::format("use a divisor of {}", model.vision_hidden_size));
  else if (heads > 0 && builder.purpose != Purpose::model && heads % tp != 0)
    builder.reject("model.tensor_model_parallel_size",
                   fmt::format("does not divide the tower's {} heads", heads),
                   fmt::format("use {}", common_divisors(std::array{heads})));
  if (builder.purpose != Purpose::model && model.vision_ffn_hidden_size % tp != 0)
    builder.reject("model.vision_ffn_hidden_size",
                   fmt::format("is not shared out evenly by {} tensor ranks", tp),
                   fmt::format("use a multiple of {}", tp));
  if (model.vision_output_size != model.hidden_size && model.hidden_size > 0)
    builder.reject("model.vision_output_size",
                   fmt::format("the language model's width is {}", model.hidden_size),
                   fmt::format("use {}", model.hidden_size));
  if (model.vision_tower != VisionTowerKind::clip &&
      (model.image_token_id < 0 || (model.vocab_size > 0 && model.image_token_id >= model.vocab_size)))
    builder.reject("model.image_token_id", "an image's token must be in the vocabulary",
                   "give the one that the tokenizer has for images");
  if (model.is_qwen()) return;
  if (model.vision_tower == VisionTowerKind::siglip) {
    const auto cells = static_cast<int64_t>(std::lround(std::sqrt(model.vision_tokens_per_image)));
    const int64_t side = model.vision_image_size / std::max<int64_t>(1, model.vision_patch_size);
    if (cells < 1 || cells * cells != model.vision_tokens_per_image || side % cells != 0)
      builder.reject("model.vision_tokens_per_image",
                     fmt::format("{} x {} patches are not pooled into as many squares", side, side),
                     fmt::format("use {}", side * side));
  }
  if (model.vision_image_size < model.vision_patch_size)
    builder.reject("model.vision_image_size",
                   fmt::format("is less than a patch of {}", model.vision_patch_size),
                   fmt::format("use a multiple of {}, such as {}", model.vision_patch_size,
                               24 * model.vision_patch_size));
  if (model.vision_image_width != 0 && model.vision_image_width != model.vision_image_size)
    builder.reject("model.vision_image_width",
                   fmt::format("the tower sees squares of {}", model.vision_image_size), "leave it out");
  if (model.vision_tower != VisionTowerKind::clip) return;
  const int64_t side = model.vision_image_size / std::max<int64_t>(1, model.vision_patch_size);
  if (model.vision_pixel_shuffle && model.vision_class_token)
    builder.reject("model.vision_pixel_shuffle", "the class token has no neighbours",
                   "add --disable-vision-class-token");
  else if (model.vision_pixel_shuffle && side % 2 != 0)
    builder.reject("model.vision_pixel_shuffle",
                   fmt::format("{} x {} patches are not in squares of four", side, side), "leave it out");
  else if (model.vision_pixel_shuffle && changes_tower(builder, "model.vision_pixel_shuffle"))
    builder.reject("model.vision_pixel_shuffle", "the model that is read says what its projector reads",
                   "leave it out");
}

// What a step with images cannot do yet.
void tower_layouts(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  if (!model.has_tower() || builder.purpose == Purpose::forward) return;
  if (model.masks_text())
    builder.reject("model.vision_tower", "belongs to a decoder", "leave it out, or use --model-type gpt");
  if (model.vision_bidirectional && config.parallel.context_parallel_size > 1)
    builder.reject("model.context_parallel_size",
                   "tokens of one image see each other, and are not split over ranks", "use 1");
  if (model.mtp_num_layers > 0) builder.reject("model.mtp_num_layers", "images are not predicted", "use 0");
  if (config.execution.cuda_graph_impl == GraphImpl::full_iteration)
    builder.reject("model.cuda_graph_impl", "images differ in size from step to step", "leave it out");
  if (has_inactive_slots(config.parallel))
    builder.reject("model.vision_tower", "is not shared out among unequal replicas",
                   "leave out --non-active-ranks and --tp-spares");
  if (model.freeze_language_model && model.freeze_vision_model && model.freeze_vision_projection)
    builder.reject("model.freeze_vision_projection", "nothing would be left to learn",
                   "leave one of the three out");
}

// The tower runs on the ranks of the language model: a script that lays out both may say so.
void tower_ranks(ConfigBuilder& builder) {
  const RunConfig& run = builder.config.run;
  const std::optional<int64_t> replicas = builder.data_parallel_size;
  if (run.llm_dp > 0 && replicas && run.llm_dp != *replicas)
    builder.reject("run.llm_dp",
                   fmt::format("{} make {}; {} would need {}", counted(*builder.world_size, "rank"),
                               counted(*replicas, "replica"), run.llm_dp,
                               counted(*builder.world_size / *replicas * run.llm_dp, "rank")),
                   fmt::format("use {}", *replicas));
  if (!builder.config.model.has_tower()) return;
  const char* shared = "the tower runs on the ranks of the language model";
  if (run.llm_offset > 0) builder.reject("run.llm_offset", shared, "use 0");
  const int64_t tp = builder.config.parallel.tensor_model_parallel_size;
  if (run.encoder_tp > 0 && run.encoder_tp != tp)
    builder.reject("run.encoder_tp", shared, fmt::format("use {}, or leave it out", tp));
  if (run.encoder_dp > 0 && replicas && run.encoder_dp != *replicas)
    builder.reject("run.encoder_dp", shared, fmt::format("use {}, or leave it out", *replicas));
}

// How images are cut and written in the text.
void tower_texts(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!model.has_tower()) return;
  if (model.dynamic_resolution && model.vision_tower == VisionTowerKind::siglip)
    builder.reject("model.dynamic_resolution", "the tower pools squares of one size", "leave it out");
  if (model.dynamic_resolution && model.use_tiling)
    builder.reject("model.dynamic_resolution", "tiles have one size", "leave out --use-tiling");
  if (model.dynamic_resolution && model.dynamic_resolution_max_patches > 0 &&
      model.dynamic_resolution_max_patches < std::max<int64_t>(4, model.dynamic_resolution_min_patches))
    builder.reject("model.dynamic_resolution_max_patches", "is less than an image needs",
                   fmt::format("use {} or more", std::max<int64_t>(4, model.dynamic_resolution_min_patches)));
  if (model.use_tile_tags && model.max_num_tiles > 12)
    builder.reject("model.max_num_tiles", "tags name twelve tiles at most",
                   "use 12, or leave out --use-tile-tags");
  if (!model.language_model_type.empty() && model.vision_tower == VisionTowerKind::clip &&
      changes_tower(builder, "model.language_model_type"))
    builder.reject("model.language_model_type",
                   "the model that is read says which decoder and projector there are", "leave it out");
}

void tower_data(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const DatasetConfig& data = config.dataset;
  if (builder.purpose == Purpose::forward) return;
  if (!config.model.has_tower()) {
    if (data.dataloader_type == DataloaderType::external)
      builder.reject("dataset.dataloader_type", "is for loaders of images, which a vision tower reads",
                     "use single or cyclic");
    return;
  }
  if (data.packing != Packing::none)
    builder.reject("dataset.packing", "does not go with images", "use --packing-buffer-size 64 instead");
  if (data.packing_buffer_size > 0 && config.model.vision_bidirectional)
    builder.reject("dataset.packing_buffer_size", "tokens of one image see each other, and are not packed",
                   "use 0");
  for (const auto& [name, on] : {std::pair{"dataset.fim_data", data.fim_data},
                                 {"dataset.inter_document_masking", data.inter_document_masking}})
    if (on) builder.reject(name, "does not go with images", "leave it out");
}

constexpr Rule kVisionRules[] = {
    {"tower_sizes",
     "model.vision_tower model.vision_hidden_size model.vision_num_attention_heads "
     "model.vision_ffn_hidden_size "
     "model.vision_output_size model.hidden_size model.image_token_id model.vocab_size "
     "model.vision_tokens_per_image "
     "model.vision_image_size model.vision_image_width model.vision_patch_size "
     "model.vision_pixel_shuffle model.vision_class_token "
     "model.tensor_model_parallel_size",
     "a vision tower's sizes fit together and are shared out evenly", tower_sizes},
    {"tower_layouts",
     "model.vision_tower model.model_type model.vision_bidirectional model.context_parallel_size "
     "model.mtp_num_layers model.cuda_graph_impl model.non_active_ranks_per_dp model.tp_spares "
     "model.freeze_language_model model.freeze_vision_model model.freeze_vision_projection",
     "models with a vision tower train under layouts that its images allow", tower_layouts},
    {"tower_ranks",
     "model.vision_tower model.tensor_model_parallel_size run.llm_dp run.llm_offset run.encoder_tp "
     "run.encoder_dp",
     "a layout that names the tower's ranks names the language model's", tower_ranks},
    {"tower_texts",
     "model.vision_tower model.use_tile_tags model.max_num_tiles model.language_model_type model.use_tiling "
     "model.dynamic_resolution model.dynamic_resolution_min_patches model.dynamic_resolution_max_patches",
     "tiles and decoders are such as the flags can name", tower_texts},
    {"tower_data",
     "model.vision_tower model.vision_bidirectional dataset.dataloader_type dataset.packing "
     "dataset.packing_buffer_size dataset.fim_data "
     "dataset.inter_document_masking",
     "rows with images are packed in their own way", tower_data},
};

}  // namespace

std::span<const Rule> vision_rules() { return kVisionRules; }

}  // namespace megatron
