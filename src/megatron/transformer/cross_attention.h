#pragma once

#include "megatron/transformer/attention_heads.h"
#include "megatron/transformer/linear.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

// Attention of a decoder's tokens to an encoder's states (SeqInfo::encoder_states), all of which they see.
class CrossAttention final : public TokenMixer {
 public:
  CrossAttention(const std::string& name, int64_t layer, const ModelConfig& config,
                 const ModelParallel& parallel);
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                 const RecomputeFn& recompute_input = {}, HostOffload* host = nullptr) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  AttentionHeads heads_;
  int64_t channels_;
  ColumnParallelLinear query_, key_value_;  // of each head the key, then the value
  RowParallelLinear projection_;
};

}  // namespace megatron
