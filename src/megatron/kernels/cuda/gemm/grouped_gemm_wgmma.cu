#include "megatron/kernels/cuda/core/sm90.cuh"
#include "megatron/kernels/cuda/core/tensor_map.h"
#include "megatron/kernels/cuda/gemm/grouped_gemm.cuh"

namespace megatron::cuda {
namespace {

using sm90::Barrier;
using sm90::kPanel;
using sm90::kPanelBytes;

// Persistent sm_90a grouped GEMM.
// Math: forward and input gradient: c[rows of e] = a[rows of e] · b[e]. Weight gradient (RaggedK): c[e] =
// beta · c[e] + a[rows of e]ᵀ · b[rows of e].
// Grid: one block an SM; a TileScheduler walks all experts' tiles from the offsets on the device. A block
// has 384 threads. One thread of the producer warpgroup issues TMA; two consumer warpgroups run wgmma
// m64n256k16, each on 64 rows of the 128 × 256 tile.
// Shared memory: 3 or 4 stages of A (128 × 64) and B (256 × 64) with the 128-byte swizzle, then the output
// buffer, then the barriers. The output is stored from its buffer while the next tile runs. Old values that
// a 16-bit weight gradient is added to are loaded into the same buffer while the tile's wgmma run.
// Barriers: full[stage] counts TMA bytes, empty[stage] the 8 consumer warps, old[warp] the bytes of a warp's
// old values. Named barrier 1 holds all consumers, 2 and 3 one warpgroup each.
constexpr int kTileM = 128, kTileN = 256;
[[maybe_unused]] constexpr int kTileK = kPanel;
constexpr int kConsumerThreads = 256, kBlockThreads = 128 + kConsumerThreads;
constexpr int kABytes = kTileM / kPanel * kPanelBytes, kBBytes = kTileN / kPanel * kPanelBytes,
              kStageBytes = kABytes + kBBytes;

// Offsets in shared memory. A 16-bit output lies there as the whole tile; the 16 bytes behind each row keep
// eight rows on different banks. A fp32 output would take two stages: each warpgroup has two buffers of 64 ×
// 32 in turn.
template <class Out>
struct Layout {
  static constexpr bool kWide = std::is_same_v<Out, float>;
  static constexpr int kStages = kWide ? 4 : 3;
  static constexpr int kRowBytes = kTileN * 2 + 16;
  static constexpr int kStoreN = 32, kStoreBuffers = 2, kStoreBytes = kPanel * kStoreN * 4;
  static constexpr int kOutput = kStages * kStageBytes,
                       kBarriers = kOutput + (kWide ? 2 * kStoreBuffers * kStoreBytes : kTileM * kRowBytes),
                       kBytes = kBarriers + 8 * (2 * kStages + kConsumerThreads / 32);
};

struct Params {
  void* c;
  int64_t c_expert, c_row;
  const int32_t* offsets;
  int experts, m, n, k;  // of one expert; the size that offsets cut is unused
  float beta;            // for fp32: 0 or 1
};

struct Tile {
  int expert, row0, rows_end, column0, k0, k_size;
};

// Yields the tiles of one block: down kSwizzle tiles, then along N, so that running blocks share operands in
// the L2 cache. Tokens are rows of c, or with RaggedK the K dimension.
template <bool RaggedK>
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const Params& params)
      : params_(params), next_(static_cast<int>(blockIdx.x)) {}

  __device__ bool next(Tile& tile) {
    constexpr int kSwizzle = 2048 / kTileM;
    const int tiles_n = (params_.n + kTileN - 1) / kTileN;
    int begin, end, tiles_m;
    for (;; ++expert_) {
      if (expert_ == params_.experts) return false;
      begin = params_.offsets[expert_];
      end = params_.offsets[expert_ + 1];
      tiles_m = ((RaggedK ? params_.m : end - begin) + kTileM - 1) / kTileM;
      if (next_ < tiles_m * tiles_n) break;
      next_ -= tiles_m * tiles_n;
    }
    const int group = next_ / (kSwizzle * tiles_n), rest = next_ - group * kSwizzle * tiles_n,
              height = min(kSwizzle, tiles_m - group * kSwizzle),
              row = (group * kSwizzle + rest % height) * kTileM;
    tile.expert = expert_;
    tile.row0 = RaggedK ? row : begin + row;
    tile.rows_end = RaggedK ? params_.m : end;
    tile.column0 = rest / height * kTileN;
    tile.k0 = RaggedK ? begin : 0;
    tile.k_size = RaggedK ? end - begin : params_.k;
    next_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  const Params& params_;
  int next_, expert_ = 0;  // counted from the first tile of the expert
};

// Loads Sides × 64 of an operand by TMA.
template <int Sides, bool KMajor>
__device__ __forceinline__ void load_operand(uint32_t to, const CUtensorMap& map, Barrier full, int side,
                                             int k, int expert) {
  constexpr int kBox = KMajor ? Sides : kPanel;
#pragma unroll
  for (int s = 0; s < Sides; s += kBox)
    sm90::tma_load(to + s / kPanel * kPanelBytes, map, full, KMajor ? k : side + s, KMajor ? side + s : k,
                   expert);
}

// Zeroes the tail of a stage where K ends inside it: rows of the next expert follow. All consumers call it.
[[maybe_unused]] __device__ __forceinline__ void clear_tail(uint32_t stage, int k_size) {
  for (int panel = 0; panel < (kTileM + kTileN) / kPanel; ++panel)
    for (int i = k_size * kPanel * 2 + (static_cast<int>(threadIdx.x) - 128) * 16; i < kPanelBytes;
         i += kConsumerThreads * 16)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + panel * kPanelBytes + i), "r"(0)
                   : "memory");
  sm90::fence_proxy_async();
  sm90::named_barrier_sync<kConsumerThreads>(1);
}

// The 16 rows of a tile that belong to one consumer warp: where they lie in c and in the output buffer.
template <class Out>
struct WarpRows {
  static constexpr int kRowBytes = Layout<Out>::kRowBytes;
  Out* c;           // the row of this lane
  uint32_t buffer;  // the first row
  int rows, bytes;  // that there are, and of each

  __device__ WarpRows(const Params& params, const Tile& tile, uint32_t output) {
    const int first = (static_cast<int>(threadIdx.x) / 32 - 4) * 16, lane = threadIdx.x % 32;
    c = static_cast<Out*>(params.c) + tile.expert * params.c_expert +
        (tile.row0 + first + lane) * params.c_row + tile.column0;
    buffer = output + first * kRowBytes;
    rows = max(0, min(16, tile.rows_end - tile.row0 - first));
    bytes = min(kTileN, params.n - tile.column0) * 2;
  }
  // The place of accumulators 4 j + 2 h and the next.
  __device__ uint32_t place(int j, int h) const {
    const int lane = threadIdx.x % 32;
    return buffer + (lane / 4 + 8 * h) * kRowBytes + (8 * j + lane % 4 * 2) * 2;
  }
};

// Asks for the old values of a warp's rows as soon as the last tile has left the buffer.
template <class Out>
__device__ __forceinline__ void load_old_rows(const WarpRows<Out>& to, Barrier old) {
  const int lane = threadIdx.x % 32;
  sm90::bulk_wait_read<0>();
  __syncwarp();
  if (lane == 0) old.arrive_expect_tx(to.rows * to.bytes);
  __syncwarp();
  if (lane < to.rows) sm90::bulk_load(to.buffer + lane * to.kRowBytes, to.c, to.bytes, old);
}

// acc += beta · c from the buffer. TMA could add in the dtype of c alone, which would round 16-bit sums
// twice.
template <class Out>
__device__ __forceinline__ void add_old_rows(const WarpRows<Out>& from, float beta, float (&acc)[128]) {
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Vec<Out, 2> old;
      asm volatile("ld.shared.b32 %0, [%1];"
                   : "=r"(reinterpret_cast<uint32_t&>(old))
                   : "r"(from.place(j, h))
                   : "memory");
#pragma unroll
      for (int side = 0; side < 2; ++side)
        acc[4 * j + 2 * h + side] = fmaf(beta, widen(old.v[side]), acc[4 * j + 2 * h + side]);
    }
}

// c = acc: each warp packs its 16 rows in shared memory and stores them by bulk copies.
template <class Out>
__device__ __forceinline__ void store_rows(const WarpRows<Out>& to, const float (&acc)[128]) {
  const int lane = threadIdx.x % 32;
  sm90::bulk_wait_read<0>();
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to.place(j, h)),
                   "r"(narrow_pair<Out>(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]))
                   : "memory");
  sm90::fence_proxy_async();
  __syncwarp();
  if (lane < to.rows) sm90::bulk_store(to.c, to.buffer + lane * to.kRowBytes, to.bytes);
}

// c = acc or, with beta 1, c += acc: a warpgroup stores its 64 rows by TMA, 64 × 32 at a time.
[[maybe_unused]] __device__ __forceinline__ void store_tile_fp32(const Params& params, const CUtensorMap& c,
                                                                 const Tile& tile, const float (&acc)[128],
                                                                 uint32_t boxes, int panel) {
  using Shared = Layout<float>;
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const bool speaker = threadIdx.x % 128 == 0;
#pragma unroll
  for (int b = 0; b < kTileN / Shared::kStoreN; ++b) {
    const uint32_t box =
        boxes + (panel * Shared::kStoreBuffers + b % Shared::kStoreBuffers) * Shared::kStoreBytes;
    if (speaker) sm90::bulk_wait_read<Shared::kStoreBuffers - 1>();
    sm90::named_barrier_sync<128>(2 + panel);
#pragma unroll
    for (int j = 0; j < Shared::kStoreN / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * h, chunk = (2 * j + quad / 2) ^ row % 8,
                  sum = b * Shared::kStoreN / 2 + 4 * j + 2 * h;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(box + row * 128 + chunk * 16 + quad % 2 * 8),
                     "f"(acc[sum]), "f"(acc[sum + 1])
                     : "memory");
      }
    sm90::fence_proxy_async();
    sm90::named_barrier_sync<128>(2 + panel);
    if (speaker) {
      const int x = tile.column0 + b * Shared::kStoreN, y = tile.row0 + panel * kPanel;
      if (params.beta != 0)
        sm90::tma_reduce_add(c, box, x, y, tile.expert);
      else
        sm90::tma_store(c, box, x, y, tile.expert);
    }
  }
}

// c: the tensor map of the output, for fp32 alone.
template <class T, class Out, bool AKMajor, bool BKMajor, bool RaggedK>
__global__ void __launch_bounds__(kBlockThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                        const __grid_constant__ CUtensorMap c, const __grid_constant__ Params params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  using Shared = Layout<Out>;
  constexpr int kStages = Shared::kStages;
  const uint32_t stages = shared_address(memory), output = stages + Shared::kOutput;
  auto smem_a = [&](int s) { return stages + s * kStageBytes; };
  auto smem_b = [&](int s) { return smem_a(s) + kABytes; };
  auto full = [&](int s) { return Barrier{stages + Shared::kBarriers + 8 * s}; };
  auto empty = [&](int s) { return full(kStages + s); };
  auto old = [&](int warp) { return full(2 * kStages + warp); };
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      full(s).init(1);
      empty(s).init(kConsumerThreads / 32);
    }
    for (int warp = 0; warp < kConsumerThreads / 32; ++warp) old(warp).init(1);
    sm90::fence_mbarrier_init();
  }
  __syncthreads();
  TileScheduler<RaggedK> scheduler(params);
  Tile tile;
  sm90::PipelineState<kStages> pipe;
  if (threadIdx.x < 128) {
    sm90::setmaxnreg_dec<40>();
    if (threadIdx.x == 0)
      while (scheduler.next(tile))
        for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
          empty(pipe.stage).wait(pipe.parity ^ 1);
          full(pipe.stage).arrive_expect_tx(kStageBytes);
          load_operand<kTileM, AKMajor>(smem_a(pipe.stage), a, full(pipe.stage), tile.row0, tile.k0 + k, 0);
          load_operand<kTileN, BKMajor>(smem_b(pipe.stage), b, full(pipe.stage), tile.column0, tile.k0 + k,
                                        RaggedK ? 0 : tile.expert);
        }
    return;
  }
  sm90::setmaxnreg_inc<232>();
  const int panel = threadIdx.x / 128 - 1;
  auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) empty(stage).arrive();
  };
  const bool adds = RaggedK && !Shared::kWide && params.beta != 0;
  const Barrier my_old = old(static_cast<int>(threadIdx.x) / 32 - 4);
  uint32_t old_parity = 0;
  float acc[128];
  while (scheduler.next(tile)) {
    if (!RaggedK && tile.row0 + panel * kPanel >= tile.rows_end) {
      // The expert has no row for this warpgroup: it only releases the stages.
      for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
        full(pipe.stage).wait(pipe.parity);
        release(pipe.stage);
      }
      continue;
    }
    if (RaggedK && tile.k_size == 0) {
#pragma unroll
      for (float& value : acc) value = 0;
    }
    int last = 0;
    for (int k = 0; k < tile.k_size; k += kTileK, pipe.advance()) {
      full(pipe.stage).wait(pipe.parity);
      if (RaggedK && tile.k_size - k < kTileK) clear_tail(smem_a(pipe.stage), tile.k_size - k);
      const uint64_t a_desc = sm90::smem_desc(smem_a(pipe.stage) + panel * kPanelBytes),
                     b_desc = sm90::smem_desc(smem_b(pipe.stage));
      sm90::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kTileK / 16; ++i)
        sm90::wgmma_mma<T, AKMajor, BKMajor>(acc, sm90::advance_desc<AKMajor>(a_desc, i),
                                             sm90::advance_desc<BKMajor>(b_desc, i), k || i);
      sm90::wgmma_commit();
      // The wgmma of the last stage is done; this one may run.
      if (k) {
        sm90::wgmma_wait<1>();
        release(last);
      }
      last = pipe.stage;
      if constexpr (!Shared::kWide)
        if (adds && k == kTileK) load_old_rows<Out>({params, tile, output}, my_old);
    }
    sm90::wgmma_wait<0>();
    if (tile.k_size) release(last);
    if constexpr (Shared::kWide) {
      store_tile_fp32(params, c, tile, acc, output, panel);
    } else {
      const WarpRows<Out> rows(params, tile, output);
      if (adds) {
        if (tile.k_size <= kTileK) load_old_rows(rows, my_old);
        my_old.wait(old_parity);
        old_parity ^= 1;
        add_old_rows(rows, params.beta, acc);
      }
      store_rows(rows, acc);
    }
  }
  sm90::bulk_wait_read<0>();
#else
  __trap();
#endif
}

// Code for sm_90a runs on GPUs of compute capability 9.0 alone.
bool can_run(const KernelContext& ctx, const GroupedTask& task) {
#ifdef MEGATRON_SM90A
  constexpr int64_t kMax = 1 << 30;
  return runtime_of(ctx).properties().compute_capability == 90 && task.rows > 0 && task.rows < kMax &&
         task.k < kMax && task.n < kMax && task.n % 8 == 0 && task.c_column == 1 && task.c_row % 8 == 0 &&
         task.c_expert % 8 == 0 && aligned(task.c);
#else
  return false;
#endif
}

template <class T, class Out, bool AKMajor, bool BKMajor, bool RaggedK>
bool launch(const KernelContext& ctx, const Matrices& a, const Matrices& b, const Params& params) {
  CUtensorMap a_map, b_map, c_map{};
  constexpr DType kType = std::is_same_v<T, bfloat> ? DType::BF16 : DType::F16;
  if (!make_tensor_map(kType, a, 128, AKMajor ? kTileM : kPanel, a_map) ||
      !make_tensor_map(kType, b, 128, BKMajor ? kTileN : kPanel, b_map))
    return false;
  if constexpr (Layout<Out>::kWide)
    if (!make_tensor_map(DType::F32,
                         {params.c, params.n, params.m, params.experts, params.c_row, params.c_expert}, 128,
                         kPanel, c_map))
      return false;
  auto kernel = grouped_gemm_kernel<T, Out, AKMajor, BKMajor, RaggedK>;
  allow_shared_memory(kernel, Layout<Out>::kBytes);
  kernel<<<runtime_of(ctx).properties().sm_count, kBlockThreads, Layout<Out>::kBytes, stream_of(ctx)>>>(
      a_map, b_map, c_map, params);
  return true;
}

Params params_of(const GroupedTask& task) {
  return {task.c,
          task.c_expert,
          task.c_row,
          task.offsets,
          task.experts,
          static_cast<int>(task.k),
          static_cast<int>(task.n),
          static_cast<int>(task.k),
          static_cast<float>(task.beta)};
}

}  // namespace

template <class T>
bool wgmma_grouped_gemm(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.k == 0) return false;
  const Matrices a{task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows};
  if (task.b_row == 1)
    return launch<T, T, true, true, false>(
        ctx, a, {task.b, task.k, task.n, task.experts, task.b_column, task.b_expert}, params_of(task));
  if (task.b_column == 1)
    return launch<T, T, true, false, false>(
        ctx, a, {task.b, task.n, task.k, task.experts, task.b_row, task.b_expert}, params_of(task));
  return false;
}

template <class T, class Out>
bool wgmma_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.b_column != 1) return false;
  if (std::is_same_v<Out, float> && task.beta != 0 && task.beta != 1) return false;
  return launch<T, Out, false, false, true>(
      ctx, {task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows},
      {task.b, task.n, task.rows, 1, task.b_row, task.b_row * task.rows}, params_of(task));
}

template bool wgmma_grouped_gemm<bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm<half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, float>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, float>(const KernelContext&, const GroupedTask&);

}  // namespace megatron::cuda
