#pragma once

#include "megatron/nn/seq_info.h"
#include "megatron/nn/sequence_batch.h"

namespace megatron {

// The states of a step's sequences: what a scan begins with and leaves behind. Undefined without a cache.
struct RecurrentState {
  Tensor value;        // [sequences, …]
  Tensor pool, slots;  // where they are kept
  void keep(RankContext& ctx) const;
};

// What a layer with states keeps between the steps of a decoder: the convolution's last inputs and the state
// itself. Without a cache, every pass begins anew.
class RecurrentCache {
 public:
  RecurrentCache(const SeqInfo& seq, int64_t layer)
      : cache_(seq.cache), sequences_(seq.sequences), layer_(layer) {}

  // ops::causal_conv behind the tokens of the steps before.
  Tensor convolve(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                  const SequenceRows& rows) const;
  RecurrentState state(RankContext& ctx) const;

 private:
  const PagedCache* cache_;
  const SequenceBatch* sequences_;
  int64_t layer_;
};

}  // namespace megatron
