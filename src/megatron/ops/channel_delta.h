#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct ChannelDeltaOptions {
  int64_t key_heads = 1, value_heads = 1, key_channels = 1, value_channels = 1;
  int64_t chunk = 16;  // tokens between states that are kept; no result depends on it
};

// What each token says: queries, keys that are written and that are erased by [tokens, key_heads ·
// key_channels], logarithms of decays of the same shape in the accumulation dtype, values [tokens,
// value_heads · value_channels].
struct ChannelDeltaInputs {
  Tensor q, k, e, g, v;
};

// The delta rule with a decay for each key channel, along each sequence (ChannelDeltaArgs). The result has
// the shape of v. `state` [sequences, value_heads, key_channels, value_channels], where given, is what came
// before and is moved on; there is no gradient through it.
Tensor channel_delta(RankContext& ctx, const ChannelDeltaInputs& inputs, const ChannelDeltaOptions& options,
                     const SequenceRows& rows, const Tensor& state = {});

}  // namespace megatron::ops
