#pragma once

#include <limits>

#include "megatron/tensor/tensor.h"

// What layers that carry a state along a sequence are made of. Rows of all matrices are tokens; they may lie
// apart (stride of the first dimension), but each is contiguous. Weights of states and their gradients are in
// the accumulation dtype.
namespace megatron {

// How the tokens form sequences: `count` of one length, or cut at cu (int32 [count + 1]).
struct SequenceRows {
  int64_t count = 1;
  Tensor cu;
};

// y = silu(bias + Σ_j weight[·, j] · x[t − width + 1 + j]), each channel on its own, zeros before a sequence.
struct CausalConvArgs {
  SequenceRows rows;
  Tensor x, weight, bias, y;  // [tokens, channels], [channels, width], [channels] optional
};
struct CausalConvBackwardArgs {
  SequenceRows rows;
  Tensor x, weight, bias, dy;
  Tensor dx, dweight, dbias;  // each optional
};

// sums [tokens, groups] of u² over the width of a group; with dy: of dy · ∂y/∂(u · rstd) · u. u = x ·
// silu(gate) where the gate comes first, else x. Weight [groups · width], or [width] for all groups.
struct GatedNormSumsArgs {
  bool gate_first = true;
  Tensor x, gate, weight, dy;  // x, gate, dy [tokens, groups · width]; weight only with dy
  Tensor sums;                 // accumulation dtype
};
// y = u · rstd · weight, times silu(gate) where the gate comes last; rstd from the sums over `width`
// elements. Width 0: of the whole group, whose sums are not given but left in `squares`.
struct GatedNormArgs {
  bool gate_first = true;
  double epsilon = 1e-5;
  int64_t width = 0;
  Tensor x, gate, weight, squares, y;
};
struct GatedNormBackwardArgs {
  bool gate_first = true;
  double epsilon = 1e-5;
  int64_t width = 0;
  Tensor x, gate, weight, squares, dy, along;  // along: the sums with dy; undefined: those of whole groups
  Tensor dx, dgate, dweight;                   // dweight optional, accumulation dtype
};

// Mamba-2's state space: per head R ← exp(−Δ e^{a_log}) R + Δ x bᵀ; y = R c + d · x, with Δ =
// clamp(softplus(dt + dt_bias)). Heads share b and c by groups. The scan runs in chunks: matmuls inside,
// states between.
struct SsdArgs {
  SequenceRows rows;
  int64_t heads = 1, channels = 1, groups = 1, states = 1, chunk = 128;
  double step_min = 0, step_max = std::numeric_limits<double>::infinity();
  Tensor xbc;                // [tokens, heads · channels + 2 · groups · states]: x, b, c
  Tensor dt;                 // [tokens, heads]
  Tensor a_log, d, dt_bias;  // [heads]
  Tensor y;                  // [tokens, heads · channels]
  Tensor before;  // [chunk_slots, heads, channels, states]: the state before each chunk, accumulation dtype;
                  // optional
  Tensor state;   // [sequences, heads, channels, states], accumulation dtype, optional: what each sequence
                  // begins with (else zeros), and is left with
};
struct SsdBackwardArgs {
  SsdArgs forward;  // y undefined
  Tensor dy, dxbc, ddt;
  Tensor da_log, dd, ddt_bias;
};

// The gated delta rule: per value head R ← e^g R; δ = β (v − Rᵀk); R ← R + k δᵀ; o = Rᵀ q, with g =
// −e^{a_log} softplus(a + dt_bias), β = σ(b) and q, k divided by their lengths. Value heads share q and k by
// key heads.
struct DeltaRuleArgs {
  SequenceRows rows;
  int64_t key_heads = 1, value_heads = 1, key_channels = 1, value_channels = 1, chunk = 64;
  double epsilon = 1e-6;  // of the squared lengths
  Tensor qkv;             // [tokens, 2 · key_heads · key_channels + value_heads · value_channels]: q, k, v
  Tensor b, a;            // [tokens, value_heads]
  Tensor a_log, dt_bias;  // [value_heads]
  Tensor o;               // [tokens, value_heads · value_channels]
  Tensor before;  // [chunk_slots, value_heads, key_channels, value_channels], accumulation dtype; optional
  Tensor state;   // [sequences, value_heads, key_channels, value_channels] likewise: before and behind each
};
struct DeltaRuleBackwardArgs {
  DeltaRuleArgs forward;  // o undefined
  Tensor d_o, dqkv, db, da;
  Tensor da_log, ddt_bias;
};

// The delta rule with a decay for each key channel: per value head R ← e^g ∘ R; δ = v − Rᵀe; R ← R + k δᵀ;
// o = Rᵀ q. What is erased (e), what is written (k, v) and the decays are given, so that gates stand outside.
// Value heads share q, k, e and g by key heads.
struct ChannelDeltaArgs {
  SequenceRows rows;
  int64_t key_heads = 1, value_heads = 1, key_channels = 1, value_channels = 1, chunk = 16;
  Tensor q, k, e;  // [tokens, key_heads · key_channels]
  Tensor g;        // the same, logarithms of decays, accumulation dtype
  Tensor v;        // [tokens, value_heads · value_channels]
  Tensor o;        // likewise
  Tensor before;   // [chunk_slots, value_heads, key_channels, value_channels], accumulation dtype; optional
  Tensor state;    // [sequences, value_heads, key_channels, value_channels] likewise: before and behind each
};
struct ChannelDeltaBackwardArgs {
  ChannelDeltaArgs forward;  // o undefined
  Tensor d_o, dq, dk, de, dg, dv;
};

// Slots for the states before chunks: sequence i, which begins at token s, has its own from s / chunk + i.
inline int64_t chunk_slots(int64_t tokens, int64_t sequences, int64_t chunk) {
  return tokens / chunk + sequences;
}

}  // namespace megatron
