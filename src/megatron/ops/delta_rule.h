#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct DeltaRuleOptions {
  int64_t key_heads = 1, value_heads = 1, key_channels = 1, value_channels = 1;
  int64_t chunk = 64;  // tokens between states that are kept; no result depends on it
};

// The gated delta rule along each sequence: qkv [tokens, 2 · key_heads · key_channels + value_heads ·
// value_channels], b and a [tokens, value_heads] before their sigmoid and softplus; the weights [value_heads]
// in the accumulation dtype. The result is [tokens, value_heads · value_channels]. `state` [sequences,
// value_heads, key_channels, value_channels], where given, is what came before and is moved on; there is no
// gradient through it.
Tensor delta_rule(RankContext& ctx, const Tensor& qkv, const Tensor& b, const Tensor& a, const Weight& a_log,
                  const Weight& dt_bias, const DeltaRuleOptions& options, const SequenceRows& rows,
                  const Tensor& state = {});

}  // namespace megatron::ops
