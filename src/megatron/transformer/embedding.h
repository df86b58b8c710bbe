#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"
#include "megatron/nn/seq_info.h"
#include "megatron/parallel/tensor/vocabulary_rows.h"
#include "megatron/transformer/norm.h"

namespace megatron {

// The vocabulary rounded up so that it splits evenly; the added rows are never predicted.
int64_t padded_vocab_size(const ModelConfig& config, int tensor_parallel);
// This rank's rows of a [vocabulary, hidden] table.
SplitShard vocabulary_shard(const ModelConfig& config, const TensorParallel& tp);

SplitShard vocabulary_bias_shard(const ModelConfig& config, const TensorParallel& tp);  // of a [vocabulary]

// Token (and learned position and type) embeddings; the rows of the token table are split over the TP group.
class Embedding final : public Module {
 public:
  Embedding(const std::string& name, const ModelConfig& config, const TensorParallel& tp);
  Tensor forward(RankContext& ctx, const Tensor& tokens, const SeqInfo& seq);
  void visit(const ParameterVisitor& visitor) override;
  Parameter& table() { return words_; }

 private:
  TensorParallel tp_;
  int64_t vocab_size_;
  VocabularyRows rows_;
  double dropout_, multiplier_;
  Parameter words_;
  std::unique_ptr<Parameter> positions_, types_;
  std::unique_ptr<Norm> norm_;
};

}  // namespace megatron
