#include "megatron/kernels/cuda/families.h"
#include "megatron/kernels/cuda/gemm/gemm_sm90.cuh"
#include "megatron/kernels/cuda/loss/online_softmax.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"

namespace megatron::cuda {
namespace {

// Stores the bf16 logits of a tile, and of each row the maximum and Σ exp(x − maximum) of those rounded
// logits. Even subtiles store 64 columns, odd ones sum their exponentials.
struct SoftmaxStats {
  static constexpr bool kBKMajor = true;
  static constexpr int kSubtiles = 8, kOutputN = kTileN, kSwizzle = 16;
  struct Params {
    CUtensorMap logits;
    OnlineSoftmax<float>* partial;  // [tiles along N, rows]
    int rows, valid;
  };
  const Params& params;
  float maximum[2], sum[2];  // of this lane's two rows, whose columns four lanes share

  static __device__ void load_b(uint32_t panels, const CUtensorMap& b, Barrier full, int column, int k,
                                int rank) {
    constexpr int part = kTileN / kClusterSize;
    sm90::tma_multicast<kClusterSize>(panels + rank * (kBBytes / kClusterSize), b, full, k,
                                      column * kOutputN + rank * part, 0);
  }

  __device__ void prefetch(const EpilogueContext&, const Tile&, int) const {}

  // Sets columns beyond the vocabulary to −∞, in memory too.
  static __device__ void cut(uint32_t (&packed)[64], int columns, int lane) {
    constexpr uint32_t lowest = 0xff80;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int remaining = columns - (i / 2 * 8 + lane % 4 * 2);
      if (remaining < 2)
        packed[i] = remaining < 1 ? lowest << 16 | lowest : lowest << 16 | (packed[i] & 0xffff);
    }
  }

  static __device__ uint32_t larger(uint32_t a, uint32_t b) {
    uint32_t word;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  }

  __device__ void find_maximum(const uint32_t (&packed)[64]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t word = packed[h], other = packed[2 + h];
#pragma unroll
      for (int i = 4 + h; i < 64; i += 4) {
        word = larger(word, packed[i]);
        other = larger(other, packed[i + 2]);
      }
      word = larger(word, other);
      float largest = fmaxf(low(word), high(word));
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
      maximum[h] = largest;
      sum[h] = 0;
    }
  }

  template <int P>
  __device__ void store(const EpilogueContext& context, const Tile& tile,
                        const uint32_t (&packed)[64]) const {
    const uint32_t smem = context.smem + P % 2 * 2048;
    if (context.lane == 0) sm90::bulk_wait_read<1>();
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 8; c += 2) sm90::stmatrix(context.matrices<128>(smem, c), packed + 2 * (8 * P + c));
    sm90::fence_proxy_async();
    __syncwarp();
    if (context.lane == 0)
      sm90::tma_store(params.logits, smem, tile.column * kOutputN + P * 64, tile.row0 + context.row, 0,
                      context.policy);
    __syncwarp();
  }

  template <int P>
  __device__ void add(const uint32_t (&packed)[64]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float shift = maximum[h] == kLowest<float> ? 0.f : -maximum[h] * kRoughLog2e;
      float even = 0, odd = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t word = packed[2 * (8 * P + j) + h];
        even += exp2_rough(fmaf(low(word), kRoughLog2e, shift));
        odd += exp2_rough(fmaf(high(word), kRoughLog2e, shift));
      }
      sum[h] += even + odd;
    }
  }

  __device__ void store_statistics(const EpilogueContext& context, const Tile& tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], offset);
      const int row = tile.row0 + context.row + context.lane / 4 + 8 * h;
      if (context.lane % 4 == 0 && row < params.rows)
        params.partial[static_cast<int64_t>(tile.column) * params.rows + row] = {maximum[h], sum[h]};
    }
  }

  template <int P>
  __device__ void subtile(const EpilogueContext& context, const Tile& tile, uint32_t (&packed)[64]) {
    if constexpr (P == 0) {
      const int columns = params.valid - tile.column * kOutputN;
      if (columns < kOutputN) cut(packed, columns, context.lane);
      find_maximum(packed);
    }
    if constexpr (P % 2 == 0)
      store<P / 2>(context, tile, packed);
    else
      add<P / 2>(packed);
    if constexpr (P + 1 == kSubtiles) store_statistics(context, tile);
  }
};

// Merges the statistics of tiles into those of rows: 16 rows a block, 32 threads a row.
constexpr int kMergedRows = 16, kMergers = 32;

__global__ void __launch_bounds__(kMergedRows* kMergers)
    merge_kernel(const OnlineSoftmax<float>* partial, int tiles, int rows, const bfloat* logits,
                 int64_t stride, const int64_t* labels, int64_t vocab_begin, int64_t valid, float* maximum,
                 float* sum_exp, float* target) {
  __shared__ OnlineSoftmax<float> part[kMergers][kMergedRows + 1];
  const int here = threadIdx.x % kMergedRows, merger = threadIdx.x / kMergedRows,
            row = static_cast<int>(blockIdx.x) * kMergedRows + here;
  OnlineSoftmax<float> state;
  if (row < rows)
#pragma unroll 4
    for (int t = merger; t < tiles; t += kMergers)
      state = MergeOnlineSoftmax<float>{}(state, partial[static_cast<int64_t>(t) * rows + row]);
  part[merger][here] = state;
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
            mine = static_cast<int>(blockIdx.x) * kMergedRows + warp;
  state = warp_merge(part[lane][warp]);
  if (lane || mine >= rows) return;
  const int64_t label = labels[mine] - vocab_begin;
  maximum[mine] = state.maximum;
  sum_exp[mine] = state.sum;
  target[mine] = label >= 0 && label < valid ? widen(logits[mine * stride + label]) : 0.f;
}

bool gemm_softmax_stats(const KernelContext& ctx, const GemmSoftmaxStatsArgs& args) {
  const CrossEntropyStatsArgs& stats = args.stats;
  CUtensorMap a, b;
  SoftmaxStats::Params params;
  if (stats.sum_logits.defined() || !can_run(ctx, {args.a, args.b, stats.logits}) ||
      !make_tensor_map(DType::BF16, whole(args.a), 128, kTileM, a) ||
      !make_tensor_map(DType::BF16, whole(args.b), 128, kTileN / kClusterSize, b) ||
      !make_tensor_map(DType::BF16, whole(stats.logits), 128, 16, params.logits))
    return false;
  const int64_t rows = stats.logits.size(0), columns = stats.logits.size(1),
                tiles = (columns + kTileN - 1) / kTileN;
  static_assert(sizeof(OnlineSoftmax<float>) == 2 * sizeof(float) && kTileN == 256);
  params.partial = pointer<OnlineSoftmax<float>>(args.tiles);
  params.rows = static_cast<int>(rows);
  params.valid = static_cast<int>(stats.valid);
  launch<SoftmaxStats>(ctx, "gemm_softmax_stats", a, b, params, rows, columns, args.a.size(1));
  merge_kernel<<<blocks_for(rows, kMergedRows), kMergedRows * kMergers, 0, stream_of(ctx)>>>(
      params.partial, static_cast<int>(tiles), params.rows, pointer<bfloat>(stats.logits),
      stats.logits.stride(0), pointer<int64_t>(stats.labels), stats.vocab_begin, stats.valid,
      pointer<float>(stats.maximum), pointer<float>(stats.sum_exp), pointer<float>(stats.target));
  check_launch("gemm_softmax_stats");
  return true;
}

}  // namespace

void add_gemm_softmax_stats_kernels(KernelTable& table) { table.gemm_softmax_stats = gemm_softmax_stats; }

}  // namespace megatron::cuda
