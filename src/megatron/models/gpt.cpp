#include "megatron/models/gpt.h"

#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/rope.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/vocab_cross_entropy.h"

namespace megatron {
namespace {

ops::RopeFrequencies rotary_frequencies(const ModelConfig& config, int64_t length) {
  ops::RopeScaling scaling;
  if (config.rope_scaling) {
    scaling.kind = ops::RopeScalingKind::Llama3;
    scaling.factor = config.rope_scaling_factor;
    scaling.low_freq_factor = config.rope_scaling_low_freq_factor;
    scaling.high_freq_factor = config.rope_scaling_high_freq_factor;
    scaling.original_max_position = config.rope_scaling_original_max_position_embeddings;
  } else if (config.seq_len_interpolation_factor) {
    scaling.kind = ops::RopeScalingKind::Linear;
    scaling.factor = *config.seq_len_interpolation_factor;
  }
  auto width = static_cast<int64_t>(config.kv_channels * config.rotary_percent);
  return ops::rope_frequencies(width, config.rotary_base, scaling, length);
}

}  // namespace

GptModel::GptModel(const ModelConfig& config, const ModelSlice& slice, const ModelParallel& parallel,
                   DType dtype)
    : config_(config), slice_(slice), parallel_(parallel), dtype_(dtype) {
  if (slice.embedding) embedding_ = std::make_unique<Embedding>("embedding", config, parallel.tensor);
  for (int64_t i = slice.first_layer; i < slice.first_layer + slice.layers; ++i)
    layers_.push_back(
        std::make_unique<TransformerLayer>("decoder.layers." + std::to_string(i), i, config, parallel));
  if (!slice.head) return;
  final_norm_ =
      std::make_unique<Norm>("decoder.final_layernorm", config.hidden_size, config, parallel.tensor);
  bool tied = config.share_embeddings_and_output_weights;
  if (tied && embedding_) return;
  // The last stage's copy of a tied weight has the embedding's name, so that both start from the same values.
  double deviation =
      tied ? config.embedding_init_method_std.value_or(config.init_method_std) : config.init_method_std;
  output_ =
      std::make_unique<Parameter>(tied ? "embedding.word_embeddings.weight" : "output_layer.weight",
                                  vocabulary_shard(config, parallel.tensor), Initializer::normal(deviation));
  output_->tied_copy = tied;
}

SeqInfo GptModel::sequences(RankContext& ctx, int64_t batch, int64_t length) const {
  SeqInfo seq;
  seq.batch = batch;
  seq.length = length;
  std::vector<int64_t> positions(static_cast<size_t>(batch * length));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i) % length;
  seq.positions = ctx.from_vector(positions, {batch * length});
  if (config_.position_embedding_type == PositionEmbedding::rope) {
    auto rotation = ops::rope_tables(ctx, seq.positions, rotary_frequencies(config_, length), dtype_);
    seq.rope_cos = rotation.cos;
    seq.rope_sin = rotation.sin;
  }
  return seq;
}

Tensor GptModel::forward(RankContext& ctx, const Tensor& input, const SeqInfo& seq) {
  Residual residual{embedding_ ? embedding_->forward(ctx, input, seq) : input, {}};
  for (auto& layer : layers_) layer->forward(ctx, residual, seq);
  if (final_norm_) return final_norm_->forward(ctx, residual);
  return residual.update ? ops::add(ctx, residual.hidden, residual.update) : residual.hidden;
}

Tensor GptModel::token_losses(RankContext& ctx, const Tensor& hidden, const Tensor& labels) {
  return vocab_parallel_loss(ctx, hidden, output_weight().get(ctx), labels, parallel_.tensor,
                             {.vocab_size = config_.vocab_size});
}

Tensor GptModel::logits(RankContext& ctx, const Tensor& hidden) {
  return ops::linear(ctx, enter_tensor_parallel(ctx, hidden, parallel_.tensor), output_weight().get(ctx));
}

void GptModel::visit(const ParameterVisitor& visitor) {
  if (embedding_) embedding_->visit(visitor);
  for (auto& layer : layers_) layer->visit(visitor);
  if (final_norm_) final_norm_->visit(visitor);
  if (output_) visitor(*output_);
}

Parameter* GptModel::tied_weight() {
  if (!config_.share_embeddings_and_output_weights) return nullptr;
  if (embedding_) return &embedding_->table();
  return output_.get();
}

}  // namespace megatron
