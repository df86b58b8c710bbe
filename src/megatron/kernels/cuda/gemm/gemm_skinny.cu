#include "megatron/kernels/cuda/gemm/gemm_skinny.h"

#include "megatron/kernels/cuda/core/sm90.cuh"
#include "megatron/kernels/cuda/core/tensor_map.h"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"

namespace megatron::cuda {
namespace {

using sm90::Barrier;
using sm90::kPanel;
using sm90::kPanelBytes;

constexpr int kGroups = 2;  // consumer warpgroups, with a panel of 64 rows of w each
constexpr int kTileRows = kGroups * kPanel;
constexpr int kConsumers = kGroups * 128, kBlockThreads = kConsumers + 32;
constexpr int kMaxCluster = 8;
constexpr int kSharedRows = 16;  // of more, sums of several blocks take longer than they save

// The blocks of a cluster get a slice each of a tile's columns: [rows of x, columns + 4] floats. Of those
// strides a warp's stores of accumulators meet different banks.
__host__ __device__ constexpr int slice_stride(int blocks) { return kTileRows / blocks + 4; }

// Sizes for up to N rows of x. Two blocks fit into an SM, so that the next kernel's weights are on their way
// while this one ends.
template <int N>
struct Sizes {
  static constexpr int kXBytes = N * 128, kWeightBytes = kGroups * kPanelBytes,
                       kStageBytes = kWeightBytes + kXBytes;
  static constexpr int kSharedStages = N == 64 ? 3 : 4;          // where blocks share K
  static constexpr int kReceived = kSharedStages * kStageBytes,  // slices of the other blocks
      kBarriers = kReceived + (kMaxCluster - 1) * N * slice_stride(kMaxCluster) * 4;
  static constexpr int kStages = kBarriers / kStageBytes;  // of a block that has all of K
  static constexpr int kSharedBytes = kBarriers + 16 * kStages + 8 + 1024;
  static_assert(N * kMaxCluster * slice_stride(kMaxCluster) * 4 <= kReceived && kSharedBytes <= 113 << 10);
};

// Stage and parity of a thread in the ring.
struct RingState {
  int stages, stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

struct SkinnyTask {
  const bfloat* bias;
  bfloat *y, *active;  // y [rows, n], or [rows, 2 n] and active [rows, n] with SwiGLU
  int64_t y_stride, active_stride;
  int rows, n, units;  // units: of 64 elements of K
  bool prefetch;       // w is read before the kernels in front are done
};

// wgmma m64nNk16 of K-major bf16 operands: acc (64 × N) += a · b; thread t of the warpgroup holds row
// t / 32 · 16 + t % 32 / 4 + 8 h and column 8 j + t % 4 · 2 + i in acc[4 j + 2 h + i].
#define ACC8(i)                                                                                           \
  "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3]), "+f"(acc[i + 4]), "+f"(acc[i + 5]), \
      "+f"(acc[i + 6]), "+f"(acc[i + 7])
__device__ __forceinline__ void multiply(float (&acc)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, add, "
      "1, 1, 0, 0;\n}"
      : ACC8(0)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&acc)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15}, %16, %17, add, 1, 1, 0, 0;\n}"
      : ACC8(0), ACC8(8)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&acc)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
      "%31}, %32, %33, add, 1, 1, 0, 0;\n}"
      : ACC8(0), ACC8(8), ACC8(16), ACC8(24)
      : "l"(a), "l"(b));
}
#undef ACC8

// Copies `bytes` of shared memory to the same block's or another one's of the cluster; the barrier there
// counts them.
__device__ __forceinline__ void send(uint32_t from, uint32_t to, uint32_t barrier, int bytes, int rank) {
  asm volatile(
      "{.reg .b32 there, full;\n"
      "mapa.shared::cluster.u32 there, %0, %4;\n"
      "mapa.shared::cluster.u32 full, %2, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %3, [full];}" ::
          "r"(to),
      "r"(from), "r"(barrier), "r"(bytes), "r"(rank)
      : "memory");
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Slices of one block's columns of all rows of x: its own, and what the others have sent.
struct Slices {
  uint32_t own, received;
  int bytes, blocks, rank;

  // Eight neighbours, added in the order of the blocks.
  __device__ void add_up(float (&sum)[8], int offset) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = 0;
    for (int from = 0; from < blocks; ++from) {
      const uint32_t at =
          (from == rank ? own : received + (from - (from > rank ? 1 : 0)) * bytes) + offset * 4;
      float v[8];
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                   : "r"(at));
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
                   : "r"(at + 16));
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += v[i];
    }
  }
};

__device__ __forceinline__ uint4 rounded(const float (&v)[8]) {
  return {narrow_pair<bfloat>(v[0], v[1]), narrow_pair<bfloat>(v[2], v[3]), narrow_pair<bfloat>(v[4], v[5]),
          narrow_pair<bfloat>(v[6], v[7])};
}
__device__ __forceinline__ void widened(float (&to)[8], const uint4& from) {
  const uint32_t word[] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(word[i] << 16);
    to[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
  }
}

// Adds up this block's columns of a tile, and writes them. Of SwiGLU a slice has the gate's, then up's.
template <bool Swiglu>
__device__ __forceinline__ void write(const SkinnyTask& task, const Slices& slices, int tile) {
  constexpr int Columns = Swiglu ? kPanel : kTileRows;  // of the output in a tile
  const int own = Columns / slices.blocks, vectors = own / 8, stride = slice_stride(slices.blocks);
  for (int i = threadIdx.x; i < task.rows * vectors; i += kConsumers) {
    const int row = i / vectors, local = (i - row * vectors) * 8,
              column = tile * Columns + slices.rank * own + local;
    if (column >= task.n) continue;
    float value[8];
    slices.add_up(value, row * stride + local);
    if (task.bias) {
      float bias[8];
      widened(bias, *reinterpret_cast<const uint4*>(task.bias + column));
#pragma unroll
      for (int j = 0; j < 8; ++j) value[j] += bias[j];
    }
    const uint4 y = rounded(value);
    bfloat* to = task.y + row * task.y_stride + column;
    *reinterpret_cast<uint4*>(to) = y;
    if constexpr (Swiglu) {
      float up[8];
      slices.add_up(up, row * stride + own + local);
      const uint4 second = rounded(up);
      *reinterpret_cast<uint4*>(to + task.n) = second;
      widened(value, y);
      widened(up, second);
#pragma unroll
      for (int j = 0; j < 8; ++j) value[j] = value[j] * sigmoid<true>(value[j]) * up[j];
      *reinterpret_cast<uint4*>(task.active + row * task.active_stride + column) = rounded(value);
    }
  }
}

// y = x · wᵀ + bias for up to N rows of x; with SwiGLU also active = silu(gate) · up, of what y holds of
// them.
// Math: wgmma m64nNk16 with 64 rows of w as A and all rows of x as B, so that w fills the tensor cores.
// Grid: a cluster for each 128 rows of w, or 64 of the gate and the same 64 of up; its blocks share K.
// Shared memory: a ring of stages, panels of w and of x of 64 elements of K with the 128-byte swizzle; at the
// end in its place the accumulators, a slice for each block of the cluster. Behind it the other blocks'
// slices of this one's columns, which come by cp.async.bulk.
// Barriers: full[stage] counts TMA bytes, empty[stage] the consumer warps, sent the other blocks' bytes. The
// cluster's: all blocks have begun, and all have what they were sent.
// PDL: the first stages of w are on their way before the block waits for the kernel that makes x.
template <int N, bool Swiglu>
__global__ void __launch_bounds__(kBlockThreads, 2)
    skinny_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ SkinnyTask task, const int blocks) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Sizes<N>;
  extern __shared__ char raw_memory[];
  const uint32_t memory = (shared_address(raw_memory) + 1023) & ~1023u;
  const auto full = [&](int s) { return Barrier{memory + S::kBarriers + 8 * s}; };
  const auto empty = [&](int s) { return full(S::kStages + s); };
  const Barrier sent = full(2 * S::kStages);
  const int rank = blockIdx.x % blocks, tile = blockIdx.x / blocks;
  const int begin = rank * task.units / blocks, count = (rank + 1) * task.units / blocks - begin;
  const int stages = blocks > 1 ? S::kSharedStages : S::kStages, slice_bytes = N * slice_stride(blocks) * 4;
  if (threadIdx.x == 0) {
    sent.init(1);
    for (int s = 0; s < stages; ++s) {
      full(s).init(1);
      empty(s).init(kConsumers / 32);
    }
    sm90::fence_mbarrier_init();
    sent.arrive_expect_tx((blocks - 1) * slice_bytes);
  }
  __syncthreads();
  if (blocks > 1) cluster_arrive();
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) {
      const uint64_t policy = sm90::l2_evict_first();
      const auto load_w = [&](int s, int unit) {
        full(s).arrive_expect_tx(S::kStageBytes);
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          sm90::tma_load(memory + s * S::kStageBytes + g * kPanelBytes, w, full(s), (begin + unit) * kPanel,
                         Swiglu ? tile * kPanel : tile * kTileRows + g * kPanel, Swiglu ? g : 0, policy);
      };
      const auto load_x = [&](int s, int unit) {
        sm90::tma_load(memory + s * S::kStageBytes + S::kWeightBytes, x, full(s), (begin + unit) * kPanel, 0,
                       0);
      };
      const int first = min(count, stages);
      if (task.prefetch)
        for (int i = 0; i < first; ++i) load_w(i, i);
      griddep_wait();
      for (int i = 0; i < first; ++i) {
        if (!task.prefetch) load_w(i, i);
        load_x(i, i);
      }
      RingState pipe{stages};
      for (int i = first; i < count; ++i) {
        empty(pipe.stage).wait(pipe.parity);
        load_w(pipe.stage, i);
        load_x(pipe.stage, i);
        pipe.advance();
      }
      griddep_launch();  // the next kernel's weights come behind this one's
    }
    __syncwarp();
    griddep_wait();
    if (blocks > 1) {
      cluster_wait();
      cluster_arrive();
      cluster_wait();
    }
  } else {
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    griddep_wait();
    float acc[N / 2] = {};
    RingState pipe{stages};
    for (int i = 0; i < count; ++i) {
      full(pipe.stage).wait(pipe.parity);
      const uint32_t stage = memory + pipe.stage * S::kStageBytes;
      const uint64_t a = sm90::smem_desc(stage + group * kPanelBytes),
                     b = sm90::smem_desc(stage + S::kWeightBytes);
      sm90::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kPanel / 16; ++step)
        multiply(acc, sm90::advance_desc<true>(a, step), sm90::advance_desc<true>(b, step));
      sm90::wgmma_commit();
      sm90::wgmma_wait<0>();
      if (lane == 0) empty(pipe.stage).arrive();
      pipe.advance();
    }
    sm90::wgmma_waited(acc);
    sm90::named_barrier_sync<kConsumers>(1);  // nobody reads the ring any more
    const int stride = slice_stride(blocks), columns = kTileRows / blocks / (Swiglu ? 2 : 1);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Row of w within the panel, or the tile; its block, and its place in the slice.
      const int row = (Swiglu ? 0 : group * kPanel) + thread / 32 * 16 + lane / 4 + 8 * h;
      const int to = row / columns, place = row % columns + (Swiglu ? group * columns : 0);
      const uint32_t slice = memory + to * slice_bytes + place * 4;
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(slice + (8 * j + lane % 4 * 2 + i) * stride * 4),
                       "f"(acc[4 * j + 2 * h + i])
                       : "memory");
    }
    if (blocks > 1) {
      sm90::fence_proxy_async();
      cluster_wait();  // all blocks have begun
    }
    sm90::named_barrier_sync<kConsumers>(1);
    if (blocks > 1) {
      const int to = threadIdx.x;
      if (to < blocks && to != rank)
        send(memory + to * slice_bytes, memory + S::kReceived + (rank - (rank > to ? 1 : 0)) * slice_bytes,
             sent.address, slice_bytes, to);
      __syncwarp();
      sent.wait(0);
    }
    write<Swiglu>(task, {memory + rank * slice_bytes, memory + S::kReceived, slice_bytes, blocks, rank},
                  tile);
    if (blocks > 1) {
      cluster_arrive();
      cluster_wait();  // until then others may not have what this block sent
    }
  }
#endif
}

// x [rows, k] · wᵀ [n, k] is for this kernel.
bool fits(const KernelContext& ctx, const Tensor& x, const Tensor& w, const Tensor& y) {
#ifdef MEGATRON_SM90A
  if (runtime_of(ctx).properties().compute_capability != 90 || x.size(0) > kSkinnyRows || x.size(0) == 0 ||
      x.size(1) < kPanel)
    return false;
  for (const Tensor* t : {&x, &w, &y})
    if (t->dtype() != DType::BF16 || t->size(1) >= 1 << 30 || t->size(0) >= 1 << 30 || t->stride(1) != 1 ||
        t->stride(0) % 8 || !aligned(t->raw()))
      return false;
  return y.size(1) % 8 == 0;
#else
  return false;
#endif
}

// Blocks that share K of a tile: enough of them for all SMs, as long as each has some of K. By the weight
// alone, so that a row's sums do not depend on how many rows there are.
int cluster_of(const KernelContext& ctx, int64_t tiles, int64_t units) {
  const int64_t wanted = runtime_of(ctx).properties().sm_count * 9 / 10;
  int blocks = 1;
  while (blocks < kMaxCluster && tiles * blocks < wanted && units >= 8 * blocks) blocks *= 2;
  return blocks;
}

template <int N, bool Swiglu>
void launch(const KernelContext& ctx, const CUtensorMap& w, const CUtensorMap& x, const SkinnyTask& task,
            int blocks) {
  const auto kernel = skinny_kernel<N, Swiglu>;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.stream = stream_of(ctx);  // also makes its GPU current
  allow_shared_memory(kernel, Sizes<N>::kSharedBytes);
  config.gridDim = blocks_for(task.n, Swiglu ? kPanel : kTileRows) * static_cast<unsigned>(blocks);
  config.blockDim = kBlockThreads;
  config.dynamicSmemBytes = Sizes<N>::kSharedBytes;
  config.attrs = attributes;
  config.numAttrs = ctx.pdl ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, w, x, task, blocks), "skinny gemm");
}

template <bool Swiglu>
bool run(const KernelContext& ctx, const Tensor& x, const Matrices& w, SkinnyTask task) {
  task.rows = static_cast<int>(x.size(0));
  task.units = static_cast<int>((x.size(1) + kPanel - 1) / kPanel);
  const int blocks = cluster_of(ctx, blocks_for(task.n, Swiglu ? kPanel : kTileRows), task.units);
  if (blocks > 1 && task.rows > kSharedRows) return false;
  const int padded = task.rows <= 16 ? 16 : task.rows <= 32 ? 32 : 64;
  CUtensorMap w_map, x_map;
  if (!make_tensor_map(DType::BF16, w, 128, kPanel, w_map) ||
      !make_tensor_map(DType::BF16, {x.raw(), x.size(1), x.size(0), 1, x.stride(0), x.stride(0) * x.size(0)},
                       128, padded, x_map))
    return false;
  if (padded == 16)
    launch<16, Swiglu>(ctx, w_map, x_map, task, blocks);
  else if (padded == 32)
    launch<32, Swiglu>(ctx, w_map, x_map, task, blocks);
  else
    launch<64, Swiglu>(ctx, w_map, x_map, task, blocks);
  return true;
}

}  // namespace

bool skinny_gemm(const KernelContext& ctx, const GemmArgs& args) {
  if (args.c.rank() != 2 || args.alpha != 1 || args.beta != 0 || args.a_scale || args.b_scale) return false;
  const Tensor w = args.b.detach().transpose(0, 1);
  if (!fits(ctx, args.a, w, args.c)) return false;
  if (args.bias &&
      (args.bias.dtype() != DType::BF16 || args.bias.stride(0) != 1 || !aligned(args.bias.raw())))
    return false;
  return run<false>(ctx, args.a, {w.raw(), w.size(1), w.size(0), 1, w.stride(0), w.stride(0) * w.size(0)},
                    {.bias = pointer<bfloat>(args.bias),
                     .y = pointer<bfloat>(args.c),
                     .y_stride = args.c.stride(0),
                     .n = static_cast<int>(w.size(0)),
                     .prefetch = ctx.pdl && args.static_b});
}

bool skinny_swiglu(const KernelContext& ctx, const GemmSwigluArgs& args) {
  const Tensor& w = args.b;
  if (!fits(ctx, args.a, w, args.x) || !fits(ctx, args.a, w, args.y)) return false;
  const int64_t n = w.size(0) / 2;
  return run<true>(ctx, args.a, {w.raw(), w.size(1), n, 2, w.stride(0), w.stride(0) * n},
                   {.bias = nullptr,
                    .y = pointer<bfloat>(args.x),
                    .active = pointer<bfloat>(args.y),
                    .y_stride = args.x.stride(0),
                    .active_stride = args.y.stride(0),
                    .n = static_cast<int>(n),
                    .prefetch = ctx.pdl && args.static_b});
}

}  // namespace megatron::cuda
