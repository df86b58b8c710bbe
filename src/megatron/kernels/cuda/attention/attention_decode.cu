#include "megatron/kernels/cuda/attention/attention_decode.cuh"
#include "megatron/kernels/limits/attention.h"

namespace megatron::cuda {
namespace {

constexpr int kDecodeWarps = 8, kDecodeThreads = kDecodeWarps * 32;
// Keys of a block: few sequences are cut finely, so that all SMs have some; of many, a block has so much to
// do that its beginning and end do not count. The cut, and with it the order of sums, depends on how many
// sequences there are, and on nothing else of the others.
constexpr int kFewSequences = 16, kSplitKeys = 1024;
constexpr int kKeysAhead = 4;  // that a lane has on their way at once

template <class T>
__device__ __forceinline__ void widened(float (&to)[8], const uint4& bits) {
  const Vec<T, 8> values = __builtin_bit_cast(Vec<T, 8>, bits);
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = widen(values.v[i]);
}

// Attention of one query a sequence to keys in blocks of a pool.
// Math: o = softmax(scale · q · kᵀ + masks) · v by online softmax. D/8 lanes take a key together, eight
// channels each; they add up q · k by shuffles. Every such group of lanes has a softmax of its own over its
// keys, for G query heads that share the KV head; groups and warps are joined at the end.
// Grid: (splits of keys, KV heads times parts of G of their query heads, sequences). Sequences with more
// queries are another kernel's. The last of several splits joins them, or combine_kernel.
// PDL: the first keys and values go to the L2 cache before the block waits for the query.
// Shared memory: what each warp has come to, [warps, G, D] and its maximum and sum.
template <class T, int D, int G>
__global__ void __launch_bounds__(kDecodeThreads, G <= 4 ? 2 : 1)
    decode_kernel(const __grid_constant__ AttentionTask<T> task, const Divisor block_size, const int parts,
                  const DecodePartials partials, const bool prefetches) {
  constexpr int Lanes = D / 8, Keys = 32 / Lanes;  // of a key, and of a warp at once
  __shared__ float joined[kDecodeWarps][G][D];
  __shared__ float2 scores[kDecodeWarps][G];
  const int split = blockIdx.x, kv_head = blockIdx.y / parts, b = blockIdx.z;
  const int first_head = kv_head * task.group + blockIdx.y % parts * G;
  const int heads = min(G, (kv_head + 1) * task.group - first_head);
  griddep_launch();
  const SequenceSpan s = task.sequence(b);
  const KeyRange range = s.queries == 1 ? task.visible(s, 0) : KeyRange{};
  const int begin = max(range.begin, split * partials.split_keys),
            end = min(range.end, (split + 1) * partials.split_keys);
  const PagedRows row_of{task.blocks + b * task.blocks_stride, block_size, task.block_size};
  if (prefetches && begin < end)
    for (int i = threadIdx.x; i < 2 * min(end - begin, kFineSplitKeys); i += kDecodeThreads) {
      const int64_t row = row_of(begin + i / 2);
      const T* data = i % 2 ? task.v.row(row, kv_head) : task.k.row(row, kv_head);
      for (int c = 0; c < (i % 2 ? task.dv : task.d); c += 64) prefetch(data + c);
    }
  griddep_wait();
  const bool whole = partials.splits == 1 || range.begin >= range.end;  // this split is all there is
  if (s.queries != 1 || (begin >= end && !(whole && split == 0))) return;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, channel = lane % Lanes * 8;
  const int64_t token = s.first_query;
  float q[G][8], acc[G][8] = {}, maximum[G], sum[G];
#pragma unroll
  for (int g = 0; g < G; ++g) {
    const bool valid = g < heads && channel < task.d;
    widened<T>(
        q[g], valid ? *reinterpret_cast<const uint4*>(task.q.row(token, first_head + g) + channel) : uint4{});
    maximum[g] = kLowest;
    sum[g] = 0;
  }
  for (int key0 = begin + warp * Keys * kKeysAhead; key0 < end; key0 += kDecodeWarps * Keys * kKeysAhead) {
    uint4 k[kKeysAhead], v[kKeysAhead];
#pragma unroll
    for (int a = 0; a < kKeysAhead; ++a) {
      const int key = key0 + a * Keys + lane / Lanes;
      const bool valid = key < end;
      const int64_t row = row_of(valid ? key : begin);
      k[a] = valid && channel < task.d ? *reinterpret_cast<const uint4*>(task.k.row(row, kv_head) + channel)
                                       : uint4{};
      v[a] = valid && channel < task.dv ? *reinterpret_cast<const uint4*>(task.v.row(row, kv_head) + channel)
                                        : uint4{};
    }
    float score[kKeysAhead][G];
#pragma unroll
    for (int a = 0; a < kKeysAhead; ++a) {
      const int key = key0 + a * Keys + lane / Lanes;
      float wide[8];
      widened<T>(wide, k[a]);
#pragma unroll
      for (int g = 0; g < G; ++g) {
        float dot = 0, slope;
#pragma unroll
        for (int i = 0; i < 8; ++i) dot += q[g][i] * wide[i];
#pragma unroll
        for (int offset = Lanes / 2; offset; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
        score[a][g] = key < end ? task.score(dot, b, first_head + g, 0, key, slope) * kLog2e : kLowest;
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float newest = maximum[g];
#pragma unroll
      for (int a = 0; a < kKeysAhead; ++a) newest = fmaxf(newest, score[a][g]);
      const float shrink = weight_of(maximum[g], newest);
      maximum[g] = newest;
      sum[g] *= shrink;
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[g][i] *= shrink;
#pragma unroll
      for (int a = 0; a < kKeysAhead; ++a) {
        score[a][g] = weight_of(score[a][g], newest);
        sum[g] += score[a][g];
      }
    }
#pragma unroll
    for (int a = 0; a < kKeysAhead; ++a) {
      float wide[8];
      widened<T>(wide, v[a]);
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[g][i] += score[a][g] * wide[i];
    }
  }

#pragma unroll
  for (int g = 0; g < G; ++g) {
#pragma unroll
    for (int offset = Lanes; offset < 32; offset *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, maximum[g], offset),
                  other_sum = __shfl_xor_sync(0xffffffffu, sum[g], offset), newest = fmaxf(maximum[g], other);
      const float own = weight_of(maximum[g], newest), added = weight_of(other, newest);
      sum[g] = sum[g] * own + other_sum * added;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        acc[g][i] = acc[g][i] * own + __shfl_xor_sync(0xffffffffu, acc[g][i], offset) * added;
      maximum[g] = newest;
    }
    if (lane < Lanes) {
#pragma unroll
      for (int i = 0; i < 8; ++i) joined[warp][g][channel + i] = acc[g][i];
      if (lane == 0) scores[warp][g] = {maximum[g], sum[g]};
    }
  }
  __syncthreads();

  join_warps(task, partials, range, b, token, first_head, heads, split, whole, joined, scores);
}

// Joins the splits of a sequence's keys. Grid: (heads, sequences), a thread for each channel.
template <class T>
__global__ void __launch_bounds__(limits::kMaxHeadDim)
    combine_kernel(const __grid_constant__ AttentionTask<T> task, const DecodePartials partials) {
  const int head = blockIdx.x, b = blockIdx.y, c = threadIdx.x;
  griddep_overlap();
  const SequenceSpan s = task.sequence(b);
  if (s.queries != 1 || c >= task.dv) return;
  combine(task, partials, task.visible(s, 0), b, s.first_query, head, c);
}

// `heads` of a KV head are a block's; `run` launches the kernel that attends.
template <class T, class Run>
void launch_splits(const KernelContext& ctx, const AttentionTask<T>& task, int heads, Run&& run) {
  const int parts = static_cast<int>(blocks_for(task.group, heads)),
            split_keys = task.batch <= kFewSequences ? kFineSplitKeys : kSplitKeys,
            splits = std::max(1, static_cast<int>(blocks_for(task.keys, split_keys)));
  const size_t each = static_cast<size_t>(task.batch) * static_cast<size_t>(task.heads) *
                      static_cast<size_t>(splits == 1 ? 0 : splits);
  const Scratch scratch(ctx, each * (sizeof(float2) + static_cast<size_t>(task.dv) * sizeof(float)));
  DecodePartials partials;
  partials.splits = splits;
  partials.split_keys = split_keys;
  if (splits > 1) {
    partials.scores = scratch.as<float2>();
    partials.o = scratch.as<float>(each * sizeof(float2));
    partials.arrived = arrival_counters(ctx, int64_t{task.batch} * task.kv_heads * parts);
  }
  run(partials, parts);
  if (splits == 1 || partials.arrived) return;
  const dim3 each_head(static_cast<unsigned>(task.heads), static_cast<unsigned>(task.batch));
  step_launch(ctx, "attention", each_head, blocks_for(task.dv, 32) * 32)
      .run(combine_kernel<T>, task, partials);
}

template <class T, int D, int G>
void launch(const KernelContext& ctx, const AttentionTask<T>& task) {
  launch_splits(ctx, task, G, [&](const DecodePartials& partials, int parts) {
    const dim3 grid(static_cast<unsigned>(partials.splits), static_cast<unsigned>(task.kv_heads * parts),
                    static_cast<unsigned>(task.batch));
    step_launch(ctx, "attention", grid, kDecodeThreads)
        .run(decode_kernel<T, D, G>, task, Divisor(task.block_size), parts, partials, ctx.pdl);
  });
}

template <class T, int D>
void launch(const KernelContext& ctx, const AttentionTask<T>& task) {
  if (task.group == 1) return launch<T, D, 1>(ctx, task);
  if (task.group == 2) return launch<T, D, 2>(ctx, task);
  if constexpr (D <= 128)  // shared memory for eight heads of 256 channels would be more than a kernel has
    if (task.group > 4) return launch<T, D, 8>(ctx, task);
  launch<T, D, 4>(ctx, task);
}

}  // namespace

template <class T>
bool decode_attention(const KernelContext& ctx, const AttentionTask<T>& task) {
  const int head_dim = std::max(task.d, task.dv);
  if (!task.blocks || task.bias || task.dropout > 0 || head_dim > limits::kMaxHeadDim ||
      !fits_tensor_cores(task))
    return false;
  if (task.fp8_k.data) {
    if (!fits_mma_decode(task) || !task.fp8_k.vectors(16) || !task.fp8_v.vectors(16)) return false;
    launch_splits(ctx, task, kTileHeads, [&](const DecodePartials& partials, int parts) {
      launch_fp8_decode(ctx, task, partials, parts);
    });
  } else if (fits_mma_decode(task))
    launch_splits(ctx, task, kTileHeads, [&](const DecodePartials& partials, int parts) {
      launch_mma_decode(ctx, task, partials, parts);
    });
  else if (head_dim <= 64)
    launch<T, 64>(ctx, task);
  else if (head_dim <= 128)
    launch<T, 128>(ctx, task);
  else
    launch<T, 256>(ctx, task);
  return true;
}

template bool decode_attention(const KernelContext&, const AttentionTask<bfloat>&);
template bool decode_attention(const KernelContext&, const AttentionTask<half>&);

}  // namespace megatron::cuda
