#include "megatron/transformer/mtp_layer.h"

#include "megatron/ops/linear.h"
#include "megatron/ops/shape.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {

MtpLayer::MtpLayer(const std::string& name, int64_t index, const ModelConfig& config,
                   const ModelParallel& parallel)
    : embedding_norm_(name + ".enorm", config.hidden_size, config, parallel.tensor),
      hidden_norm_(name + ".hnorm", config.hidden_size, config, parallel.tensor),
      projection_(name + ".eh_proj.weight", ShardSpec::whole({config.hidden_size, 2 * config.hidden_size}),
                  Initializer::normal(config.init_method_std)),
      layer_(name + ".mtp_model_layer", index, continue_patterns(config, index + 1), parallel),
      final_norm_(name + ".final_layernorm", config.hidden_size, config, parallel.tensor) {
  projection_.partial_over_tp = parallel.tensor.splits_tokens();
}

Tensor MtpLayer::forward(RankContext& ctx, const Tensor& embedded, const Tensor& hidden, const SeqInfo& seq) {
  const Tensor parts[] = {embedding_norm_.forward(ctx, embedded), hidden_norm_.forward(ctx, hidden)};
  Residual residual{ops::linear(ctx, ops::concat(ctx, parts, 1), projection_.get(ctx)), {}};
  layer_.forward(ctx, residual, seq);
  return final_norm_.forward(ctx, residual);
}

void MtpLayer::visit(const ParameterVisitor& visitor) {
  embedding_norm_.visit(visitor);
  hidden_norm_.visit(visitor);
  visitor(projection_);
  layer_.visit(visitor);
  final_norm_.visit(visitor);
}

}  // namespace megatron
