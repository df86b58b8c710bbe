#include "megatron/transformer/layer.h"

#include "megatron/autograd/recompute.h"
#include "megatron/config/resolve/layer_blocks.h"
#include "megatron/ops/elementwise.h"
#include "megatron/transformer/attention.h"
#include "megatron/transformer/delta_net.h"
#include "megatron/transformer/delta_product.h"
#include "megatron/transformer/elastic_region.h"
#include "megatron/transformer/hidden_dropout.h"
#include "megatron/transformer/latent_attention.h"
#include "megatron/transformer/layer_pattern.h"
#include "megatron/transformer/mamba.h"

namespace megatron {
namespace {

std::unique_ptr<Norm> norm_if(bool wanted, const std::string& name, const ModelConfig& config,
                              const TensorParallel& tp) {
  return wanted ? std::make_unique<Norm>(name, config.hidden_size, config, tp) : nullptr;
}

std::unique_ptr<TokenMixer> make_mixer(const std::string& layer, int64_t index, const ModelConfig& model,
                                       const ModelParallel& parallel) {
  const ModelConfig config = of_layer(model, index);
  switch (mixer_kind(config, index)) {
    case MixerKind::attention:
      return std::make_unique<SelfAttention>(layer + ".self_attention", index, config, parallel);
    case MixerKind::latent_attention:
      return std::make_unique<LatentAttention>(layer + ".self_attention", index, config, parallel);
    case MixerKind::mamba:
      if (config.gated_delta_product)
        return std::make_unique<DeltaProduct>(layer + ".mixer", index, config, parallel);
      return std::make_unique<MambaMixer>(layer + ".mixer", index, config, parallel);
    case MixerKind::delta_net:
      return std::make_unique<DeltaNet>(layer + ".self_attention", index, config, parallel);
    case MixerKind::none:
      return nullptr;
  }
  fail("layer {}: unknown kind", index);
}

// What attention or MLP gets: the normed stream, or the stream itself.
Tensor enter(RankContext& ctx, Norm* norm, Residual& residual, const ElasticWidths* widths = nullptr) {
  if (norm) return norm->forward(ctx, residual, widths);
  if (residual.update) residual = {ops::add(ctx, residual.hidden, residual.update), {}};
  return residual.hidden;
}

// The stream becomes the norm of its sum with what was added, where the model has it so.
void norm_sum(RankContext& ctx, Norm* norm, Residual& residual) {
  if (norm) residual = {norm->forward(ctx, residual), {}};
}

}  // namespace

TransformerLayer::TransformerLayer(const std::string& name, int64_t index, const ModelConfig& config,
                                   const ModelParallel& parallel, bool cross_attention)
    : index_(index),
      dropout_(config.hidden_dropout),
      parallel_(config.parallel_residual),
      tp_(parallel.tensor),
      mixer_(make_mixer(name, index, config, parallel)) {
  const bool before = config.pre_layernorm && !config.layernorm_after_residual,
             after = config.layernorm_after_residual;
  if (mixer_) {
    const bool mamba = mixer_kind(config, index) == MixerKind::mamba;
    mixer_norm_ = norm_if(before, name + (mamba ? ".norm" : ".input_layernorm"), config, tp_);
    post_mixer_norm_ = norm_if(config.post_attention_layernorm,
                               name + ".self_attention.linear_proj.post_layernorm", config, tp_);
    mixer_sum_norm_ = norm_if(after, name + ".post_attention_layernorm", config, tp_);
    if (config.enable_mhc_connections)
      mixer_streams_ =
          std::make_unique<HyperConnection>(name + ".self_attention_hyper_connection", config, tp_);
  }
  if (cross_attention) {
    cross_ = std::make_unique<CrossAttention>(name + ".cross_attention", index, config, parallel);
    cross_norm_ = norm_if(before, name + ".pre_cross_attn_layernorm", config, tp_);
  }
  const FeedForwardKind kind = feed_forward_kind(config, index);
  if (kind == FeedForwardKind::none) return;
  const bool shares_norm = parallel_ && config.parallel_residual_shared_layernorm && mixer_;
  mlp_norm_ = norm_if(before && !shares_norm, name + ".pre_mlp_layernorm", config, tp_);
  mlp_sum_norm_ = norm_if(after, name + ".post_mlp_layernorm", config, tp_);
  post_mlp_norm_ = norm_if(config.post_mlp_layernorm, name + ".mlp.linear_fc2.post_layernorm", config, tp_);
  if (config.enable_mhc_connections)
    mlp_streams_ = std::make_unique<HyperConnection>(name + ".mlp_hyper_connection", config, tp_);
  if (kind == FeedForwardKind::experts)
    moe_ = std::make_unique<MoeLayer>(name + ".mlp", index, config, parallel);
  else
    mlp_ = std::make_unique<Mlp>(name + ".mlp", of_layer(config, index), tp_);
}

void TransformerLayer::replace_mixer(std::unique_ptr<TokenMixer> mixer) {
  require(mixer_ != nullptr, "layer {}: it has no token mixer that another could replace", index_);
  mixer_ = std::move(mixer);
}

void TransformerLayer::set_activation_plan(const ActivationPlan& plan) {
  plan_ = plan;
  if (mixer_) mixer_->set_activation_plan(plan);
  if (mlp_) mlp_->set_activation_plan(plan);
  if (moe_) moe_->set_activation_plan(plan);
}

// How the norm's result is made again from the stream, which is kept; empty where it need not be.
RecomputeFn TransformerLayer::recompute_norm(RankContext& ctx, Norm* norm, const Residual& residual,
                                             const SeqInfo& seq) const {
  if (!plan_.layernorm || !norm || !ctx.tape) return {};
  auto stream = std::make_shared<Saved>(ctx, residual.hidden);
  return [norm, stream, widths = seq.elastic](RankContext& c) {
    Residual kept{stream->get(c), {}};
    return norm->forward(c, kept, widths.get());
  };
}

Tensor TransformerLayer::run_mlp(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input) {
  if (!plan_.mlp) return mlp_->forward(ctx, x, recompute_input);
  std::optional<Rematerialize> norm;
  if (recompute_input) norm.emplace(ctx, x, recompute_input);
  return recompute(ctx, {&x, 1}, [this](RankContext& c, std::span<const Tensor> inputs) {
    return std::vector<Tensor>{mlp_->forward(c, inputs[0])};
  })[0];
}

Tensor TransformerLayer::run_experts(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                                     const RecomputeFn& recompute_input, HostOffload* host) {
  std::optional<Rematerialize> norm;  // whoever keeps x keeps how it is made
  if (recompute_input) norm.emplace(ctx, x, recompute_input);
  if (!plan_.experts) return moe_->forward(ctx, x, seq, recompute_input, host);
  return recompute_within(ctx, x, seq, [this](RankContext& c, const Tensor& input, const SeqInfo& inner) {
    return moe_->forward(c, input, inner);
  });
}

void TransformerLayer::forward(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host) {
  const bool feeds = mlp_ || moe_;
  if (mixer_streams_ || mlp_streams_) {
    if (mixer_)
      within_streams(ctx, *mixer_streams_, residual, seq, 1,
                     [&](Residual& inner) { return mix(ctx, inner, seq, host); });
    if (feeds)
      within_streams(ctx, *mlp_streams_, residual, seq, 2,
                     [&](Residual& inner) { return feed_forward(ctx, inner, seq, host); });
  } else if (parallel_ && mixer_ && feeds) {
    Tensor normed;
    const Tensor mixed = mix(ctx, residual, seq, host, &normed);
    const Tensor fed = feed_forward(ctx, residual, seq, host, mlp_norm_ ? Tensor() : normed);
    residual.update = ops::add(ctx, mixed, fed);
  } else {
    if (mixer_) {
      residual.update = mix(ctx, residual, seq, host);
      norm_sum(ctx, mixer_sum_norm_.get(), residual);
    }
    if (cross_) look_at_encoder(ctx, residual, seq);
    if (feeds) {
      residual.update = feed_forward(ctx, residual, seq, host);
      norm_sum(ctx, mlp_sum_norm_.get(), residual);
    }
  }
  if (host) host->forget();
}

void TransformerLayer::within_streams(RankContext& ctx, HyperConnection& connection, Residual& residual,
                                      const SeqInfo& seq, int site,
                                      const std::function<Tensor(Residual&)>& part) {
  const Tensor streams = residual.sum(ctx);
  const HyperConnection::Mapping mapping = connection.read(ctx, streams, plan_.hyper_connections);
  Residual inner{mapping.input, {}};
  const Tensor y = part(inner);
  const auto dropped = [this, seq, site](RankContext& c, const Tensor& x) {
    return hidden_dropout(c, x, dropout_, seq, index_, site, tp_);
  };
  residual = {connection.write(ctx, streams, mapping, y, dropped, plan_.hyper_connections), {}};
}

Tensor TransformerLayer::drop(RankContext& ctx, const Tensor& x, const SeqInfo& seq, int site) const {
  return mixer_streams_ || mlp_streams_ ? x : hidden_dropout(ctx, x, dropout_, seq, index_, site, tp_);
}

Tensor TransformerLayer::mix(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host,
                             Tensor* normed) {
  const TraceRange range(ctx.tracer, "mixer");
  Tensor x;
  {
    PackerScope scope = offload_scope(ctx, host, plan_.offloaded.attention_norm);
    x = enter(ctx, mixer_norm_.get(), residual, seq.elastic.get());
  }
  if (normed) *normed = x;
  x = mixer_->forward(ctx, x, seq, recompute_norm(ctx, mixer_norm_.get(), residual, seq), host);
  if (seq.elastic) x = within(ctx, x, seq.elastic->hidden);
  if (post_mixer_norm_) x = post_mixer_norm_->forward(ctx, x);
  return drop(ctx, x, seq, 1);
}

void TransformerLayer::look_at_encoder(RankContext& ctx, Residual& residual, const SeqInfo& seq) {
  Tensor x = cross_->forward(ctx, enter(ctx, cross_norm_.get(), residual), seq);
  residual.update = hidden_dropout(ctx, x, dropout_, seq, index_, 5, tp_);
}

Tensor TransformerLayer::feed_forward(RankContext& ctx, Residual& residual, const SeqInfo& seq,
                                      HostOffload* host, const Tensor& normed) {
  const TraceRange range(ctx.tracer, moe_ ? "experts" : "mlp");
  Tensor x = normed;
  if (!x) {
    PackerScope scope = offload_scope(ctx, host, plan_.offloaded.mlp_norm);
    x = enter(ctx, mlp_norm_.get(), residual, seq.elastic.get());
  }
  Norm* norm = normed ? mixer_norm_.get() : mlp_norm_.get();
  RecomputeFn recompute_input = recompute_norm(ctx, norm, residual, seq);
  x = moe_ ? run_experts(ctx, x, seq, recompute_input, host) : run_mlp(ctx, x, recompute_input);
  if (seq.elastic) x = within(ctx, x, seq.elastic->hidden);
  if (post_mlp_norm_) x = post_mlp_norm_->forward(ctx, x);
  return drop(ctx, x, seq, 2);
}

void TransformerLayer::visit(const ParameterVisitor& visitor) {
  if (mixer_streams_) mixer_streams_->visit(visitor);
  if (mlp_streams_) mlp_streams_->visit(visitor);
  if (mixer_norm_) mixer_norm_->visit(visitor);
  if (mixer_) mixer_->visit(visitor);
  if (post_mixer_norm_) post_mixer_norm_->visit(visitor);
  if (mixer_sum_norm_) mixer_sum_norm_->visit(visitor);
  if (cross_norm_) cross_norm_->visit(visitor);
  if (cross_) cross_->visit(visitor);
  if (mlp_norm_) mlp_norm_->visit(visitor);
  if (moe_) moe_->visit(visitor);
  if (mlp_) mlp_->visit(visitor);
  if (post_mlp_norm_) post_mlp_norm_->visit(visitor);
  if (mlp_sum_norm_) mlp_sum_norm_->visit(visitor);
}

void TransformerLayer::finish_batch(RankContext& ctx) {
  if (moe_) moe_->finish_batch(ctx);
}

std::vector<AuxLossSum> TransformerLayer::take_losses() {
  std::vector<AuxLossSum> all = mixer_ ? mixer_->take_losses() : std::vector<AuxLossSum>();
  if (!moe_) return all;
  for (AuxLossSum& loss : moe_->take_losses()) all.push_back(std::move(loss));
  return all;
}

void TransformerLayer::update_expert_bias(RankContext& ctx, const Tensor& gate) {
  if (moe_) moe_->update_expert_bias(ctx, gate);
}

}  // namespace megatron
