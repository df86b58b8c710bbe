#include "megatron/transformer/layer.h"

#include "megatron/ops/elementwise.h"
#include "megatron/transformer/hidden_dropout.h"

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
      attention_(name + ".self_attention", index, config, parallel),
      mlp_norm_(norm_if(config.pre_layernorm, name + ".pre_mlp_layernorm", config, tp_)),
      post_mlp_norm_(
          norm_if(config.post_mlp_layernorm, name + ".mlp.linear_fc2.post_layernorm", config, tp_)),
      mlp_(name + ".mlp", config, tp_) {}

void TransformerLayer::forward(RankContext& ctx, Residual& residual, const SeqInfo& seq) {
  Tensor x = enter(ctx, attention_norm_.get(), residual);
  x = attention_.forward(ctx, x, seq);
  if (post_attention_norm_) x = post_attention_norm_->forward(ctx, x);
  residual.update = hidden_dropout(ctx, x, dropout_, seq, index_, 1, tp_);
  x = enter(ctx, mlp_norm_.get(), residual);
  x = mlp_.forward(ctx, x);
  if (post_mlp_norm_) x = post_mlp_norm_->forward(ctx, x);
  residual.update = hidden_dropout(ctx, x, dropout_, seq, index_, 2, tp_);
}

void TransformerLayer::visit(const ParameterVisitor& visitor) {
  if (attention_norm_) attention_norm_->visit(visitor);
  attention_.visit(visitor);
  if (post_attention_norm_) post_attention_norm_->visit(visitor);
  if (mlp_norm_) mlp_norm_->visit(visitor);
  mlp_.visit(visitor);
  if (post_mlp_norm_) post_mlp_norm_->visit(visitor);
}

}  // namespace megatron
