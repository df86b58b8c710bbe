#include "megatron/transformer/layer.h"

#include "megatron/transformer/hidden_dropout.h"

namespace megatron {

TransformerLayer::TransformerLayer(const std::string& name, int64_t index, const ModelConfig& config,
                                   const ModelParallel& parallel)
    : index_(index),
      dropout_(config.hidden_dropout),
      tp_(parallel.tensor),
      attention_norm_(name + ".input_layernorm", config.hidden_size, config, tp_),
      attention_(name + ".self_attention", index, config, parallel),
      mlp_norm_(name + ".pre_mlp_layernorm", config.hidden_size, config, tp_),
      mlp_(name + ".mlp", config, tp_) {}

void TransformerLayer::forward(RankContext& ctx, Residual& residual, const SeqInfo& seq) {
  Tensor x = attention_norm_.forward(ctx, residual);
  x = attention_.forward(ctx, x, seq);
  residual.update = hidden_dropout(ctx, x, dropout_, seq, index_, 1, tp_);
  x = mlp_norm_.forward(ctx, residual);
  x = mlp_.forward(ctx, x);
  residual.update = hidden_dropout(ctx, x, dropout_, seq, index_, 2, tp_);
}

void TransformerLayer::visit(const ParameterVisitor& visitor) {
  attention_norm_.visit(visitor);
  attention_.visit(visitor);
  mlp_norm_.visit(visitor);
  mlp_.visit(visitor);
}

}  // namespace megatron
