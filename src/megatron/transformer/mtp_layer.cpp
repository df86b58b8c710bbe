#include "megatron/transformer/mtp_layer.h"

#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/shape.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {

MtpLayer::MtpLayer(const std::string& name, int64_t depth, const ModelConfig& config,
                   const ModelParallel& parallel)
    : embedding_norm_(name + ".enorm", config.hidden_size, config, parallel.tensor),
      hidden_norm_(name + ".hnorm", config.hidden_size, config, parallel.tensor),
      first_(config.num_layers + depth * mtp_inner_layers(config)),
      projection_(name + ".eh_proj.weight", ShardSpec::whole({config.hidden_size, 2 * config.hidden_size}),
                  input_initializer(config)),
      final_norm_(name + ".final_layernorm", config.hidden_size, config, parallel.tensor) {
  projection_.partial_over_tp = parallel.tensor.splits_tokens();
  const int64_t count = mtp_inner_layers(config);
  const ModelConfig longer = continue_patterns(config, first_ + count);
  for (int64_t i = 0; i < count; ++i) {
    const std::string inner = config.is_hybrid_model ? fmt::format(".layers.{}", i) : "";
    layers_.push_back(
        std::make_unique<TransformerLayer>(name + ".mtp_model_layer" + inner, first_ + i, longer, parallel));
  }
}

Tensor MtpLayer::forward(RankContext& ctx, const Tensor& embedded, const Tensor& hidden, const SeqInfo& seq) {
  const Tensor parts[] = {embedding_norm_.forward(ctx, embedded), hidden_norm_.forward(ctx, hidden)};
  // As wide as the stream that `hidden` is of.
  Residual residual{
      ops::cast(ctx, ops::linear(ctx, ops::concat(ctx, parts, 1), projection_.get(ctx)), hidden.dtype()), {}};
  for (auto& layer : layers_) layer->forward(ctx, residual, seq);
  return final_norm_.forward(ctx, residual);
}

CacheShapes MtpLayer::cache_shapes() const {
  CacheShapes shapes;
  for (size_t i = 0; i < layers_.size(); ++i)
    if (const TokenMixer* mixer = layers_[i]->mixer())
      shapes.emplace(first_ + static_cast<int64_t>(i), mixer->cache_shape());
  return shapes;
}

void MtpLayer::set_activation_plan(const ActivationPlan& plan) {
  for (auto& layer : layers_) layer->set_activation_plan(plan);
}

void MtpLayer::finish_batch(RankContext& ctx) {
  for (auto& layer : layers_) layer->finish_batch(ctx);
}

void MtpLayer::update_expert_bias(RankContext& ctx, const Tensor& gate) {
  for (auto& layer : layers_) layer->update_expert_bias(ctx, gate);
}

std::vector<AuxLossSum> MtpLayer::take_losses() {
  std::vector<AuxLossSum> all;
  for (auto& layer : layers_)
    for (AuxLossSum& loss : layer->take_losses()) all.push_back(std::move(loss));
  return all;
}

void MtpLayer::visit(const ParameterVisitor& visitor) {
  embedding_norm_.visit(visitor);
  hidden_norm_.visit(visitor);
  visitor(projection_);
  for (auto& layer : layers_) layer->visit(visitor);
  final_norm_.visit(visitor);
}

}  // namespace megatron
