#pragma once

#include "megatron/kernels/cuda/attention/attention_mma.cuh"
#include "megatron/kernels/cuda/attention/decode_tile.cuh"
#include "megatron/kernels/cuda/core/last_block.cuh"

// Attention of one query a sequence: keys are split over blocks, and what these have come to is joined.
namespace megatron::cuda {

inline constexpr int kFineSplitKeys = 128;

// What blocks leave of their keys for attention over all of them.
struct DecodePartials {
  float* o = nullptr;        // [sequences, heads, splits, dv], not yet divided by the sum
  float2* scores = nullptr;  // [sequences, heads, splits]: the largest, and the sum of exponentials below it
  uint32_t* arrived = nullptr;  // [sequences, parts of heads]: the last split joins all; null: combine_kernel
  int splits = 1, split_keys = kFineSplitKeys;
};

// Where a key of one sequence lies in the pool. Keys of one block are there row after row.
struct PagedRows {
  const int32_t* table;
  Divisor divisor;
  int block_size;

  __device__ int64_t operator()(int key) const {
    const uint32_t block = divisor.divide(key);
    return static_cast<int64_t>(table[block]) * block_size + (key - static_cast<int>(block) * block_size);
  }
};

// The end of online softmax: joins the sink, and writes one channel, and with the first the lse.
template <class T>
__device__ __forceinline__ void finish(const AttentionTask<T>& task, int64_t token, int head, int channel,
                                       float maximum, float sum, float acc) {
  if (task.sinks) {
    const float sink = widen(task.sinks[head]) * kLog2e, newest = fmaxf(maximum, sink);
    const float shrink = exp2_fast(maximum - newest);
    sum = sum * shrink + exp2_fast(sink - newest);
    acc *= shrink;
    maximum = newest;
  }
  task.o.row(token, head)[channel] = narrow<T>(sum == 0 ? 0.f : acc / sum);
  if (channel == 0)
    task.lse[head * task.lse_stride + token] = sum == 0 ? kLowest : maximum * kLn2 + logf(sum);
}

// Joins the splits of a sequence's keys that are in its range: one channel of one head.
template <class T>
__device__ __forceinline__ void combine(const AttentionTask<T>& task, const DecodePartials& partials,
                                        const KeyRange& range, int b, int64_t token, int head, int channel) {
  const int64_t first = (static_cast<int64_t>(b) * task.heads + head) * partials.splits;
  const int begin = range.begin / partials.split_keys,
            end =
                range.end > range.begin ? (range.end + partials.split_keys - 1) / partials.split_keys : begin;
  float newest = kLowest, total = 0, value = 0;
  for (int split = begin; split < end; ++split)
    newest = fmaxf(newest, __ldcg(&partials.scores[first + split].x));
  for (int split = begin; split < end; ++split) {
    const float2 own = __ldcg(&partials.scores[first + split]);
    const float weight = weight_of(own.x, newest);
    total += own.y * weight;
    value += __ldcg(&partials.o[(first + split) * task.dv + channel]) * weight;
  }
  finish(task, token, head, channel, newest, total, value);
}

// The end of a block: joins what its warps have come to, and writes it, or this split's part of it. The last
// of several splits joins them.
template <class T, int Warps, int G, int D>
__device__ __forceinline__ void join_warps(const AttentionTask<T>& task, const DecodePartials& partials,
                                           const KeyRange& range, int b, int64_t token, int first_head,
                                           int heads, int split, bool whole,
                                           const float (&joined)[Warps][G][D],
                                           const float2 (&scores)[Warps][G]) {
  for (int i = threadIdx.x; i < heads * task.dv; i += Warps * 32) {
    const int g = i / task.dv, c = i - g * task.dv, head = first_head + g;
    float newest = kLowest, total = 0, value = 0;
#pragma unroll
    for (int w = 0; w < Warps; ++w) newest = fmaxf(newest, scores[w][g].x);
#pragma unroll
    for (int w = 0; w < Warps; ++w) {
      const float weight = weight_of(scores[w][g].x, newest);
      total += scores[w][g].y * weight;
      value += joined[w][g][c] * weight;
    }
    if (whole) {
      finish(task, token, head, c, newest, total, value);
      continue;
    }
    const int64_t at = (static_cast<int64_t>(b) * task.heads + head) * partials.splits + split;
    partials.o[at * task.dv + c] = value;
    if (c == 0) partials.scores[at] = {newest, total};
  }
  if (whole || !partials.arrived) return;
  const int splits =
      (range.end + partials.split_keys - 1) / partials.split_keys - range.begin / partials.split_keys;
  if (!last_to_arrive(partials.arrived + b * gridDim.y + blockIdx.y, splits)) return;
  for (int i = threadIdx.x; i < heads * task.dv; i += Warps * 32) {
    const int g = i / task.dv;
    combine(task, partials, range, b, token, first_head + g, i - g * task.dv);
  }
}

// The kernel on tensor cores: heads of 64 or 128 channels, and blocks of the cache of whole tiles of 16 keys.
// A KV head's query heads are cut into `parts` of at most kTileHeads.
template <class T>
void launch_mma_decode(const KernelContext& ctx, const AttentionTask<T>& task, const DecodePartials& partials,
                       int parts);
template <class T>
bool fits_mma_decode(const AttentionTask<T>& task) {
  return task.d == task.dv && (task.d == 64 || task.d == 128) && task.block_size % kTileKeys == 0;
}

// Launches a kernel of heads of 64 channels, or of 128.
template <class T, class Kernel>
void launch_decode(const KernelContext& ctx, const AttentionTask<T>& task, const DecodePartials& partials,
                   int parts, int threads, Kernel of_64, Kernel of_128) {
  const dim3 grid(static_cast<unsigned>(partials.splits), static_cast<unsigned>(task.kv_heads * parts),
                  static_cast<unsigned>(task.batch));
  step_launch(ctx, "attention", grid, threads)
      .run(task.d == 64 ? of_64 : of_128, task, Divisor(task.block_size), parts, partials, ctx.pdl);
}

// The same for keys and values in e4m3.
template <class T>
void launch_fp8_decode(const KernelContext& ctx, const AttentionTask<T>& task, const DecodePartials& partials,
                       int parts);

}  // namespace megatron::cuda
