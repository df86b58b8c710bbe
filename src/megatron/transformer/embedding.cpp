#include "megatron/transformer/embedding.h"

#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/hidden_dropout.h"

namespace megatron {

int64_t padded_vocab_size(const ModelConfig& config, int tensor_parallel) {
  int64_t multiple = config.make_vocab_size_divisible_by * tensor_parallel;
  return (config.vocab_size + multiple - 1) / multiple * multiple;
}

ShardSpec vocabulary_shard(const ModelConfig& config, const TensorParallel& tp) {
  return ShardSpec::split_padded({config.vocab_size, config.hidden_size}, 0,
                                 padded_vocab_size(config, tp.size()), tp.rank(), tp.size());
}

Embedding::Embedding(const std::string& name, const ModelConfig& config, const TensorParallel& tp)
    : tp_(tp),
      vocab_size_(config.vocab_size),
      dropout_(config.hidden_dropout),
      multiplier_(config.embedding_multiplier.value_or(1)),
      words_(name + ".word_embeddings.weight", vocabulary_shard(config, tp),
             Initializer::normal(config.embedding_init_method_std.value_or(config.init_method_std))) {
  if (config.position_embedding_type != PositionEmbedding::learned_absolute) return;
  positions_ = std::make_unique<Parameter>(
      name + ".position_embeddings.weight",
      ShardSpec::whole({config.max_position_embeddings, config.hidden_size}),
      Initializer::normal(config.embedding_init_method_std.value_or(config.init_method_std)));
  positions_->partial_over_tp = tp.splits_tokens();
}

Tensor Embedding::forward(RankContext& ctx, const Tensor& tokens, const SeqInfo& seq) {
  int64_t first = words_.shard.local_shape[0] * tp_.rank();
  Tensor x =
      leave_tensor_parallel(ctx, ops::embedding(ctx, words_.get(ctx), tokens, first, vocab_size_), tp_);
  if (positions_) {
    Tensor places = seq.positions;
    if (tp_.splits_tokens()) places = places.slice(0, x.size(0) * tp_.rank(), x.size(0) * (tp_.rank() + 1));
    x = ops::add(ctx, x, ops::embedding(ctx, positions_->get(ctx), places));
  }
  if (multiplier_ != 1) x = ops::scale(ctx, x, multiplier_);
  return hidden_dropout(ctx, x, dropout_, seq, 0, 3, tp_);
}

void Embedding::visit(const ParameterVisitor& visitor) {
  visitor(words_);
  if (positions_) visitor(*positions_);
}

}  // namespace megatron
