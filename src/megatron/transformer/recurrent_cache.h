#pragma once

#include "megatron/nn/kv_cache.h"
#include "megatron/nn/seq_info.h"

namespace megatron {

// What a layer with states keeps between the passes of a decoder: the convolution's last inputs and the state
// itself. Without a cache, every pass begins anew.
class RecurrentCache {
 public:
  RecurrentCache(const SeqInfo& seq, int64_t layer) : cache_(seq.cache), layer_(layer) {}

  // ops::causal_conv behind the tokens of the passes before.
  Tensor convolve(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias,
                  const SequenceRows& rows) const;
  // The state that a scan begins with and leaves behind; undefined without a cache.
  Tensor state(RankContext& ctx, const Shape& shape, DType dtype) const;

 private:
  KvCache* cache_;
  int64_t layer_;
};

}  // namespace megatron
