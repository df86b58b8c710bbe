#pragma once

#include <cmath>
#include <limits>

#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"
#include "megatron/kernels/fp8_pages.h"

namespace megatron::cuda {

// A [tokens, heads, head_dim] tensor with unit stride in head_dim.
template <class T>
struct HeadTensor {
  T* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;

  HeadTensor() = default;
  explicit HeadTensor(const Tensor& x) {
    if (!x.defined()) return;
    data = pointer<T>(x);
    token_stride = x.stride(0);
    head_stride = x.stride(1);
  }
  __device__ T* row(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
  bool vectors(int width) const {
    return aligned(data) && token_stride % width == 0 && head_stride % width == 0;
  }
};

// Two values of e4m3, of the lower two bytes.
__device__ __forceinline__ float2 widen_e4m3(uint32_t pair) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair & 0xffffu), __NV_E4M3);
  return __half22float2(halves);
}

// HeadTensor in e4m3 with scales: kernels/fp8_pages.h.
struct Fp8Heads {
  const uint8_t* data = nullptr;
  int64_t token_stride = 0, head_stride = 0, scales = 0;  // scales: where they begin in a row

  explicit Fp8Heads(const Tensor& x) {
    if (x.dtype() != DType::F8E4M3) return;
    data = pointer<const uint8_t>(x);
    token_stride = x.stride(0);
    head_stride = x.stride(1);
    scales = fp8_scale_offset(token_stride, x.size(1));
  }
  __device__ const uint8_t* row(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
  __device__ const float* scale(int64_t token, int64_t head) const {
    return reinterpret_cast<const float*>(data + token * token_stride + scales) + head;
  }
  bool vectors(int width) const {
    return aligned(data) && token_stride % width == 0 && head_stride % width == 0;
  }
};

struct SequenceSpan {
  int first_query, queries, first_key, keys;
};

// The keys [begin, end) that a query sees.
struct KeyRange {
  int begin, end;
  __device__ bool holds(int key) const { return key >= begin && key < end; }
};

// AttentionArgs as the device sees them.
template <class T>
struct AttentionTask {
  using C = Compute<T>;
  HeadTensor<T> q, k, v, o;
  Fp8Heads fp8_k, fp8_v;  // instead of k and v
  C* lse;
  int64_t lse_stride;
  int batch, heads, kv_heads, group, d, dv;
  int queries, keys;  // of the longest sequence
  int query_tokens;
  int min_queries = 1;  // sequences with fewer are another kernel's
  const int32_t *cu_queries, *cu_keys;
  const int32_t *blocks, *key_lengths;  // keys in blocks of a pool; null: one sequence after the other
  int64_t blocks_stride;
  int block_size;
  C scale, softcap, dropout_scale;
  bool causal;
  int window_left, window_right;
  const T *sinks, *bias;
  int64_t bias_batch, bias_head, bias_query, bias_key;
  double dropout;
  uint32_t dropped;  // of the values that the upper 24 bits of a random word have, the lowest ones
  RngKey dropout_key;
  AttentionOffsets offsets;

  explicit AttentionTask(const AttentionArgs& args)
      : q(args.q),
        k(args.k.dtype() == DType::F8E4M3 ? HeadTensor<T>() : HeadTensor<T>(args.k)),
        v(args.v.dtype() == DType::F8E4M3 ? HeadTensor<T>() : HeadTensor<T>(args.v)),
        o(args.o),
        fp8_k(args.k),
        fp8_v(args.v),
        lse(pointer<C>(args.lse)),
        lse_stride(args.lse.stride(0)),
        batch(static_cast<int>(args.batch)),
        heads(static_cast<int>(args.q.size(1))),
        kv_heads(static_cast<int>(args.k.size(1))),
        group(heads / kv_heads),
        d(static_cast<int>(args.q.size(2))),
        dv(static_cast<int>(args.v.size(2))),
        query_tokens(static_cast<int>(args.q.size(0))),
        cu_queries(args.cu_queries ? pointer<int32_t>(args.cu_queries) : nullptr),
        cu_keys(args.cu_keys ? pointer<int32_t>(args.cu_keys) : nullptr),
        blocks(args.blocks ? pointer<int32_t>(args.blocks) : nullptr),
        key_lengths(args.key_lengths ? pointer<int32_t>(args.key_lengths) : nullptr),
        blocks_stride(args.blocks ? args.blocks.stride(0) : 0),
        block_size(static_cast<int>(args.block_size)),
        scale(static_cast<C>(args.scale)),
        softcap(static_cast<C>(args.softcap)),
        dropout_scale(static_cast<C>(args.dropout > 0 ? 1 / (1 - args.dropout) : 1)),
        causal(args.causal),
        window_left(static_cast<int>(args.window_left)),
        window_right(static_cast<int>(args.window_right)),
        sinks(args.sinks ? pointer<T>(args.sinks) : nullptr),
        bias(args.bias ? pointer<T>(args.bias) : nullptr),
        dropout(args.dropout),
        dropped(static_cast<uint32_t>(std::ceil(static_cast<float>(args.dropout) * 0x1p24f))),
        dropout_key(args.dropout_key),
        offsets(args.offsets) {
    int64_t key_tokens = args.k.size(0);
    queries = static_cast<int>(cu_queries ? (args.max_queries ? args.max_queries : query_tokens)
                                          : query_tokens / args.batch);
    keys = static_cast<int>(cu_keys || blocks ? (args.max_keys ? args.max_keys : key_tokens)
                                              : key_tokens / args.batch);
    if (bias) {
      bias_batch = args.bias.size(0) == 1 ? 0 : args.bias.stride(0);
      bias_head = args.bias.size(1) == 1 ? 0 : args.bias.stride(1);
      bias_query = args.bias.stride(2);
      bias_key = args.bias.stride(3);
    }
  }

  __device__ SequenceSpan sequence(int b) const {
    if (!cu_queries) return {b * queries, queries, b * keys, keys};
    if (blocks) return {cu_queries[b], cu_queries[b + 1] - cu_queries[b], 0, key_lengths[b]};
    return {cu_queries[b], cu_queries[b + 1] - cu_queries[b], cu_keys[b], cu_keys[b + 1] - cu_keys[b]};
  }

  // The row of k and v that holds a key of sequence b.
  __device__ int64_t key_row(const SequenceSpan& s, int b, int key) const {
    if (!blocks) return s.first_key + key;
    return static_cast<int64_t>(blocks[b * blocks_stride + key / block_size]) * block_size + key % block_size;
  }

  __device__ int shift(const SequenceSpan& s) const {
    return static_cast<int>(attention_shift(offsets, s.queries, s.keys));
  }
  __device__ KeyRange visible(const SequenceSpan& s, int query) const {
    int own = query + shift(s);
    int begin = window_left >= 0 ? own - window_left : 0;
    int end = causal ? own + 1 : (window_right >= 0 ? own + window_right + 1 : s.keys);
    end = max(0, min(end, s.keys));
    return {min(max(begin, 0), end), end};
  }
  // The queries [begin, end) that see some key of [first, last).
  __device__ KeyRange seeing(const SequenceSpan& s, int first, int last) const {
    int ahead = shift(s);
    int begin = causal ? first - ahead : (window_right >= 0 ? first - window_right - ahead : 0);
    int end = window_left >= 0 ? last + window_left - ahead : s.queries;
    end = max(0, min(end, s.queries));
    return {min(max(begin, 0), end), end};
  }

  __device__ bool plain() const { return softcap == 0 && !bias; }

  // The score from q · k; `slope` receives the derivative of the softcap.
  __device__ C score(C qk, int b, int head, int query, int key, C& slope) const {
    C s = qk * scale;
    slope = C(1);
    if (softcap > 0) {
      C t = tanh_of(s / softcap);
      slope = C(1) - t * t;
      s = softcap * t;
    }
    if (bias) s += widen(bias[b * bias_batch + head * bias_head + query * bias_query + key * bias_key]);
    return s;
  }

  // What a probability is multiplied by.
  __device__ C keep(int b, int head, int query, int key) const {
    SequenceSpan s = sequence(b);
    AttentionOrigin origin = attention_origin(offsets, b, s.first_query, s.queries, s.keys);
    return attention_keeps(dropout_key.resolved(), offsets.global_heads, dropout, origin.row,
                           offsets.head_begin + head, origin.query + query, origin.key + key)
               ? dropout_scale
               : C(0);
  }
  // Which of the 32 keys from `key` on are kept, a bit each: as attention_keeps has it, by a Philox block for
  // four of them. `random` is the resolved key, `origin` that of the sequence.
  __device__ uint32_t kept(const RngKey& random, const AttentionOrigin& origin, int head, int query,
                           int key) const {
    const uint64_t row = static_cast<uint64_t>(origin.row) * offsets.global_heads + offsets.head_begin + head,
                   first = static_cast<uint64_t>(origin.key + key),
                   line = (row << 40) ^ (static_cast<uint64_t>(origin.query + query) << 20);
    const int skipped = static_cast<int>(first & 3), blocks = skipped ? 9 : 8;
    uint64_t bits = 0;
#pragma unroll 2
    for (int block = 0; block < blocks; ++block) {
      const Philox words = Philox::at(random, (line ^ ((first & ~uint64_t{3}) + 4 * block)) >> 2);
      uint32_t four = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) four |= (words.word[i] >> 8 >= dropped ? 1u : 0u) << i;
      bits |= static_cast<uint64_t>(four) << (4 * block);
    }
    return static_cast<uint32_t>(bits >> skipped);
  }
};

// The backward pass's arguments beyond the forward task. delta is ⟨grad_o, o⟩ [heads, query tokens].
template <class T>
struct AttentionGrads {
  HeadTensor<T> grad_o, dq, dk, dv;
  const Compute<T>* delta;
};

// One thread per score: every dtype and feature, head_dim up to limits::kMaxHeadDim.
template <class T>
void simt_attention(const KernelContext& ctx, const AttentionTask<T>& task);
template <class T>
void simt_attention_backward(const KernelContext& ctx, const AttentionTask<T>& task,
                             const AttentionGrads<T>& grads, bool queries, bool keys);

// Keys in blocks, sequences with one query alone, bf16 and fp16. False where the shapes or alignments do not
// fit: then nothing was done.
template <class T>
bool decode_attention(const KernelContext& ctx, const AttentionTask<T>& task);

// Tensor cores, bf16 and fp16. False where the shapes or alignments do not fit: then nothing was done.
template <class T>
bool mma_attention(const KernelContext& ctx, const AttentionTask<T>& task);
template <class T>
bool mma_attention_dq(const KernelContext& ctx, const AttentionTask<T>& task, const AttentionGrads<T>& grads);
template <class T>
bool mma_attention_dkv(const KernelContext& ctx, const AttentionTask<T>& task,
                       const AttentionGrads<T>& grads);

// args.max_scores, by a pass of its own over q and k, whichever kernel attends.
void attention_max_scores(const KernelContext& ctx, const AttentionArgs& args);

}  // namespace megatron::cuda
