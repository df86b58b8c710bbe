#pragma once

#include "megatron/nn/seq_info.h"
#include "megatron/ops/attention.h"
#include "megatron/parallel/context/context_parallel.h"

namespace megatron {

// Attention of sequences that are split over the ranks of a group, each giving q, k, v of the tokens that it
// holds (zigzag) and getting o of the same. `options` are those of attention on one rank, but that sequences
// and chunks come from `slices`; offsets.row_length says that they are packed.
Tensor context_attention(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                         const ops::AttentionOptions& options, const ContextSlices& slices,
                         const ContextParallel& context, ContextKind kind);

// The ways of which that is made.
Tensor ring_attention(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                      const ops::AttentionOptions& options, const ZigzagSlice& slice,
                      const ProcessGroup& group);
Tensor all_gather_kv_attention(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const ops::AttentionOptions& options, const ContextSlices& slices,
                               const ProcessGroup& group);
// x [tokens, heads, channels] of this rank's tokens and all heads ↔ [tokens · ranks, heads / ranks, channels]
// of all ranks' tokens, put into `order`, and this rank's share of the heads.
Tensor tokens_for_heads(RankContext& ctx, const Tensor& x, const ProcessGroup& group, const RowOrder& order);
Tensor heads_for_tokens(RankContext& ctx, const Tensor& x, const ProcessGroup& group, const RowOrder& order);

}  // namespace megatron
