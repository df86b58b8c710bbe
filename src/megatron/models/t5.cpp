#include "megatron/models/t5.h"

#include "megatron/autograd/recompute.h"
#include "megatron/models/model_sequences.h"
#include "megatron/ops/elementwise.h"
#include "megatron/parallel/tensor/split_saved.h"
#include "megatron/parallel/tensor/vocab_cross_entropy.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

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

Tensor sum_of_stream(RankContext& ctx, const Residual& residual) {
  return residual.update ? ops::add(ctx, residual.hidden, residual.update) : residual.hidden;
}

}  // namespace

T5Model::Stack::Stack(const std::string& name, const ModelConfig& config, const ModelParallel& parallel,
                      const ModelSlice& slice, int64_t before, bool cross)
    : tp(parallel.tensor) {
  if (config.position_embedding_type == PositionEmbedding::relative) {
    require(slice.embedding && slice.head, "t5: relative positions belong to all stages; use one");
    positions = std::make_unique<RelativeBias>(name + "_relative_pos_emb", config, parallel.tensor);
    positions_unit = std::make_unique<ParameterUnit>(*positions);
  }
  const int64_t all = before + config.num_layers;
  const ModelConfig longer = continue_patterns(config, all);
  first_layer = std::max(before, slice.first_layer);
  const int64_t end = std::min(all, slice.first_layer + slice.layers);
  for (int64_t i = first_layer; i < end; ++i) {
    layers.push_back(std::make_unique<TransformerLayer>(name + ".layers." + std::to_string(i - before), i,
                                                        longer, parallel, cross));
    layer_units.push_back(std::make_unique<ParameterUnit>(*layers.back()));
  }
  if (layers.empty() || end < all) return;
  final_norm = std::make_unique<Norm>(name + ".final_layernorm", config.hidden_size, config, parallel.tensor);
  final_unit = std::make_unique<ParameterUnit>(*final_norm);
}

Tensor T5Model::Stack::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                               const LayerObserver& on_layer) {
  Residual residual{x, {}};
  for (size_t i = 0; i < layers.size();) {
    const size_t left = layers.size() - i;
    size_t region = ctx.tape ? static_cast<size_t>(plan.region_at(static_cast<int64_t>(i))) : 0;
    if ((region = std::min(region, left)) > 0)
      residual = {run_region(ctx, i, region, residual, seq), {}};
    else
      use_unit(ctx, *layer_units[i], [&] { layers[i]->forward(ctx, residual, seq); });
    i += std::max<size_t>(1, region);
    if (on_layer) on_layer(first_layer + static_cast<int64_t>(i) - 1, sum_of_stream(ctx, residual));
  }
  if (!final_norm) return sum_of_stream(ctx, residual);
  return use_unit(ctx, *final_unit, [&] { return final_norm->forward(ctx, residual); });
}

// Layers that keep nothing but what they read: the stream, and where it is learned the bias of positions and
// the encoder's states.
Tensor T5Model::Stack::run_region(RankContext& ctx, size_t first, size_t count, const Residual& residual,
                                  const SeqInfo& seq) {
  std::vector<Tensor> inputs = {sum_of_stream(ctx, residual)};
  const bool bias = seq.attention_bias.defined(), states = seq.encoder_states.defined();
  if (bias) inputs.push_back(seq.attention_bias);
  if (states) inputs.push_back(seq.encoder_states);
  SplitSaved split(tp);
  PackerScope scope(ctx, plan.split_inputs ? &split : ctx.packer);
  return recompute(ctx, inputs,
                   [this, first, count, seq, bias, states](RankContext& c, std::span<const Tensor> given) {
                     SeqInfo own = seq;
                     if (bias) own.attention_bias = given[1];
                     if (states) own.encoder_states = given.back();
                     Residual inner{given[0], {}};
                     for (size_t i = first; i < first + count; ++i)
                       use_unit(c, *layer_units[i], [&] { layers[i]->forward(c, inner, own); });
                     return std::vector<Tensor>{sum_of_stream(c, inner)};
                   })[0];
}

void T5Model::Stack::visit(const ParameterVisitor& visitor) {
  if (positions) positions->visit(visitor);
  for (auto& layer : layers) layer->visit(visitor);
  if (final_norm) final_norm->visit(visitor);
}

T5Model::T5Model(const ModelConfig& config, const ModelParallel& parallel, DType dtype)
    : T5Model(config, {.layers = config.encoder_num_layers + config.decoder_num_layers, .mtp = false},
              parallel, dtype) {}

T5Model::T5Model(const ModelConfig& config, const ModelSlice& slice, const ModelParallel& parallel,
                 DType dtype)
    : config_(config),
      parallel_(parallel),
      dtype_(dtype),
      slice_(slice),
      rows_(parallel.tensor, config.vocab_size),
      encoder_("encoder", encoder_config(config), parallel, slice, 0, false),
      decoder_("decoder", decoder_config(config), parallel, slice, config.encoder_num_layers, true) {
  if (slice.embedding) {
    embedding_ = std::make_unique<Embedding>("embedding", config, parallel.tensor);
    embedding_unit_ = std::make_unique<ParameterUnit>(*embedding_);
    embedding_unit_->needed_in_backward = config.embedding_layernorm;
    embedding_unit_->uses = 2;  // encoder and decoder
  }
  if (!slice.head) return;
  const bool tied = config.share_embeddings_and_output_weights;
  if (!tied || !embedding_) {
    // A copy of a tied weight has the embedding's name, so that both start from the same values.
    const Initializer initializer =
        tied ? Initializer::normal(config.embedding_init_method_std.value_or(config.init_method_std))
             : input_initializer(config);
    output_ =
        std::make_unique<Parameter>(tied ? "embedding.word_embeddings.weight" : "lm_head.output_layer.weight",
                                    vocabulary_shard(config, parallel.tensor), initializer);
    output_->tied_copy = tied;
  }
  if (config.output_layer_bias)
    output_bias_ =
        std::make_unique<Parameter>("lm_head.output_layer.bias",
                                    vocabulary_bias_shard(config, parallel.tensor), Initializer::constant(0));
  output_unit_ = std::make_unique<ParameterUnit>(output_weight());
  if (output_bias_) output_unit_->parameters.push_back(output_bias_.get());
}

SeqInfo T5Model::sequences(RankContext& ctx, const TokenRows& rows) const {
  return model_sequences(ctx, rows, config_, parallel_.context, dtype_);
}

// The source's rows in the step of the decoder's.
SeqInfo T5Model::source_sequences(RankContext& ctx, const MicroBatch& micro) const {
  const auto mask = micro.extra.find("encoder_mask");
  const Tensor& given = mask != micro.extra.end() ? mask->second : micro.extra.at("encoder_ids");
  SeqInfo seq = sequences(ctx, {.rows = given.size(0), .length = given.size(1), .documents = {}});
  seq.training = micro.seq.training;
  seq.seed = micro.seq.seed;
  seq.step = micro.seq.step;
  seq.step_offset = micro.seq.step_offset;
  seq.batch_begin = micro.seq.batch_begin;
  seq.aux_loss_weight = micro.seq.aux_loss_weight;
  return seq;
}

// What hides the padding of the source: [batch, 1, queries, keys]; undefined where there is none.
Tensor T5Model::source_bias(RankContext& ctx, const MicroBatch& micro, int64_t queries) const {
  const auto mask = micro.extra.find("encoder_mask");
  return mask != micro.extra.end() ? mask_bias(ctx, mask->second, queries, dtype_) : Tensor{};
}

Tensor T5Model::embed(RankContext& ctx, const Tensor& ids, const SeqInfo& seq) {
  return use_unit(ctx, *embedding_unit_, [&] { return embedding_->forward(ctx, ids, seq); });
}

Tensor T5Model::run_encoder(RankContext& ctx, const Tensor& hidden, SeqInfo seq, const MicroBatch& micro,
                            const LayerObserver& on_layer) {
  if (micro.encoded && *micro.encoded) return *micro.encoded;
  seq.attention_bias = source_bias(ctx, micro, seq.length);
  if (encoder_.positions) {
    const Tensor positions = use_unit(ctx, *encoder_.positions_unit, [&] {
      return encoder_.positions->forward(ctx, seq.length, seq.length);
    });
    seq.attention_bias = seq.attention_bias ? ops::add(ctx, positions, seq.attention_bias) : positions;
  }
  Tensor states = encoder_.forward(ctx, hidden, seq, on_layer);
  if (micro.encoded) *micro.encoded = states;
  return states;
}

Tensor T5Model::run_decoder(RankContext& ctx, const Tensor& hidden, const Tensor& states,
                            const MicroBatch& micro, const LayerObserver& on_layer) {
  SeqInfo seq = micro.seq;
  if (decoder_.positions)
    seq.attention_bias = use_unit(ctx, *decoder_.positions_unit,
                                  [&] { return decoder_.positions->forward(ctx, seq.length, seq.length); });
  seq.encoder_states = states;
  seq.encoder_bias = source_bias(ctx, micro, seq.length);
  const Tensor result = decoder_.forward(ctx, hidden, seq, on_layer);
  return slice_.head && config_.output_multiplier ? ops::scale(ctx, result, *config_.output_multiplier)
                                                  : result;
}

std::vector<std::string> T5Model::extra_inputs() const {
  return slice_.embedding ? std::vector<std::string>{"encoder_mask", "encoder_ids"}
                          : std::vector<std::string>{"encoder_mask"};
}

StageTensors T5Model::run_stage(RankContext& ctx, const StageTensors& input, const MicroBatch& micro,
                                const LayerObserver& on_layer) {
  const SeqInfo source = source_sequences(ctx, micro);
  StageTensors streams = input;
  if (slice_.embedding) {
    const Tensor& ids = micro.extra.at("encoder_ids");
    streams = {embed(ctx, ids.view({ids.numel()}), source), embed(ctx, micro.ids, micro.seq)};
  }
  if (!encoder_.layers.empty()) streams[0] = run_encoder(ctx, streams[0], source, micro, on_layer);
  if (encoder_.final_norm) std::swap(streams[0], streams[1]);
  if (!decoder_.layers.empty()) streams[0] = run_decoder(ctx, streams[0], streams[1], micro, on_layer);
  if (slice_.head) streams.resize(1);
  return streams;
}

VocabLossOptions T5Model::loss_options(RankContext& ctx) {
  return {.vocab_size = config_.vocab_size,
          .fp8 = output_weight().fp8.get(),
          .bias = output_bias_ ? output_bias_->get(ctx) : Weight{},
          .rows = &rows_};
}

Tensor T5Model::token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) {
  return use_unit(ctx, *output_unit_, [&] {
    return vocab_parallel_loss(ctx, hidden, output_weight().get(ctx), labels, parallel_.tensor,
                               loss_options(ctx));
  });
}

Tensor T5Model::loss_sum(RankContext& ctx, const Tensor& hidden, const Tensor& labels,
                         const Tensor& weights) {
  return use_unit(ctx, *output_unit_, [&] {
    return vocab_parallel_loss_sum(ctx, hidden, output_weight().get(ctx), labels, weights, parallel_.tensor,
                                   loss_options(ctx));
  });
}

Tensor T5Model::logits(RankContext& ctx, const Tensor& hidden) {
  return use_unit(ctx, *output_unit_, [&] {
    return vocab_parallel_logits(ctx, hidden, output_weight().get(ctx), parallel_.tensor, loss_options(ctx));
  });
}

Tensor T5Model::logit_losses(RankContext& ctx, const Tensor& logits, const Tensor& labels) {
  return vocab_parallel_cross_entropy(ctx, logits, labels, parallel_.tensor,
                                      {.vocab_size = config_.vocab_size, .rows = &rows_});
}

Tensor T5Model::logit_divergence(RankContext& ctx, const Tensor& logits, Tensor teacher, const Tensor& labels,
                                 double temperature) {
  return vocab_parallel_kl_divergence(ctx, logits, std::move(teacher), labels, temperature, parallel_.tensor,
                                      {.vocab_size = config_.vocab_size, .rows = &rows_});
}

ops::Likeliest T5Model::likeliest(RankContext& ctx, const Tensor& logits, int64_t count) {
  return ops::likeliest_tokens(
      ctx, logits, count,
      vocab_columns(logits.size(1), parallel_.tensor, {.vocab_size = config_.vocab_size, .rows = &rows_}));
}

Tensor T5Model::completed_logits(RankContext& ctx, const Tensor& logits, const ops::Likeliest& teacher) {
  return ops::completed_logits(
      ctx, logits, teacher,
      vocab_columns(logits.size(1), parallel_.tensor, {.vocab_size = config_.vocab_size, .rows = &rows_}));
}

template <class F>
void T5Model::for_each_layer(F&& use) {
  for (Stack* stack : {&encoder_, &decoder_})
    for (auto& layer : stack->layers) use(*layer);
}

void T5Model::replace_mixers(const MixerFactory&) {
  fail("T5: its token mixers cannot be replaced; use a decoder");
}

void T5Model::set_activation_plan(const ActivationPlan& plan) {
  for (Stack* stack : {&encoder_, &decoder_}) {
    stack->plan = plan;
    int64_t index = 0;
    for (auto& layer : stack->layers) layer->set_activation_plan(plan.of_layer(index++));
  }
}

std::vector<ParameterUnit*> T5Model::units() {
  std::vector<ParameterUnit*> list;
  const auto add = [&](const std::unique_ptr<ParameterUnit>& unit) {
    if (unit) list.push_back(unit.get());
  };
  add(embedding_unit_);
  for (Stack* stack : {&encoder_, &decoder_}) {
    add(stack->positions_unit);
    for (auto& unit : stack->layer_units) add(unit);
    add(stack->final_unit);
  }
  add(output_unit_);
  return list;
}

Parameter* T5Model::tied_weight() {
  if (!config_.share_embeddings_and_output_weights) return nullptr;
  return embedding_ ? &embedding_->table() : output_.get();
}

void T5Model::finish_batch(RankContext& ctx) {
  for_each_layer([&](TransformerLayer& layer) { layer.finish_batch(ctx); });
}

void T5Model::update_expert_bias(RankContext& ctx, const Tensor& gate) {
  for_each_layer([&](TransformerLayer& layer) { layer.update_expert_bias(ctx, gate); });
}

std::vector<AuxLossSum> T5Model::take_losses() {
  std::vector<AuxLossSum> all;
  for_each_layer([&](TransformerLayer& layer) {
    for (AuxLossSum& loss : layer.take_losses()) all.push_back(std::move(loss));
  });
  return all;
}

void T5Model::visit(const ParameterVisitor& visitor) {
  if (embedding_) embedding_->visit(visitor);
  encoder_.visit(visitor);
  decoder_.visit(visitor);
  if (output_) visitor(*output_);
  if (output_bias_) visitor(*output_bias_);
}

}  // namespace megatron
