#include "megatron/config/resolve/inactive_slots.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

void stages_of_t5(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const ParallelConfig& parallel = builder.config.parallel;
  const int64_t stages = parallel.pipeline_model_parallel_size,
                layers = model.encoder_num_layers + model.decoder_num_layers;
  if (stages == 1) return;
  const char* key = "model.pipeline_model_parallel_size";
  if (model.position_embedding_type == PositionEmbedding::relative)
    builder.reject(key, "relative positions belong to the layers of all stages", "use 1");
  else if (parallel.virtual_pipeline_model_parallel_size > 1 ||
           !parallel.pipeline_model_parallel_layout.empty())
    builder.reject(key, "stages of an encoder and a decoder have one chunk each, of equally many layers",
                   "use 1");
  else if (layers % stages != 0)
    builder.reject(key, fmt::format("does not divide the {} layers of encoder and decoder", layers), "use 1");
}

// What BERT's and T5's layers, whose padding is masked, cannot do.
void masked_layouts(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  const bool t5 = model.encoder_num_layers > 0 && model.decoder_num_layers > 0;
  if (t5) stages_of_t5(builder);
  if (!model.masks_text() || builder.purpose == Purpose::forward) return;
  const ParallelConfig& parallel = config.parallel;
  if (parallel.context_parallel_size > 1)
    builder.reject("model.context_parallel_size", "sequences with masked padding are not split over ranks",
                   "use 1");
  const bool offloads =
      config.execution.cpu_offloading || config.execution.fine_grained_activation_offloading;
  if (t5 && offloads)
    builder.reject("model.model_type", "activations of an encoder and a decoder are not offloaded",
                   "leave out --cpu-offloading and --fine-grained-activation-offloading");
  if (t5 && config.execution.cuda_graph_impl == GraphImpl::full_iteration)
    builder.reject("model.cuda_graph_impl", "steps of an encoder and a decoder are not captured",
                   "leave it out");
  if (t5 && !model.layer_blocks.empty())
    builder.reject("model.heterogeneous_layers_config_encoded_json",
                   "describes the layers of a decoder alone", "leave it out");
  if (t5 && has_inactive_slots(parallel))
    builder.reject("model.model_type", "cross attention is not shared out among unequal replicas",
                   "leave out --non-active-ranks and --tp-spares");
  if (model.mtp_num_layers > 0)
    builder.reject("model.mtp_num_layers", "masked text has no next tokens to predict", "use 0");
  if (model.multi_latent_attention)
    builder.reject("model.multi_latent_attention", "masks no padding", "leave it out");
  if (model.experimental_attention_variant != AttentionVariant::none)
    builder.reject("model.experimental_attention_variant", "masks no padding", "leave it out");
  if (model.is_hybrid_model)
    builder.reject("model.is_hybrid_model", "states along the sequence see one direction alone",
                   "use --model-type gpt");
}

void masked_data(ConfigBuilder& builder) {
  const DatasetConfig& d = builder.config.dataset;
  if (!builder.config.model.masks_text() || builder.purpose == Purpose::forward) return;
  for (const auto& [name, on] : {std::pair{"dataset.sft", d.sft},
                                 {"dataset.fim_data", d.fim_data},
                                 {"dataset.reset_position_ids", d.reset_position_ids},
                                 {"dataset.reset_attention_mask", d.reset_attention_mask},
                                 {"dataset.eod_mask_loss", d.eod_mask_loss},
                                 {"dataset.inter_document_masking", d.inter_document_masking},
                                 {"dataset.replay", !d.replay.empty()}})
    if (on) builder.reject(name, "does not go with the masked samples of BERT and T5", "leave it out");
}

void masked_settings(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.model_type != ModelType::bert && model.num_tokentypes > 0 && builder.purpose != Purpose::forward)
    builder.reject("model.num_tokentypes", "BERT's data alone has types of tokens", "use 0");
  if (model.encoder_seq_length > 0 && model.encoder_seq_length != model.seq_length &&
      builder.purpose != Purpose::forward)
    builder.reject("model.encoder_seq_length", fmt::format("seq_length is {}", model.seq_length),
                   "leave it out");
  if (model.model_type != ModelType::t5) {
    if (model.position_embedding_type == PositionEmbedding::relative)
      builder.reject("model.position_embedding_type", "relative positions are T5's", "use rope");
    return;
  }
  if (builder.purpose == Purpose::forward) return;
  if (model.max_position_embeddings < model.decoder_seq_length)
    builder.reject("model.max_position_embeddings",
                   fmt::format("is less than decoder_seq_length = {}", model.decoder_seq_length),
                   fmt::format("use at least {}", model.decoder_seq_length));
}

constexpr Rule kMaskedRules[] = {
    {"masked_layouts",
     "model.model_type model.non_active_ranks_per_dp model.tp_spares model.context_parallel_size "
     "model.pipeline_model_parallel_size model.mtp_num_layers "
     "model.is_hybrid_model model.multi_latent_attention model.experimental_attention_variant "
     "model.cpu_offloading model.fine_grained_activation_offloading "
     "model.cuda_graph_impl model.heterogeneous_layers_config_encoded_json model.encoder_num_layers "
     "model.decoder_num_layers model.position_embedding_type model.virtual_pipeline_model_parallel_size "
     "model.pipeline_model_parallel_layout",
     "BERT and T5 are trained under layouts that keep sequences whole", masked_layouts},
    {"masked_data",
     "model.model_type dataset.sft dataset.fim_data dataset.reset_position_ids dataset.reset_attention_mask "
     "dataset.eod_mask_loss dataset.inter_document_masking dataset.replay",
     "BERT and T5 learn from masked samples alone", masked_data},
    {"masked_settings",
     "model.model_type model.num_tokentypes model.position_embedding_type model.encoder_seq_length "
     "model.seq_length "
     "model.decoder_seq_length model.max_position_embeddings",
     "types, lengths and positions suit the kind of model", masked_settings},
};

}  // namespace

std::span<const Rule> masked_rules() { return kMaskedRules; }

}  // namespace megatron
