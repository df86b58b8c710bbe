#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/autograd/saved.h"
#include "megatron/nn/seq_info.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/check.h"
#include "megatron/ops/qkv.h"

// What the nodes of context-parallel attention share.
namespace megatron::context {

// What an attention node keeps for its backward pass, and where the gradients of its inputs go.
struct SavedAttention {
  SavedAttention(RankContext& ctx, const ops::QkvHeads& kept, const Tensor& o, const Tensor& lse,
                 const ops::QkvHeads& inputs)
      : q(ctx, kept.q),
        k(ctx, kept.k),
        v(ctx, kept.v),
        o(ctx, o),
        lse(lse),
        q_slot(inputs.q.grad_slot()),
        k_slot(inputs.k.grad_slot()),
        v_slot(inputs.v.grad_slot()) {}

  Saved q, k, v, o;
  Tensor lse;
  GradSlot q_slot, k_slot, v_slot;

  void reset() {
    for (Saved* saved : {&q, &k, &v, &o}) saved->reset();
  }
};

// Rows of x [rows, …] in another order, contiguous; `rows` undefined: as they are.
inline Tensor reordered(RankContext& ctx, const Tensor& x, const Tensor& rows) {
  Tensor flat = ops::detach_contiguous(ctx, x);
  if (!rows) return flat;
  Tensor result = ctx.empty(x.shape(), x.dtype());
  int64_t columns = x.numel() / x.size(0);
  ctx.kernels->gather_rows(
      ctx.kernel_context(),
      {.table = flat.view({x.size(0), columns}), .ids = rows, .out = result.view({x.size(0), columns})});
  return result;
}

inline Tensor in_dtype(RankContext& ctx, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor result = ctx.empty(x.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {x, result});
  return result;
}

// sum += x, dtypes as they are; both contiguous.
inline void add_to(RankContext& ctx, const Tensor& sum, const Tensor& x) {
  ctx.kernels->axpby(ctx.kernel_context(), {.a = sum, .b = x, .out = sum});
}

// The first or second half of the tokens: one chunk of every sequence, in chunk-major order.
inline Tensor half(const Tensor& x, int which, int dim = 0) {
  int64_t middle = x.size(dim) / 2;
  return x.slice(dim, which ? middle : 0, which ? 2 * middle : middle);
}

// Which of the 2n chunks a rank's first or second half is.
inline int64_t chunk_of(int rank, int ranks, int which) { return which ? 2 * ranks - 1 - rank : rank; }

// The options of attention between one chunk of queries and one run of keys of every sequence.
inline ops::AttentionOptions piece_options(const ops::AttentionOptions& options, const ZigzagSlice& slice,
                                           int ranks, int64_t query_chunk) {
  ops::AttentionOptions piece = options;
  piece.batch = slice.sequences;
  piece.cu_queries = piece.cu_keys = slice.cu_chunks;
  piece.max_queries = piece.max_keys = slice.max_chunk;
  piece.offsets.query_chunk = query_chunk;
  piece.offsets.query_chunks = 2 * ranks;
  return piece;
}

}  // namespace megatron::context
