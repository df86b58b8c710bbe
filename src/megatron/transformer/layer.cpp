#include "megatron/transformer/layer.h"

#include "megatron/autograd/recompute.h"
#include "megatron/ops/elementwise.h"
#include "megatron/transformer/hidden_dropout.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

std::unique_ptr<Norm> norm_if(bool wanted, const std::string& name, const ModelConfig& config,
                              const TensorParallel& tp) {
  return wanted ? std::make_unique<Norm>(name, config.hidden_size, config, tp) : nullptr;
}

// What attention or MLP gets: the normed stream, or the stream itself.
Tensor enter(RankContext& ctx, Norm* norm, Residual& residual) {
  if (norm) return norm->forward(ctx, residual);
  if (residual.update) residual = {ops::add(ctx, residual.hidden, residual.update), {}};
  return residual.hidden;
}

}  // namespace

TransformerLayer::TransformerLayer(const std::string& name, int64_t index, const ModelConfig& config,
                                   const ModelParallel& parallel)
    : index_(index),
      dropout_(config.hidden_dropout),
      tp_(parallel.tensor),
      attention_norm_(norm_if(config.pre_layernorm, name + ".input_layernorm", config, tp_)),
      post_attention_norm_(norm_if(config.post_attention_layernorm,
                                   name + ".self_attention.linear_proj.post_layernorm", config, tp_)),
      mlp_norm_(norm_if(config.pre_layernorm, name + ".pre_mlp_layernorm", config, tp_)),
      post_mlp_norm_(
          norm_if(config.post_mlp_layernorm, name + ".mlp.linear_fc2.post_layernorm", config, tp_)) {
  if (config.multi_latent_attention)
    latent_attention_ = std::make_unique<LatentAttention>(name + ".self_attention", index, config, parallel);
  else
    attention_ = std::make_unique<SelfAttention>(name + ".self_attention", index, config, parallel);
  if (has_experts(config, index))
    moe_ = std::make_unique<MoeLayer>(name + ".mlp", index, config, parallel);
  else
    mlp_ = std::make_unique<Mlp>(name + ".mlp", config, tp_);
}

void TransformerLayer::set_activation_plan(const ActivationPlan& plan) {
  plan_ = plan;
  if (attention_) attention_->set_activation_plan(plan);
  if (latent_attention_) latent_attention_->set_activation_plan(plan);
  if (moe_) moe_->set_activation_plan(plan);
}

// How the norm's result is made again from the stream, which is kept; empty where it need not be.
Recipe TransformerLayer::norm_again(RankContext& ctx, Norm* norm, const Residual& residual) const {
  if (!plan_.layernorm || !norm || !ctx.tape) return {};
  auto stream = std::make_shared<Saved>(ctx, residual.hidden);
  return [norm, stream](RankContext& c) { return norm->forward(c, stream->get(c)); };
}

Tensor TransformerLayer::run_mlp(RankContext& ctx, const Tensor& x, const Recipe& again) {
  if (!plan_.mlp) return mlp_->forward(ctx, x, again);
  return recompute(ctx, {&x, 1}, [this](RankContext& c, std::span<const Tensor> inputs) {
    return std::vector<Tensor>{mlp_->forward(c, inputs[0])};
  })[0];
}

Tensor TransformerLayer::run_experts(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                                     const Recipe& again, HostOffload* host) {
  std::optional<Rederive> norm;  // whoever keeps x keeps how it is made
  if (again) norm.emplace(ctx, x, again);
  if (!plan_.experts) return moe_->forward(ctx, x, seq, again, host);
  return recompute(ctx, {&x, 1}, [this, seq](RankContext& c, std::span<const Tensor> inputs) {
    return std::vector<Tensor>{moe_->forward(c, inputs[0], seq)};
  })[0];
}

void TransformerLayer::forward(RankContext& ctx, Residual& residual, const SeqInfo& seq, HostOffload* host) {
  Tensor x;
  {
    PackerScope scope = offload_scope(ctx, host, plan_.offloaded.attention_norm);
    x = enter(ctx, attention_norm_.get(), residual);
  }
  Recipe again = norm_again(ctx, attention_norm_.get(), residual);
  x = attention_ ? attention_->forward(ctx, x, seq, again, host)
                 : latent_attention_->forward(ctx, x, seq, again, host);
  if (post_attention_norm_) x = post_attention_norm_->forward(ctx, x);
  residual.update = hidden_dropout(ctx, x, dropout_, seq, index_, 1, tp_);
  {
    PackerScope scope = offload_scope(ctx, host, plan_.offloaded.mlp_norm);
    x = enter(ctx, mlp_norm_.get(), residual);
  }
  Recipe again = norm_again(ctx, mlp_norm_.get(), residual);
  x = moe_ ? run_experts(ctx, x, seq, again, host) : run_mlp(ctx, x, again);
  if (post_mlp_norm_) x = post_mlp_norm_->forward(ctx, x);
  residual.update = hidden_dropout(ctx, x, dropout_, seq, index_, 2, tp_);
  if (host) host->forget();
}

void TransformerLayer::visit(const ParameterVisitor& visitor) {
  if (attention_norm_) attention_norm_->visit(visitor);
  if (attention_) attention_->visit(visitor);
  if (latent_attention_) latent_attention_->visit(visitor);
  if (post_attention_norm_) post_attention_norm_->visit(visitor);
  if (mlp_norm_) mlp_norm_->visit(visitor);
  if (moe_) moe_->visit(visitor);
  if (mlp_) mlp_->visit(visitor);
  if (post_mlp_norm_) post_mlp_norm_->visit(visitor);
}

void TransformerLayer::finish_batch(RankContext& ctx) {
  if (moe_) moe_->finish_batch(ctx);
}

}  // namespace megatron
