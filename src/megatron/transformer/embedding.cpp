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

SplitShard vocabulary_shard(const ModelConfig& config, const TensorParallel& tp) {
  return tp.split_vocabulary("vocabulary", {config.vocab_size, config.hidden_size},
                             padded_vocab_size(config, tp.size()));
}

SplitShard vocabulary_bias_shard(const ModelConfig& config, const TensorParallel& tp) {
  return tp.split_vocabulary("vocabulary", {config.vocab_size}, padded_vocab_size(config, tp.size()));
}

namespace {

// Held whole by every rank.
std::unique_ptr<Parameter> further_table(const std::string& name, int64_t rows, const ModelConfig& config,
                                         const TensorParallel& tp) {
  auto table = std::make_unique<Parameter>(
      name, ShardSpec::whole({rows, config.hidden_size}),
      Initializer::normal(config.embedding_init_method_std.value_or(config.init_method_std)));
  table->partial_over_tp = tp.splits_tokens();
  return table;
}

}  // namespace

Embedding::Embedding(const std::string& name, const ModelConfig& config, const TensorParallel& tp)
    : tp_(tp),
      vocab_size_(config.vocab_size),
      rows_(tp, config.vocab_size),
      dropout_(config.hidden_dropout),
      multiplier_(config.embedding_multiplier.value_or(1)),
      words_(name + ".word_embeddings.weight", vocabulary_shard(config, tp),
             Initializer::normal(config.embedding_init_method_std.value_or(config.init_method_std))) {
  words_.quantizable = true;
  if (config.position_embedding_type == PositionEmbedding::learned_absolute)
    positions_ =
        further_table(name + ".position_embeddings.weight", config.max_position_embeddings, config, tp);
  if (config.num_tokentypes > 0)
    types_ = further_table(name + ".tokentype_embeddings.weight", config.num_tokentypes, config, tp);
  if (config.embedding_layernorm)
    norm_ = std::make_unique<Norm>(name + ".norm", config.hidden_size, config, tp);
}

Tensor Embedding::forward(RankContext& ctx, const Tensor& tokens, const SeqInfo& seq) {
  const int64_t first = rows_.begin(words_.shard.local_shape[0]);
  Tensor x = ops::embedding(ctx, words_.get(ctx), rows_.renamed(ctx, tokens), first, vocab_size_);
  x = leave_tensor_parallel(ctx, with_padding(ctx, x, tp_), tp_);
  ctx.show(words_.name, "output0", x);
  auto add_rows = [&](Parameter& table, const Tensor& ids) {
    const int64_t rows = x.size(0), begin = tp_.splits_tokens() ? rows * tp_.rank() : 0;
    x = ops::add(ctx, x, ops::embedding(ctx, table.get(ctx), rows_from(ctx, ids, begin, rows)));
  };
  if (positions_) add_rows(*positions_, seq.positions);
  if (types_) {
    require(seq.token_types.defined(), "embedding: this model needs the types of its tokens");
    add_rows(*types_, seq.token_types);
  }
  if (multiplier_ != 1) x = ops::scale(ctx, x, multiplier_);
  if (norm_) x = norm_->forward(ctx, x);
  return hidden_dropout(ctx, x, dropout_, seq, 0, 3, tp_);
}

void Embedding::visit(const ParameterVisitor& visitor) {
  visitor(words_);
  if (positions_) visitor(*positions_);
  if (types_) visitor(*types_);
  if (norm_) norm_->visit(visitor);
}

}  // namespace megatron
