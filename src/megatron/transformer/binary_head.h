#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"
#include "megatron/nn/seq_info.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// BERT's sentence-order head: whether the two parts of a row were swapped, from its first token alone. Every
// tensor-parallel rank computes all of it.
class BinaryHead final : public Module {
 public:
  BinaryHead(const ModelConfig& config, const TensorParallel& tp);
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq);  // logits [rows, 2]
  void visit(const ParameterVisitor& visitor) override;

 private:
  TensorParallel tp_;
  Parameter pooler_, pooler_bias_, weight_, bias_;
};

}  // namespace megatron
