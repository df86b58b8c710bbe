#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/paged_cache.h"
#include "megatron/nn/seq_info.h"
#include "megatron/parallel/model_parallel.h"
#include "megatron/transformer/activation_plan.h"
#include "megatron/transformer/moe/aux_loss.h"
#include "megatron/transformer/qk_clip_target.h"

namespace megatron {

// The part of a layer in which tokens see each other: attention of some kind, or a state along the sequence.
class TokenMixer : public Module {
 public:
  // x and the result [tokens, hidden]. recompute_input: makes x again, where it is not saved. `host`:
  // where the plan's activations wait.
  virtual Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                         const RecomputeFn& recompute_input = {}, HostOffload* host = nullptr) = 0;
  // What it keeps of the tokens that a decoder has seen.
  virtual CacheShape cache_shape() const { fail("token mixer: this kind cannot decode, it keeps nothing"); }
  virtual void set_activation_plan(const ActivationPlan&) {}
  // With --qk-clip, of attention.
  virtual QkClipTarget* qk_clip_target() { return nullptr; }
  // What losses of its own were since they were last taken.
  virtual std::vector<AuxLossSum> take_losses() { return {}; }
};

// Sequences as ops along them take them.
inline SequenceRows sequence_rows(const SeqInfo& seq) {
  if (!seq.cu_seqlens) return {.count = seq.batch, .cu = {}};
  return {.count = seq.cu_seqlens.size(0) - 1, .cu = seq.cu_seqlens};
}

}  // namespace megatron
