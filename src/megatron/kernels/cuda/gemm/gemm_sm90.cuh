#pragma once

#include "megatron/kernels/cuda/core/sm90.cuh"
#include "megatron/kernels/cuda/core/tensor_map.h"

// Persistent sm_90a GEMM; a tile's epilogue overlaps the next tile's mainloop.
// Math: c [m, n] = a [m, k] · b in bf16 with fp32 accumulators. The including file gives the Epilogue.
// Grid: one block an SM, clusters of 2 blocks along m. A block has 384 threads. One thread of the producer
// warpgroup issues TMA; two consumer warpgroups run wgmma m64n256k16, each on 64 rows of the 128 × 256 tile.
// Shared memory: 4 stages of A (128 × 64) and B (256 × 64) with the 128-byte swizzle, then 4 KiB of epilogue
// buffer a consumer warp, then the barriers. Each block of a cluster loads half of B and multicasts it.
// Barriers: full[stage] counts TMA bytes. empty[stage] counts the 16 consumer warps of the cluster.
// loaded[2] of each consumer warp count the bytes that its epilogue prefetches.
// Packed as bf16x2, a tile's accumulators take 64 registers a thread instead of 128. So the next tile starts
// at once, and the epilogue stores the last one in subtiles between its k steps.
namespace megatron::cuda {
namespace {

using sm90::Barrier;
using sm90::kPanel;
using sm90::kPanelBytes;

constexpr int kTileM = 128, kTileN = 256, kTileK = kPanel, kStages = 4, kClusterSize = 2;
constexpr int kConsumerThreads = 256, kBlockThreads = 128 + kConsumerThreads, kWarps = kConsumerThreads / 32;
constexpr int kABytes = kTileM / kPanel * kPanelBytes, kBBytes = kTileN / kPanel * kPanelBytes,
              kStageBytes = kABytes + kBBytes;
// Offsets in shared memory.
constexpr int kEpilogueBytes = 4096, kEpilogueSmem = kStages * kStageBytes,
              kBarriers = kEpilogueSmem + kWarps * kEpilogueBytes,
              kSharedBytes = kBarriers + 8 * (2 * kStages + 2 * kWarps);

struct ProblemShape {
  int m, tiles_n, tiles_k;  // rows of A; tiles along N; tiles of 64 along K
};

struct Tile {
  int row0, column;  // first row; index of the tile along N
};

// Yields the tiles of one block: down kSwizzle clusters, then along N, so that running blocks share operands
// in the L2 cache.
template <int kSwizzle>
class TileScheduler {
 public:
  __device__ TileScheduler(const ProblemShape& shape, int rank)
      : shape_(shape),
        rank_(rank),
        tiles_m_((shape.m + kTileM * kClusterSize - 1) / (kTileM * kClusterSize)),
        next_(static_cast<int>(blockIdx.x) / kClusterSize) {}

  __device__ bool next(Tile& tile) {
    if (next_ >= tiles_m_ * shape_.tiles_n) return false;
    const int group = next_ / (kSwizzle * shape_.tiles_n), rest = next_ - group * kSwizzle * shape_.tiles_n,
              height = min(kSwizzle, tiles_m_ - group * kSwizzle);
    tile.row0 = ((group * kSwizzle + rest % height) * kClusterSize + rank_) * kTileM;
    tile.column = rest / height;
    next_ += static_cast<int>(gridDim.x) / kClusterSize;
    return true;
  }

 private:
  const ProblemShape& shape_;
  int rank_, tiles_m_, next_;
};

// The elements of a packed bf16x2.
__device__ __forceinline__ float low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// What the epilogue of one warp, which owns 16 rows of a tile, works with. packed[2 j] and packed[2 j + 1]
// hold columns 8 j to 8 j + 7 of rows 0 to 7 and 8 to 15.
struct EpilogueContext {
  uint32_t smem;      // its kEpilogueBytes
  Barrier loaded[2];  // of prefetched data, for even and odd subtiles
  int row, lane;
  uint64_t policy;  // L2 evict first

  // Address of this lane's row for ldmatrix or stmatrix of 16 rows and 16 columns from column 8 c on, in a
  // buffer with rows of Bytes and the swizzle of as many.
  template <int Bytes>
  __device__ uint32_t matrices(uint32_t buffer, int c) const {
    const int r = lane % 16, turn = Bytes == 128 ? r % 8 : r / 2 % 4;
    return buffer + r * Bytes + (((c + lane / 16) ^ turn) << 4);
  }
};

template <int... P, class F>
__device__ __forceinline__ void each(std::integer_sequence<int, P...>, F&& f) {
  (f(std::integral_constant<int, P>{}), ...);
}

// Epilogue has: Params (kernel arguments), kOutputN (columns of the output in a tile), kSubtiles, kSwizzle,
// kBKMajor (b is K-major), load_b(), prefetch() for a subtile ahead, and subtile<p>(), which stores one.
template <class Epilogue>
__global__ void __launch_bounds__(kBlockThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                     const __grid_constant__ typename Epilogue::Params params,
                     const __grid_constant__ ProblemShape shape) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  const uint32_t stages = shared_address(memory);
  auto smem_a = [&](int s) { return stages + s * kStageBytes; };
  auto smem_b = [&](int s) { return smem_a(s) + kABytes; };
  auto full = [&](int s) { return Barrier{stages + kBarriers + 8 * s}; };
  auto empty = [&](int s) { return full(kStages + s); };
  auto loaded = [&](int i) { return full(2 * kStages + i); };
  const int rank = sm90::cluster_rank();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      full(s).init(1);
      empty(s).init(kClusterSize * kWarps);  // both blocks read the multicast B
    }
    for (int i = 0; i < 2 * kWarps; ++i) loaded(i).init(1);
    sm90::fence_mbarrier_init();
  }
  sm90::cluster_sync();
  TileScheduler<Epilogue::kSwizzle> scheduler(shape, rank);
  Tile tile;
  sm90::PipelineState<kStages> pipe;
  if (threadIdx.x < 128) {
    sm90::setmaxnreg_dec<24>();
    if (threadIdx.x == 0)
      while (scheduler.next(tile))
        for (int k = 0; k < shape.tiles_k; ++k, pipe.advance()) {
          empty(pipe.stage).wait(pipe.parity ^ 1);
          full(pipe.stage).arrive_expect_tx(kStageBytes);
          sm90::tma_load(smem_a(pipe.stage), a, full(pipe.stage), k * kTileK, tile.row0, 0);
          Epilogue::load_b(smem_b(pipe.stage), b, full(pipe.stage), tile.column, k * kTileK, rank);
        }
  } else {
    sm90::setmaxnreg_inc<240>();
    const int warp = static_cast<int>(threadIdx.x) / 32 - 4, lane = threadIdx.x % 32;
    Epilogue epilogue{params};
    const EpilogueContext context{stages + kEpilogueSmem + warp * kEpilogueBytes,
                                  {loaded(2 * warp), loaded(2 * warp + 1)},
                                  warp * 16,
                                  lane,
                                  sm90::l2_evict_first()};
    float acc[128];
    uint32_t packed[64];
    Tile before{};  // the tile in `packed`
    bool waiting = false;
    for (bool more = true; more;) {
      more = scheduler.next(tile);
      const int steps = more ? shape.tiles_k : 0;
      int k = 0, oldest = pipe.stage;  // the oldest stage that wgmma may still read
      auto release = [&] {
        if (lane < kClusterSize) empty(oldest).arrive_cluster(lane);
        oldest = oldest + 1 == kStages ? 0 : oldest + 1;
      };
      auto step = [&] {
        full(pipe.stage).wait(pipe.parity);
        const uint64_t a_desc = sm90::smem_desc(smem_a(pipe.stage) + warp / 4 * kPanelBytes),
                       b_desc = sm90::smem_desc(smem_b(pipe.stage));
        sm90::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTileK / 16; ++i)
          sm90::wgmma_mma<bfloat, true, Epilogue::kBKMajor>(acc, sm90::advance_desc<true>(a_desc, i),
                                                            sm90::advance_desc<Epilogue::kBKMajor>(b_desc, i),
                                                            k || i);
        sm90::wgmma_commit();
        if (k) {  // the wgmma of the last step is done, this one may run
          sm90::wgmma_wait<1>();
          release();
        }
        pipe.advance();
        ++k;
      };
      // The k steps of this tile, and between them the subtiles of the tile before.
      each(std::make_integer_sequence<int, Epilogue::kSubtiles>{}, [&](auto index) {
        constexpr int p = decltype(index)::value;
        constexpr bool last = p + 1 == Epilogue::kSubtiles;
        const int until = steps * (p + 1) / Epilogue::kSubtiles;
        bool prefetched = false;
        do {
          if (k < until) step();
          if (!prefetched && (last ? more : waiting))
            epilogue.prefetch(context, last ? tile : before, last ? 0 : p + 1);
          prefetched = true;
        } while (k < until);
        if (waiting) epilogue.template subtile<p>(context, before, packed);
      });
      sm90::wgmma_wait<0>();
      if (more) release();
#pragma unroll
      for (int i = 0; i < 64; ++i) packed[i] = narrow_pair<bfloat>(acc[2 * i], acc[2 * i + 1]);
      before = tile;
      waiting = true;
    }
    sm90::bulk_wait_read<0>();
  }
  __syncwarp();
  sm90::cluster_sync();  // the other block may still arrive at this block's barriers
#else
  __trap();
#endif
}

// Code for sm_90a runs on GPUs of compute capability 9.0 alone.
bool can_run(const KernelContext& ctx, std::initializer_list<Tensor> tensors) {
#ifdef MEGATRON_SM90A
  if (runtime_of(ctx).properties().compute_capability != 90) return false;
  for (const Tensor& t : tensors)
    if (t.dtype() != DType::BF16 || t.numel() == 0 || t.size(0) >= 1 << 30 || t.size(1) >= 1 << 30 ||
        t.stride(1) != 1)
      return false;
  return true;
#else
  return false;
#endif
}

Matrices whole(const Tensor& t) {
  return {t.raw(), t.size(1), t.size(0), 1, t.stride(0), t.stride(0) * t.size(0)};
}

template <class Epilogue>
void launch(const KernelContext& ctx, const char* name, const CUtensorMap& a, const CUtensorMap& b,
            const typename Epilogue::Params& params, int64_t m, int64_t n, int64_t k) {
  auto kernel = gemm_sm90_kernel<Epilogue>;
  cudaLaunchConfig_t config{};
  config.stream = stream_of(ctx);  // also makes its GPU current
  allow_shared_memory(kernel, kSharedBytes);
  const ProblemShape shape{static_cast<int>(m),
                           static_cast<int>((n + Epilogue::kOutputN - 1) / Epilogue::kOutputN),
                           static_cast<int>((k + kTileK - 1) / kTileK)};
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterSize, 1, 1};
  config.gridDim = runtime_of(ctx).properties().sm_count / kClusterSize * kClusterSize;
  config.blockDim = kBlockThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, a, b, params, shape), name);
}

}  // namespace
}  // namespace megatron::cuda
