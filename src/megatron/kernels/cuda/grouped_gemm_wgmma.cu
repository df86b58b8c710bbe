#include "megatron/kernels/cuda/grouped_gemm.cuh"
#include "megatron/kernels/cuda/hopper.cuh"

namespace megatron::cuda {
namespace {

using hopper::Barrier;
using hopper::kPanel;
using hopper::kPanelBytes;

// A block makes tiles of 128 × 256, one after the other. One thread fetches the operands, 64 of the
// contraction at a time; two warpgroups multiply, 64 rows each. Two blocks make a cluster, with tiles above
// each other, and fetch half of their common columns for both.
constexpr int kRows = 128, kColumns = 256, kDepth = kPanel, kStages = 4, kBlocks = 2;
constexpr int kMultipliers = 256, kBlockThreads = 128 + kMultipliers;
constexpr int kLeftBytes = kRows / kPanel * kPanelBytes, kRightBytes = kColumns / kPanel * kPanelBytes,
              kStageBytes = kLeftBytes + kRightBytes;
constexpr int kAlignment = 1024, kSharedBytes = kStages * kStageBytes + kAlignment;

struct Job {
  void* c;
  int64_t c_expert, c_row;
  const int32_t* offsets;
  int experts, rows, columns, depth;  // of one expert's product; what the offsets cut is not known here
  float beta;
};

struct Tile {
  int expert, row0, rows_end, column0, k0, depth;
};

// The tiles of one block, in an order that lets the blocks at work share what they read: down a band of rows,
// then to the right. A token belongs to rows of the product, or to its contraction (CutDepth).
template <bool CutDepth>
class Schedule {
 public:
  __device__ Schedule(const Job& job, uint32_t rank)
      : job_(job), rank_(rank), next_(static_cast<int>(blockIdx.x) / kBlocks) {}

  __device__ bool next(Tile& tile) {
    constexpr int kHeight = kRows * kBlocks, kBand = 2048 / kHeight;
    const int across = (job_.columns + kColumns - 1) / kColumns;
    int begin, end, down;
    for (;; ++expert_) {
      if (expert_ == job_.experts) return false;
      begin = job_.offsets[expert_];
      end = job_.offsets[expert_ + 1];
      down = ((CutDepth ? job_.rows : end - begin) + kHeight - 1) / kHeight;
      if (next_ < down * across) break;
      next_ -= down * across;
    }
    const int band = next_ / (kBand * across), rest = next_ - band * kBand * across,
              height = min(kBand, down - band * kBand);
    const int row = ((band * kBand + rest % height) * kBlocks + static_cast<int>(rank_)) * kRows;
    tile.expert = expert_;
    tile.row0 = CutDepth ? row : begin + row;
    tile.rows_end = CutDepth ? job_.rows : end;
    tile.column0 = rest / height * kColumns;
    tile.k0 = CutDepth ? begin : 0;
    tile.depth = CutDepth ? end - begin : job_.depth;
    next_ += static_cast<int>(gridDim.x) / kBlocks;
    return true;
  }

 private:
  const Job& job_;
  uint32_t rank_;
  int next_, expert_ = 0;  // counted from the first tile of the expert
};

// Where in the ring of stages a thread is.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Sides × 64 of an operand. Sides that both blocks need are fetched half by each.
template <int Sides, bool Inner, bool Shared>
__device__ __forceinline__ void fetch(uint32_t to, const CUtensorMap& map, Barrier full, int side, int k,
                                      int expert, uint32_t rank) {
  constexpr int part = Shared ? Sides / kBlocks : Sides, box = Inner ? part : kPanel;
  const int first = Shared ? static_cast<int>(rank) * part : 0;
#pragma unroll
  for (int i = 0; i < part; i += box) {
    const int s = first + i, x = Inner ? k : side + s, y = Inner ? side + s : k;
    hopper::load_box<Shared>(to + s / kPanel * kPanelBytes, map, full, x, y, expert, (1 << kBlocks) - 1);
  }
}

// Where the contraction ends within a stage, rows of another expert or of none follow: they count as zeros.
// All multipliers call it.
__device__ __forceinline__ void clear_tail(uint32_t stage, int depth) {
  for (int panel = 0; panel < (kRows + kColumns) / kPanel; ++panel)
    for (int i = depth * kPanel * 2 + (static_cast<int>(threadIdx.x) - 128) * 16; i < kPanelBytes;
         i += kMultipliers * 16)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stage + panel * kPanelBytes + i), "r"(0)
                   : "memory");
  hopper::publish_writes();
  asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory");
}

// Word i of lane t becomes word t of lane i, among four neighbouring lanes.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = bit == 1 ? 2 * i : i, high = low + bit;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[low] : w[high], bit);
      if (upper)
        w[low] = got;
      else
        w[high] = got;
    }
  }
}

// c = beta · c + sums, for the rows of one warpgroup.
template <class Out>
__device__ __forceinline__ void put(const Job& job, const Tile& tile, const float (&sums)[128], int row) {
  const int lane = threadIdx.x % 32, quad = lane % 4;
  row += threadIdx.x / 32 % 4 * 16 + lane / 4;
  Out* c = static_cast<Out*>(job.c) + tile.expert * job.c_expert + row * job.c_row + tile.column0;
  const int columns = job.columns - tile.column0, rows = tile.rows_end - row;
  if constexpr (sizeof(Out) == 2)
    if (job.beta == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < kColumns / 8; j += 4) {
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            words[i] = narrow_pair<Out>(sums[4 * (j + i) + 2 * h], sums[4 * (j + i) + 2 * h + 1]);
          transpose_quad(words);
          const int column = (j + quad) * 8;
          if (8 * h < rows && column < columns)
            *reinterpret_cast<uint4*>(c + 8 * h * job.c_row + column) =
                make_uint4(words[0], words[1], words[2], words[3]);
        }
      return;
    }
  constexpr int kAtOnce = 8;  // reads under way
#pragma unroll
  for (int j = 0; j < kColumns / 8; j += kAtOnce) {
    Vec<Out, 2> old[kAtOnce][2] = {};
    auto each = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = (j + i) * 8 + quad * 2;
          if (8 * h < rows && column < columns)
            f(reinterpret_cast<Vec<Out, 2>*>(c + 8 * h * job.c_row + column), old[i][h], 4 * (j + i) + 2 * h);
        }
    };
    if (job.beta != 0) each([](Vec<Out, 2>* at, Vec<Out, 2>& value, int) { value = *at; });
    each([&](Vec<Out, 2>* at, Vec<Out, 2>& value, int s) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        value.v[i] =
            narrow<Out>(job.beta == 0 ? sums[s + i] : fmaf(job.beta, widen(value.v[i]), sums[s + i]));
      *at = value;
    });
  }
}

template <class T, class Out, bool AInner, bool BInner, bool CutDepth>
__global__ void __launch_bounds__(kBlockThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                   const __grid_constant__ Job job) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char memory[];
  __shared__ uint64_t barriers[2 * kStages];
  const uint32_t stages = (shared_address(memory) + kAlignment - 1) / kAlignment * kAlignment;
  auto left = [&](int s) { return stages + s * kStageBytes; };
  auto right = [&](int s) { return left(s) + kLeftBytes; };
  auto full = [&](int s) { return Barrier{shared_address(barriers + s)}; };
  auto empty = [&](int s) { return Barrier{shared_address(barriers + kStages + s)}; };
  const uint32_t rank = hopper::cluster_rank();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      full(s).init(1);
      empty(s).init(kBlocks * kMultipliers / 32);  // a warp of either block reads what came for both
    }
    hopper::publish_barriers();
  }
  hopper::cluster_sync();
  Schedule<CutDepth> schedule(job, rank);
  Tile tile;
  Ring at;
  if (threadIdx.x < 128) {
    hopper::fewer_registers<40>();
    if (threadIdx.x == 0)
      while (schedule.next(tile))
        for (int k = 0; k < tile.depth; k += kDepth, at.advance()) {
          empty(at.stage).wait(at.parity ^ 1);
          full(at.stage).arrive_expecting(kStageBytes);
          fetch<kRows, AInner, false>(left(at.stage), a, full(at.stage), tile.row0, tile.k0 + k, 0, rank);
          fetch<kColumns, BInner, true>(right(at.stage), b, full(at.stage), tile.column0, tile.k0 + k,
                                        CutDepth ? 0 : tile.expert, rank);
        }
  } else {
    hopper::more_registers<232>();
    const int panel = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    auto release = [&](int stage) {
      if (lane < kBlocks) empty(stage).arrive_at(lane);
    };
    float sums[128];
    while (schedule.next(tile)) {
      if (CutDepth && tile.depth == 0) {
#pragma unroll
        for (float& sum : sums) sum = 0;
      }
      int last = 0;
      for (int k = 0; k < tile.depth; k += kDepth, at.advance()) {
        full(at.stage).wait(at.parity);
        if (CutDepth && tile.depth - k < kDepth) clear_tail(left(at.stage), tile.depth - k);
        const uint64_t x = hopper::operand(left(at.stage) + panel * kPanelBytes),
                       y = hopper::operand(right(at.stage));
        hopper::begin_products();
#pragma unroll
        for (int i = 0; i < kDepth / 16; ++i)
          hopper::add_product<T, AInner, BInner>(sums, hopper::further<AInner>(x, i),
                                                 hopper::further<BInner>(y, i), k || i);
        hopper::commit_products();
        // The stage before is read; this one may still be.
        if (k) {
          hopper::wait_products<1>();
          release(last);
        }
        last = at.stage;
      }
      hopper::wait_products<0>();
      if (tile.depth) release(last);
      put<Out>(job, tile, sums, tile.row0 + panel * kPanel);
    }
  }
  __syncwarp();
  hopper::cluster_sync();  // the other block may still arrive at barriers of this one
#endif
}

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found without linking the driver, so that programs start where there is none.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
  cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found)
                                                                       : nullptr;
}

// An operand in device memory, with unit stride within its rows.
struct Matrices {
  const void* data;
  int64_t columns, rows, count, row, expert;  // sizes, then strides in elements

  bool fits() const { return aligned(data) && row % 8 == 0 && expert % 8 == 0; }
};

// How TMA finds boxes of 64 columns and box_rows rows. False where it cannot.
template <class T>
bool describe(const Matrices& m, int box_rows, CUtensorMap& map) {
  static const Encode encode = find_encode();
  if (!encode) return false;
  auto type = std::is_same_v<T, bfloat> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  cuuint64_t sizes[] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows),
                        static_cast<cuuint64_t>(m.count)};
  cuuint64_t bytes[] = {static_cast<cuuint64_t>(m.row) * 2, static_cast<cuuint64_t>(m.expert) * 2};
  cuuint32_t box[] = {kPanel, static_cast<cuuint32_t>(box_rows), 1}, steps[] = {1, 1, 1};
  return encode(&map, type, 3, const_cast<void*>(m.data), sizes, bytes, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Only code for sm_90a has the instructions; it runs on GPUs of capability 9.0 and no others.
bool can_run(const KernelContext& ctx, const GroupedTask& task) {
#ifdef MEGATRON_SM90A
  constexpr int64_t kMost = 1 << 30;
  return runtime_of(ctx).properties().compute_capability == 90 && task.rows > 0 && task.rows < kMost &&
         task.k < kMost && task.n < kMost && task.n % 8 == 0 && task.c_column == 1 && task.c_row % 8 == 0 &&
         task.c_expert % 8 == 0 && aligned(task.c);
#else
  return false;
#endif
}

template <class T, class Out, bool AInner, bool BInner, bool CutDepth>
bool launch(const KernelContext& ctx, const Matrices& a, const Matrices& b, const Job& job) {
  CUtensorMap a_map, b_map;
  if (!a.fits() || !b.fits() || !describe<T>(a, AInner ? kRows : kPanel, a_map) ||
      !describe<T>(b, BInner ? kColumns / kBlocks : kPanel, b_map))
    return false;
  auto kernel = product_kernel<T, Out, AInner, BInner, CutDepth>;
  allow_shared_memory(kernel, kSharedBytes);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = runtime_of(ctx).properties().multiprocessors / kBlocks * kBlocks;
  config.blockDim = kBlockThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream_of(ctx);
  config.attrs = &cluster;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, a_map, b_map, job), "grouped_gemm");
  return true;
}

Job job_of(const GroupedTask& task) {
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
        ctx, a, {task.b, task.k, task.n, task.experts, task.b_column, task.b_expert}, job_of(task));
  if (task.b_column == 1)
    return launch<T, T, true, false, false>(
        ctx, a, {task.b, task.n, task.k, task.experts, task.b_row, task.b_expert}, job_of(task));
  return false;
}

template <class T, class Out>
bool wgmma_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task) {
  if (!can_run(ctx, task) || task.a_column != 1 || task.b_column != 1) return false;
  return launch<T, Out, false, false, true>(
      ctx, {task.a, task.k, task.rows, 1, task.a_row, task.a_row * task.rows},
      {task.b, task.n, task.rows, 1, task.b_row, task.b_row * task.rows}, job_of(task));
}

template bool wgmma_grouped_gemm<bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm<half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, bfloat>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<bfloat, float>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, half>(const KernelContext&, const GroupedTask&);
template bool wgmma_grouped_gemm_weight<half, float>(const KernelContext&, const GroupedTask&);

}  // namespace megatron::cuda
