#include "megatron/models/gpt.h"

#include "megatron/autograd/recompute.h"
#include "megatron/models/elastic/elastic_masks.h"
#include "megatron/models/elastic/elastic_router.h"
#include "megatron/models/model_sequences.h"
#include "megatron/models/vision_language.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/reduce.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/split_saved.h"
#include "megatron/parallel/tensor/vocab_cross_entropy.h"
#include "megatron/transformer/elastic_region.h"
#include "megatron/transformer/hidden_state_mixing.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/mup.h"

namespace megatron {
namespace {

// Whether the residual stream is wider than the rest.
DType stream_dtype(const ModelConfig& config, DType dtype) {
  return config.fp32_residual_connection ? accumulation_dtype(dtype) : dtype;
}

// What logits are made of.
Tensor for_logits(RankContext& ctx, const Tensor& hidden, const ModelConfig& config) {
  const double factor = config.output_multiplier.value_or(1);
  return factor == 1 ? hidden : ops::scale(ctx, hidden, factor);
}

}  // namespace

GptModel::GptModel(const ModelConfig& config, const ModelSlice& slice, const ModelParallel& parallel,
                   DType dtype, Embedding* embedding, std::shared_ptr<const ElasticSpec> elastic)
    : config_(with_mup(config)),
      slice_(slice),
      parallel_(parallel),
      dtype_(dtype),
      rows_(parallel.tensor, config.vocab_size) {
  if (slice.embedding) embedding_ = std::make_unique<Embedding>("embedding", config_, parallel.tensor);
  if (slice.embedding && config_.has_tower())
    tower_ = std::make_unique<VisionTower>(config_, parallel, dtype);
  for (int64_t i = slice.first_layer; i < slice.first_layer + slice.layers; ++i)
    layers_.push_back(
        std::make_unique<TransformerLayer>("decoder.layers." + std::to_string(i), i, config_, parallel));
  const bool predicts = slice.mtp && config_.mtp_num_layers > 0;
  if (config_.mtp_num_layers > 0 ? slice.mtp : slice.head) {
    ModelConfig unscaled = config_;  // MTP layers come behind it
    unscaled.output_multiplier.reset();
    final_ = std::make_unique<OutputStage>(unscaled, parallel_.tensor);
  }
  if (predicts) make_mtp_layers(embedding_ ? embedding_.get() : embedding);
  if (slice.head) make_head(embedding);
  if (elastic) make_elastic(std::move(elastic));
  make_units();
}

GptModel::~GptModel() = default;

void GptModel::make_elastic(std::shared_ptr<const ElasticSpec> elastic) {
  if (elastic->settings.freeze_model) visit([](Parameter& parameter) { parameter.trainable = false; });
  elastic_masks_ = std::make_unique<ElasticMasks>(elastic, config_, parallel_);
  if (slice_.embedding) elastic_router_ = std::make_unique<ElasticRouter>(elastic, parallel_, dtype_);
}

void GptModel::make_head(Embedding* embedding) {
  if (config_.masked_lm_head || config_.output_layer_bias)
    output_bias_ = std::make_unique<Parameter>(
        "output_layer.bias", vocabulary_bias_shard(config_, parallel_.tensor), Initializer::constant(0));
  bool tied = config_.share_embeddings_and_output_weights;
  if (tied && embedding_) return;
  if (tied && mtp_embedding_) {
    shared_ = &mtp_embedding_->table();
    return;
  }
  if (tied && embedding) {
    shared_ = &embedding->table();
    return;
  }
  // The last stage's copy of a tied weight has the embedding's name, so that both start from the same values.
  const Initializer initializer =
      tied || config_.use_mup
          ? Initializer::normal(config_.embedding_init_method_std.value_or(config_.init_method_std))
          : input_initializer(config_);
  output_ = std::make_unique<Parameter>(tied ? "embedding.word_embeddings.weight" : "output_layer.weight",
                                        vocabulary_shard(config_, parallel_.tensor), initializer);
  output_->tied_copy = tied;
  output_->quantizable = true;
}

void GptModel::make_mtp_layers(Embedding* embedding) {
  ModelConfig own = config_;
  if (config_.mtp_use_repeated_layer)  // its balancing losses are added once for each use
    for (double& coefficient : own.moe_aux_loss_coeff)
      coefficient /= static_cast<double>(config_.mtp_num_layers);
  for (int64_t i = 0; i < (config_.mtp_use_repeated_layer ? 1 : config_.mtp_num_layers); ++i)
    mtp_.push_back(std::make_unique<MtpLayer>("mtp.layers." + std::to_string(i), i, own, parallel_));
  mtp_embedding_ = embedding;
  if (embedding) return;
  mtp_copy_ = std::make_unique<Embedding>("embedding", config_, parallel_.tensor);
  mtp_copy_->table().tied_copy = true;
  mtp_embedding_ = mtp_copy_.get();
}

void GptModel::set_activation_plan(const ActivationPlan& plan) {
  plan_ = plan;
  int64_t index = 0;
  if (tower_ && config_.recompute_vision) tower_->set_activation_plan(plan);
  for (auto& layer : layers_) layer->set_activation_plan(plan.of_layer(index++));
  for (auto& layer : mtp_) layer->set_activation_plan(plan.of_layer(index++));
}

void GptModel::make_units() {
  if (embedding_) {
    embedding_unit_ = std::make_unique<ParameterUnit>(*embedding_);
    embedding_unit_->needed_in_backward = config_.embedding_layernorm;
  }
  if (elastic_router_ && !elastic_router_->parameters().empty())
    elastic_unit_ = std::make_unique<ParameterUnit>(*elastic_router_);
  for (auto& layer : layers_) layer_units_.push_back(std::make_unique<ParameterUnit>(*layer));
  if (final_) final_unit_ = std::make_unique<ParameterUnit>(*final_);
  if (mtp_embedding_ && !embedding_) {
    mtp_embedding_unit_ = std::make_unique<ParameterUnit>(*mtp_embedding_);
    mtp_embedding_unit_->needed_in_backward = config_.embedding_layernorm;
  }
  for (auto& layer : mtp_) mtp_units_.push_back(std::make_unique<ParameterUnit>(*layer));
  const int64_t depths = mtp_.empty() ? 0 : config_.mtp_num_layers;
  if (embedding_unit_) embedding_unit_->uses += depths;
  if (mtp_embedding_unit_) mtp_embedding_unit_->uses = depths;
  if (mtp_.size() == 1) mtp_units_[0]->uses = depths;
  if (!slice_.head) return;
  output_unit_ = std::make_unique<ParameterUnit>(output_weight());
  if (!config_.mtp_detach_heads) output_unit_->uses += depths;
  if (output_bias_) output_unit_->parameters.push_back(output_bias_.get());
}

void GptModel::replace_mixers(const MixerFactory& make) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    auto mixer = make(slice_.first_layer + static_cast<int64_t>(i));
    if (!mixer) continue;
    layers_[i]->replace_mixer(std::move(mixer));
    layer_units_[i] = std::make_unique<ParameterUnit>(*layers_[i]);
  }
}

std::vector<ParameterUnit*> GptModel::units() {
  std::vector<ParameterUnit*> list;
  if (embedding_unit_) list.push_back(embedding_unit_.get());
  if (elastic_unit_) list.push_back(elastic_unit_.get());
  if (tower_)
    for (ParameterUnit* unit : tower_->units()) list.push_back(unit);
  for (auto& unit : layer_units_) list.push_back(unit.get());
  if (final_unit_) list.push_back(final_unit_.get());
  if (mtp_embedding_unit_) list.push_back(mtp_embedding_unit_.get());
  for (auto& unit : mtp_units_) list.push_back(unit.get());
  if (output_unit_) list.push_back(output_unit_.get());
  return list;
}

SeqInfo GptModel::sequences(RankContext& ctx, const TokenRows& rows) const {
  return model_sequences(ctx, rows, config_, parallel_.context, dtype_);
}

SeqInfo GptModel::sequences(RankContext& ctx, const SequenceBatch& batch) const {
  return model_sequences(ctx, batch, config_, dtype_);
}

CacheShapes GptModel::cache_shapes() const {
  CacheShapes shapes;
  for (size_t i = 0; i < layers_.size(); ++i)
    if (const TokenMixer* mixer = layers_[i]->mixer())
      shapes.emplace(slice_.first_layer + static_cast<int64_t>(i), mixer->cache_shape());
  return shapes;
}

Tensor GptModel::embed(RankContext& ctx, const Tensor& ids, const SeqInfo& seq) {
  const TraceRange range(ctx.tracer, "embedding");
  return use_unit(ctx, *embedding_unit_, [&] { return embedding_->forward(ctx, ids, seq); });
}

std::vector<std::string> GptModel::extra_inputs() const {
  if (config_.model_type != ModelType::bert) return {};
  std::vector<std::string> names = {"padding_mask"};
  if (slice_.embedding && config_.num_tokentypes > 0) names.emplace_back("token_types");
  if (slice_.head && config_.bert_binary_head) names.emplace_back("is_random");
  return names;
}

Tensor GptModel::choose_widths(RankContext& ctx, const SeqInfo& seq, Tensor& hidden) {
  const TraceRange range(ctx.tracer, "elastic_router");
  const auto choose = [&] { return elastic_router_->forward(ctx, seq); };
  const Tensor choice = elastic_unit_ ? use_unit(ctx, *elastic_unit_, choose) : choose();
  hidden = elastic_router_->with_budget_loss(ctx, hidden, choice, seq);
  return choice;
}

StageTensors GptModel::run_stage(RankContext& ctx, const StageTensors& input, const MicroBatch& micro,
                                 const LayerObserver& on_layer) {
  SeqInfo seq = micro.seq;
  if (auto mask = micro.extra.find("padding_mask"); mask != micro.extra.end())
    seq.attention_bias = mask_bias(ctx, mask->second, seq.length, dtype_);
  if (auto types = micro.extra.find("token_types"); types != micro.extra.end())
    seq.token_types = types->second.view({types->second.numel()});
  StageTensors states = input;
  if (states.empty()) states.emplace_back();
  Tensor hidden = embedding_ ? embed(ctx, micro.ids, seq) : input[0];
  if (tower_) hidden = with_images(ctx, hidden, micro);
  Tensor choice;  // of widths: it travels behind the hidden states
  if (elastic_masks_) {
    choice = elastic_router_ ? choose_widths(ctx, seq, hidden)
                             : ops::cast(ctx, input.back(), accumulation_dtype(dtype_));
    seq.elastic = elastic_masks_->make(ctx, choice);
    states.resize(1);
  }
  hidden = ops::cast(ctx, hidden, stream_dtype(config_, dtype_));
  const int64_t streams = config_.enable_mhc_connections ? config_.mhc_num_residual_streams : 1;
  if (embedding_ && streams > 1) hidden = expand_streams(ctx, hidden, streams);
  Residual residual = run_layers(ctx, hidden, seq, on_layer);
  if (final_ && streams > 1) residual = {contract_streams(ctx, residual.sum(ctx), streams), {}};
  if (!final_) {
    states[0] = residual.sum(ctx);
    if (choice) states.push_back(choice);
  } else {
    Tensor sentence;
    const Tensor last =
        use_unit(ctx, *final_unit_, [&] { return final_->forward(ctx, residual, &seq, &sentence); });
    states[0] = for_logits(ctx, last, config_);
    if (sentence) states.push_back(std::move(sentence));
    if (slice_.mtp && !micro.mtp.empty())
      for (const Tensor& state : run_mtp(ctx, last, micro.mtp, seq))
        states.push_back(for_logits(ctx, state, config_));
  }
  // What is sent on is as wide as the stream.
  for (Tensor& state : states)
    state = ops::cast(ctx, state, slice_.head ? dtype_ : stream_dtype(config_, dtype_));
  return states;
}

Tensor GptModel::with_images(RankContext& ctx, const Tensor& text, const MicroBatch& micro) {
  if (micro.image_grids.empty()) return text;
  const Tensor rows = tower_->forward(ctx, micro.extra.at("pixels"), micro.image_grids);
  return join_images(ctx, text, rows, micro.extra.at("image_rows"), parallel_.tensor);
}

Residual GptModel::run_layers(RankContext& ctx, const Tensor& hidden, const SeqInfo& seq,
                              const LayerObserver& on_layer) {
  Residual residual{hidden, {}};
  if (plan_.offloads() && ctx.tape) {
    if (!host_) host_ = std::make_unique<HostOffload>(ctx, plan_.offload_options);
    host_->start_pass();
  }
  for (int64_t i = 0; i < slice_.layers;) {
    int64_t region = ctx.tape ? std::min(plan_.region_at(i), slice_.layers - i) : 0;
    if (region > 0)
      residual = {run_region(ctx, i, region, residual, seq), {}};
    else
      run_layer(ctx, i, residual, seq);
    i += std::max<int64_t>(1, region);
    if (on_layer) on_layer(slice_.first_layer + i - 1, residual.sum(ctx));
  }
  return residual;
}

void GptModel::run_layer(RankContext& ctx, int64_t i, Residual& residual, const SeqInfo& seq) {
  PackerScope scope = offload_scope(ctx, host_.get(), i < plan_.offloaded_layers);
  auto at = static_cast<size_t>(i);
  use_unit(ctx, *layer_units_[at], [&] { layers_[at]->forward(ctx, residual, seq, host_.get()); });
}

// Layers that keep nothing but their input. The stream enters and leaves as one tensor, so that one is kept.
Tensor GptModel::run_region(RankContext& ctx, int64_t first, int64_t count, const Residual& residual,
                            const SeqInfo& seq) {
  Tensor stream = residual.sum(ctx);
  SplitSaved split(parallel_.tensor);
  PackerScope scope(ctx, plan_.split_inputs ? &split : ctx.packer);
  return recompute_within(ctx, stream, seq,
                          [this, first, count](RankContext& c, const Tensor& x, const SeqInfo& within) {
                            Residual inner{x, {}};
                            for (int64_t i = first; i < first + count; ++i) run_layer(c, i, inner, within);
                            return inner.sum(c);
                          });
}

VocabLossOptions GptModel::loss_options(RankContext& ctx) {
  return {.vocab_size = config_.vocab_size,
          .logit_softcap = config_.final_logit_softcapping.value_or(0),
          .wide_logits = config_.output_logit_dtype == "fp32",
          .fp8 = output_weight().fp8.get(),
          .bias = output_bias_ ? output_bias_->get(ctx) : Weight{},
          .rows = &rows_};
}

// Losses of MTP layers, which leave the output layer alone where they are detached.
Tensor GptModel::token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) {
  return use_unit(ctx, *output_unit_, [&] {
    Weight weight = output_weight().get(ctx);
    VocabLossOptions options = loss_options(ctx);
    if (config_.mtp_detach_heads) weight.accumulator = options.bias.accumulator = nullptr;
    return vocab_parallel_loss(ctx, hidden, weight, labels, parallel_.tensor, options);
  });
}

Tensor GptModel::loss_sum(RankContext& ctx, const Tensor& hidden, const Tensor& labels,
                          const Tensor& weights) {
  const TraceRange range(ctx.tracer, "output_layer");
  ctx.show("output_layer.weight", "input0", hidden);
  return use_unit(ctx, *output_unit_, [&] {
    return vocab_parallel_loss_sum(ctx, hidden, output_weight().get(ctx), labels, weights, parallel_.tensor,
                                   loss_options(ctx));
  });
}

Tensor GptModel::logits(RankContext& ctx, const Tensor& hidden) {
  return use_unit(ctx, *output_unit_, [&] {
    return vocab_parallel_logits(ctx, hidden, output_weight().get(ctx), parallel_.tensor, loss_options(ctx));
  });
}

Tensor GptModel::logit_losses(RankContext& ctx, const Tensor& logits, const Tensor& labels) {
  return vocab_parallel_cross_entropy(ctx, logits, labels, parallel_.tensor,
                                      {.vocab_size = config_.vocab_size, .rows = &rows_});
}

Tensor GptModel::logit_divergence(RankContext& ctx, const Tensor& logits, Tensor teacher,
                                  const Tensor& labels, double temperature) {
  return vocab_parallel_kl_divergence(ctx, logits, std::move(teacher), labels, temperature, parallel_.tensor,
                                      {.vocab_size = config_.vocab_size, .rows = &rows_});
}

ops::Likeliest GptModel::likeliest(RankContext& ctx, const Tensor& logits, int64_t count) {
  return ops::likeliest_tokens(
      ctx, logits, count,
      vocab_columns(logits.size(1), parallel_.tensor, {.vocab_size = config_.vocab_size, .rows = &rows_}));
}

Tensor GptModel::completed_logits(RankContext& ctx, const Tensor& logits, const ops::Likeliest& teacher) {
  return ops::completed_logits(
      ctx, logits, teacher,
      vocab_columns(logits.size(1), parallel_.tensor, {.vocab_size = config_.vocab_size, .rows = &rows_}));
}

std::vector<Tensor> GptModel::run_mtp(RankContext& ctx, const Tensor& hidden,
                                      std::span<const MtpTokens> tokens, const SeqInfo& seq) {
  require(static_cast<int64_t>(tokens.size()) == config_.mtp_num_layers,
          "multi-token prediction: {} layers were given tokens for {}", config_.mtp_num_layers,
          tokens.size());
  std::vector<Tensor> states{config_.mtp_detach_heads ? hidden.detach() : hidden};
  for (int64_t depth = 0; depth < config_.mtp_num_layers; ++depth) {
    const bool mixes = config_.mtp_hsm && depth > 0 && seq.training;
    const Tensor before =
        mixes ? mix_hidden_states(ctx, states, seq, config_.num_layers + depth, parallel_.tensor)
              : states.back();
    states.push_back(run_mtp_layer(ctx, depth, tokens[static_cast<size_t>(depth)].ids, before, seq));
  }
  states.erase(states.begin());
  return states;
}

Tensor GptModel::run_mtp_layer(RankContext& ctx, int64_t depth, const Tensor& ids, const Tensor& before,
                               const SeqInfo& seq) {
  ParameterUnit& table = embedding_ ? *embedding_unit_ : *mtp_embedding_unit_;
  const size_t i = mtp_.size() == 1 ? 0 : static_cast<size_t>(depth);  // one for all
  Tensor embedded = use_unit(ctx, table, [&] { return mtp_embedding_->forward(ctx, ids, seq); });
  // Zeros take the gradient's place, so that the table's uses are as many as its buckets wait for.
  if (config_.mtp_detach_heads && ctx.tape)
    embedded = ops::add(ctx, embedded.detach(), ops::scale(ctx, embedded, 0));
  const Tensor stream = ops::cast(ctx, before, stream_dtype(config_, dtype_));
  return use_unit(ctx, *mtp_units_[i], [&] { return mtp_[i]->forward(ctx, embedded, stream, seq); });
}

CacheShapes GptModel::mtp_cache_shapes(int64_t depth) const {
  if (mtp_.empty()) return {};
  return mtp_[mtp_.size() == 1 ? 0 : static_cast<size_t>(depth)]->cache_shapes();
}

void GptModel::visit(const ParameterVisitor& visitor) {
  if (tower_) tower_->visit(visitor);
  if (embedding_) embedding_->visit(visitor);
  if (elastic_router_) elastic_router_->visit(visitor);
  for (auto& layer : layers_) layer->visit(visitor);
  if (final_) final_->visit(visitor);
  if (mtp_copy_) mtp_copy_->visit(visitor);
  for (auto& layer : mtp_) layer->visit(visitor);
  if (output_) visitor(*output_);
  if (output_bias_) visitor(*output_bias_);
}

std::vector<QkClipTarget*> GptModel::qk_clip_targets() {
  std::vector<QkClipTarget*> targets;
  for (auto& layer : layers_)
    if (QkClipTarget* target = layer->mixer() ? layer->mixer()->qk_clip_target() : nullptr)
      targets.push_back(target);
  return targets;
}

void GptModel::finish_batch(RankContext& ctx) {
  for (auto& layer : layers_) layer->finish_batch(ctx);
  for (auto& layer : mtp_) layer->finish_batch(ctx);
}

void GptModel::update_expert_bias(RankContext& ctx, const Tensor& gate) {
  if (!holds_base_biases_)
    for (auto& layer : layers_) layer->update_expert_bias(ctx, gate);
  if (!holds_mtp_biases_)
    for (auto& layer : mtp_) layer->update_expert_bias(ctx, gate);
}

std::vector<AuxLossSum> GptModel::take_losses() {
  std::vector<AuxLossSum> all;
  if (elastic_router_) all = elastic_router_->take_losses();
  const auto take = [&](auto& layer) {
    for (AuxLossSum& loss : layer.take_losses()) all.push_back(std::move(loss));
  };
  for (auto& layer : layers_) take(*layer);
  for (auto& layer : mtp_) take(*layer);
  return all;
}

Parameter* GptModel::tied_weight() {
  const bool tied = config_.share_embeddings_and_output_weights;
  if (!tied && config_.mtp_num_layers == 0) return nullptr;
  if (embedding_) return &embedding_->table();
  if (mtp_copy_) return &mtp_copy_->table();
  return tied ? output_.get() : nullptr;
}

}  // namespace megatron
