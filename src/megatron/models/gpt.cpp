#include "megatron/models/gpt.h"

#include <cmath>

#include "megatron/autograd/recompute.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/rope.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/split_saved.h"
#include "megatron/parallel/tensor/vocab_cross_entropy.h"
#include "megatron/transformer/mup.h"

namespace megatron {
namespace {

int64_t rotated_channels(const ModelConfig& config) {
  if (config.multi_latent_attention) return config.qk_pos_emb_head_dim;
  return static_cast<int64_t>(static_cast<double>(config.kv_channels) * config.rotary_percent);
}

ops::RopeFrequencies rotary_frequencies(const ModelConfig& config, int64_t length) {
  ops::RopeScaling scaling;
  if (config.multi_latent_attention) {
    if (config.rope_type == RopeType::rope)
      return ops::rope_frequencies(rotated_channels(config), config.rotary_base);
    scaling.kind = ops::RopeScalingKind::Yarn;
    scaling.factor = config.rotary_scaling_factor;
    scaling.original_max_position = config.original_max_position_embeddings;
    scaling.beta_fast = config.beta_fast;
    scaling.beta_slow = config.beta_slow;
    scaling.mscale = config.mscale;
    scaling.mscale_all_dim = config.mscale_all_dim;
  } else if (config.position_embedding_type == PositionEmbedding::yarn) {
    scaling.kind = ops::RopeScalingKind::Yarn;
    scaling.factor = config.yarn_rotary_scaling_factor;
    scaling.original_max_position = config.yarn_original_max_position_embeddings;
    scaling.beta_fast = config.yarn_beta_fast;
    scaling.beta_slow = config.yarn_beta_slow;
    scaling.truncate = config.yarn_correction_range_round_to_int;
    scaling.mscale = config.yarn_mscale.value_or(0);
    scaling.mscale_all_dim = config.yarn_mscale_all_dim.value_or(0);
    scaling.attention_factor = config.yarn_attention_factor;
  } else if (!config.longrope_short_factor.empty()) {
    scaling.kind = ops::RopeScalingKind::LongRope;
    scaling.factor = config.longrope_scaling_factor;
    scaling.original_max_position = config.longrope_original_max_position_embeddings;
    scaling.attention_factor = config.longrope_attention_factor;
    scaling.short_factor = config.longrope_short_factor;
    scaling.long_factor = config.longrope_long_factor;
  } else if (config.dynamic_rope_factor) {
    scaling.kind = ops::RopeScalingKind::Dynamic;
    scaling.factor = *config.dynamic_rope_factor;
    scaling.max_position = config.max_position_embeddings;
  } else if (config.rope_scaling) {
    scaling.kind = ops::RopeScalingKind::Llama3;
    scaling.factor = config.rope_scaling_factor;
    scaling.low_freq_factor = config.rope_scaling_low_freq_factor;
    scaling.high_freq_factor = config.rope_scaling_high_freq_factor;
    scaling.original_max_position = config.rope_scaling_original_max_position_embeddings;
  } else if (config.seq_len_interpolation_factor) {
    scaling.kind = ops::RopeScalingKind::Linear;
    scaling.factor = *config.seq_len_interpolation_factor;
  }
  return ops::rope_frequencies(rotated_channels(config), config.rotary_base, scaling, length);
}

// 1 + β ln(1 + ⌊position / original length⌋) of every token.
Tensor query_scale(RankContext& ctx, const ModelConfig& config, const std::vector<int64_t>& positions,
                   DType dtype) {
  std::vector<double> factors;
  for (int64_t position : positions)
    factors.push_back(1 + *config.query_scaling_beta *
                              std::log1p(position / config.yarn_original_max_position_embeddings));
  auto count = static_cast<int64_t>(factors.size());
  return ops::cast(ctx, ctx.from_vector(factors, {count, 1, 1}), dtype);
}

Tensor total(RankContext& ctx, const Residual& residual) {
  return residual.update ? ops::add(ctx, residual.hidden, residual.update) : residual.hidden;
}

}  // namespace

GptModel::GptModel(const ModelConfig& config, const ModelSlice& slice, const ModelParallel& parallel,
                   DType dtype, Embedding* embedding)
    : config_(with_mup(config)), slice_(slice), parallel_(parallel), dtype_(dtype) {
  if (slice.embedding) embedding_ = std::make_unique<Embedding>("embedding", config_, parallel.tensor);
  for (int64_t i = slice.first_layer; i < slice.first_layer + slice.layers; ++i)
    layers_.push_back(
        std::make_unique<TransformerLayer>("decoder.layers." + std::to_string(i), i, config_, parallel));
  const bool predicts = slice.mtp && config_.mtp_num_layers > 0;
  if (config_.mtp_num_layers > 0 ? slice.mtp : slice.head)
    final_ = std::make_unique<OutputStage>(config_, parallel_.tensor);  // MTP layers come behind it
  if (predicts) make_mtp_layers(embedding_ ? embedding_.get() : embedding);
  if (slice.head) make_head(embedding);
  make_units();
}

void GptModel::make_head(Embedding* embedding) {
  if (config_.masked_lm_head)
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
  double deviation = tied || config_.use_mup
                         ? config_.embedding_init_method_std.value_or(config_.init_method_std)
                         : config_.init_method_std;
  output_ = std::make_unique<Parameter>(tied ? "embedding.word_embeddings.weight" : "output_layer.weight",
                                        vocabulary_shard(config_, parallel_.tensor),
                                        Initializer::normal(deviation));
  output_->tied_copy = tied;
}

void GptModel::make_mtp_layers(Embedding* embedding) {
  ModelConfig own = config_;
  if (config_.mtp_use_repeated_layer)  // its balancing losses are added once for each use
    for (double& coefficient : own.moe_aux_loss_coeff)
      coefficient /= static_cast<double>(config_.mtp_num_layers);
  for (int64_t i = 0; i < (config_.mtp_use_repeated_layer ? 1 : config_.mtp_num_layers); ++i)
    mtp_.push_back(std::make_unique<MtpLayer>("mtp.layers." + std::to_string(i), config_.num_layers + i, own,
                                              parallel_));
  mtp_embedding_ = embedding;
  if (embedding) return;
  mtp_copy_ = std::make_unique<Embedding>("embedding", config_, parallel_.tensor);
  mtp_copy_->table().tied_copy = true;
  mtp_embedding_ = mtp_copy_.get();
}

void GptModel::set_activation_plan(const ActivationPlan& plan) {
  plan_ = plan;
  int64_t index = 0;
  for (auto& layer : layers_) layer->set_activation_plan(plan.of_layer(index++));
  for (auto& layer : mtp_) layer->set_activation_plan(plan.of_layer(index++));
}

void GptModel::make_units() {
  if (embedding_) {
    embedding_unit_ = std::make_unique<ParameterUnit>(*embedding_);
    embedding_unit_->needed_in_backward = config_.embedding_layernorm;
  }
  for (auto& layer : layers_) layer_units_.push_back(std::make_unique<ParameterUnit>(*layer));
  if (final_) final_unit_ = std::make_unique<ParameterUnit>(*final_);
  if (mtp_embedding_ && !embedding_) {
    mtp_embedding_unit_ = std::make_unique<ParameterUnit>(*mtp_embedding_);
    mtp_embedding_unit_->needed_in_backward = config_.embedding_layernorm;
  }
  for (auto& layer : mtp_) mtp_units_.push_back(std::make_unique<ParameterUnit>(*layer));
  if (!slice_.head) return;
  output_unit_ = std::make_unique<ParameterUnit>(output_weight());
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
  for (auto& unit : layer_units_) list.push_back(unit.get());
  if (final_unit_) list.push_back(final_unit_.get());
  if (mtp_embedding_unit_) list.push_back(mtp_embedding_unit_.get());
  for (auto& unit : mtp_units_) list.push_back(unit.get());
  if (output_unit_) list.push_back(output_unit_.get());
  return list;
}

SeqInfo GptModel::sequences(RankContext& ctx, const TokenRows& rows) const {
  SeqInfo seq = held_sequences(ctx, rows, parallel_.context);
  auto type = config_.position_embedding_type;
  // Tokens of text have one position in all rows of multimodal ones.
  if (type == PositionEmbedding::rope || type == PositionEmbedding::yarn ||
      type == PositionEmbedding::mrope) {
    auto rotation =
        ops::rope_tables(ctx, seq.positions, rotary_frequencies(config_, rows.first + rows.length), dtype_);
    seq.rope_cos = rotation.cos;
    seq.rope_sin = rotation.sin;
  }
  if (config_.rotary_base_local) {
    auto local = ops::rope_tables(
        ctx, seq.positions, ops::rope_frequencies(rotated_channels(config_), *config_.rotary_base_local),
        dtype_);
    seq.local_cos = local.cos;
    seq.local_sin = local.sin;
  }
  if (config_.query_scaling_beta)
    seq.query_scale = query_scale(ctx, config_, held_positions(rows, parallel_.context), dtype_);
  return seq;
}

Tensor GptModel::forward(RankContext& ctx, const Tensor& input, const SeqInfo& seq,
                         const LayerObserver& on_layer) {
  return forward_from(ctx, embedding_ ? embed(ctx, input, seq) : input, seq, on_layer);
}

Tensor GptModel::embed(RankContext& ctx, const Tensor& ids, const SeqInfo& seq) {
  require(embedding_ != nullptr, "model: this chunk has no embedding");
  const TraceRange range(ctx.tracer, "embedding");
  return use_unit(ctx, *embedding_unit_, [&] { return embedding_->forward(ctx, ids, seq); });
}

Tensor GptModel::forward_from(RankContext& ctx, const Tensor& hidden, const SeqInfo& seq,
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
    if (on_layer) on_layer(slice_.first_layer + i - 1, total(ctx, residual));
  }
  if (final_) return use_unit(ctx, *final_unit_, [&] { return final_->forward(ctx, residual); });
  return total(ctx, residual);
}

void GptModel::run_layer(RankContext& ctx, int64_t i, Residual& residual, const SeqInfo& seq) {
  PackerScope scope = offload_scope(ctx, host_.get(), i < plan_.offloaded_layers);
  auto at = static_cast<size_t>(i);
  use_unit(ctx, *layer_units_[at], [&] { layers_[at]->forward(ctx, residual, seq, host_.get()); });
}

// Layers that keep nothing but their input. The stream enters and leaves as one tensor, so that one is kept.
Tensor GptModel::run_region(RankContext& ctx, int64_t first, int64_t count, const Residual& residual,
                            const SeqInfo& seq) {
  Tensor stream = total(ctx, residual);
  SplitSaved split(parallel_.tensor);
  PackerScope scope(ctx, plan_.split_inputs ? &split : ctx.packer);
  return recompute(ctx, {&stream, 1},
                   [this, first, count, seq](RankContext& c, std::span<const Tensor> inputs) {
                     Residual inner{inputs[0], {}};
                     for (int64_t i = first; i < first + count; ++i) run_layer(c, i, inner, seq);
                     return std::vector<Tensor>{total(c, inner)};
                   })[0];
}

VocabLossOptions GptModel::loss_options(RankContext& ctx) {
  return {.vocab_size = config_.vocab_size,
          .logit_softcap = config_.final_logit_softcapping.value_or(0),
          .bias = output_bias_ ? output_bias_->get(ctx) : Weight{}};
}

Tensor GptModel::token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) {
  return use_unit(ctx, *output_unit_, [&] {
    return vocab_parallel_loss(ctx, hidden, output_weight().get(ctx), labels, parallel_.tensor,
                               loss_options(ctx));
  });
}

Tensor GptModel::loss_sum(RankContext& ctx, const Tensor& hidden, const Tensor& labels,
                          const Tensor& weights) {
  const TraceRange range(ctx.tracer, "output_layer");
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

std::vector<Tensor> GptModel::run_mtp(RankContext& ctx, const Tensor& hidden,
                                      std::span<const MtpTokens> tokens, const SeqInfo& seq) {
  require(static_cast<int64_t>(tokens.size()) == config_.mtp_num_layers,
          "multi-token prediction: {} layers were given tokens for {}", config_.mtp_num_layers,
          tokens.size());
  ParameterUnit& table = embedding_ ? *embedding_unit_ : *mtp_embedding_unit_;
  std::vector<Tensor> states;
  for (size_t depth = 0; depth < tokens.size(); ++depth) {
    const size_t i = mtp_.size() == 1 ? 0 : depth;  // one for all
    Tensor embedded =
        use_unit(ctx, table, [&] { return mtp_embedding_->forward(ctx, tokens[depth].ids, seq); });
    const Tensor& before = depth == 0 ? hidden : states.back();
    states.push_back(
        use_unit(ctx, *mtp_units_[i], [&] { return mtp_[i]->forward(ctx, embedded, before, seq); }));
  }
  return states;
}

void GptModel::visit(const ParameterVisitor& visitor) {
  if (embedding_) embedding_->visit(visitor);
  for (auto& layer : layers_) layer->visit(visitor);
  if (final_) final_->visit(visitor);
  if (mtp_copy_) mtp_copy_->visit(visitor);
  for (auto& layer : mtp_) layer->visit(visitor);
  if (output_) visitor(*output_);
  if (output_bias_) visitor(*output_bias_);
}

void GptModel::finish_batch(RankContext& ctx) {
  for (auto& layer : layers_) layer->finish_batch(ctx);
  for (auto& layer : mtp_) layer->finish_batch(ctx);
}

void GptModel::update_expert_bias(RankContext& ctx, const Tensor& gate) {
  for (auto& layer : layers_) layer->update_expert_bias(ctx, gate);
  for (auto& layer : mtp_) layer->update_expert_bias(ctx, gate);
}

Parameter* GptModel::tied_weight() {
  const bool tied = config_.share_embeddings_and_output_weights;
  if (!tied && config_.mtp_num_layers == 0) return nullptr;
  if (embedding_) return &embedding_->table();
  if (mtp_copy_) return &mtp_copy_->table();
  return tied ? output_.get() : nullptr;
}

}  // namespace megatron
