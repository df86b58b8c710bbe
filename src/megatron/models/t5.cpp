#include "megatron/models/t5.h"

#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/vocab_cross_entropy.h"

namespace megatron {
namespace {

ModelConfig encoder_config(ModelConfig config) {
  config.num_layers = config.encoder_num_layers;
  config.bidirectional_attention = true;
  return config;
}

ModelConfig decoder_config(ModelConfig config) {
  config.num_layers = config.decoder_num_layers;
  config.bidirectional_attention = false;
  return config;
}

}  // namespace

T5Model::Stack::Stack(const std::string& name, const ModelConfig& config, const ModelParallel& parallel,
                      bool cross)
    : positions(name + "_relative_pos_emb", config, parallel.tensor),
      final_norm(name + ".final_layernorm", config.hidden_size, config, parallel.tensor) {
  for (int64_t i = 0; i < config.num_layers; ++i)
    layers.push_back(std::make_unique<TransformerLayer>(name + ".layers." + std::to_string(i), i, config,
                                                        parallel, cross));
}

Tensor T5Model::Stack::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                               const LayerObserver& on_layer, int64_t first_layer) {
  Residual residual{x, {}};
  for (auto& layer : layers) {
    layer->forward(ctx, residual, seq);
    if (on_layer) on_layer(first_layer, ops::add(ctx, residual.hidden, residual.update));
    ++first_layer;
  }
  return final_norm.forward(ctx, residual);
}

void T5Model::Stack::visit(const ParameterVisitor& visitor) {
  positions.visit(visitor);
  for (auto& layer : layers) layer->visit(visitor);
  final_norm.visit(visitor);
}

T5Model::T5Model(const ModelConfig& config, const ModelParallel& parallel, DType dtype)
    : config_(config),
      parallel_(parallel),
      dtype_(dtype),
      embedding_("embedding", config, parallel.tensor),
      encoder_("encoder", encoder_config(config), parallel, false),
      decoder_("decoder", decoder_config(config), parallel, true) {
  require(config.position_embedding_type == PositionEmbedding::relative,
          "t5: positions must be relative (position_embedding_type)");
  if (!config.share_embeddings_and_output_weights)
    output_ =
        std::make_unique<Parameter>("lm_head.output_layer.weight", vocabulary_shard(config, parallel.tensor),
                                    Initializer::normal(config.init_method_std));
}

// What hides the padding of the source: [batch, 1, queries, keys]; undefined where there is none.
Tensor T5Model::mask(RankContext& ctx, const Source& source, int64_t queries) const {
  return source.lengths.empty() ? Tensor{}
                                : padding_bias(ctx, source.lengths, queries, source.length, dtype_);
}

Tensor T5Model::encode(RankContext& ctx, const Source& source) {
  SeqInfo seq = held_sequences(ctx, {.rows = source.batch, .length = source.length, .documents = {}},
                               parallel_.context);
  seq.training = source.training;
  seq.attention_bias = encoder_.positions.forward(ctx, source.length, source.length);
  if (Tensor hidden_keys = mask(ctx, source, source.length))
    seq.attention_bias = ops::add(ctx, seq.attention_bias, hidden_keys);
  return encoder_.forward(ctx, embedding_.forward(ctx, source.ids, seq), seq, source.on_layer, 0);
}

Tensor T5Model::decode(RankContext& ctx, const Tensor& ids, int64_t length, const Source& source,
                       const Tensor& states) {
  SeqInfo seq =
      held_sequences(ctx, {.rows = source.batch, .length = length, .documents = {}}, parallel_.context);
  seq.training = source.training;
  seq.attention_bias = decoder_.positions.forward(ctx, length, length);
  seq.encoder_states = states;
  seq.encoder_bias = mask(ctx, source, length);
  Tensor hidden = decoder_.forward(ctx, embedding_.forward(ctx, ids, seq), seq, source.on_layer,
                                   config_.encoder_num_layers);
  return config_.output_multiplier ? ops::scale(ctx, hidden, *config_.output_multiplier) : hidden;
}

Tensor T5Model::token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) {
  return vocab_parallel_loss(ctx, hidden, output_weight().get(ctx), labels, parallel_.tensor,
                             {.vocab_size = config_.vocab_size});
}

Tensor T5Model::logits(RankContext& ctx, const Tensor& hidden) {
  return ops::linear(ctx, enter_tensor_parallel(ctx, hidden, parallel_.tensor), output_weight().get(ctx));
}

void T5Model::visit(const ParameterVisitor& visitor) {
  embedding_.visit(visitor);
  encoder_.visit(visitor);
  decoder_.visit(visitor);
  if (output_) visitor(*output_);
}

}  // namespace megatron
