#include "megatron/kernels/backends.h"
#include "megatron/kernels/cuda/activation_math.cuh"
#include "megatron/kernels/cuda/hopper.cuh"
#include "megatron/kernels/cuda/tensor_map.h"

namespace megatron {
namespace cuda {
namespace {

using hopper::Barrier;
using hopper::kPanel;
using hopper::kPanelBytes;

// A block makes tiles of 128 × 256 sums, one after the other. One thread fetches the operands, 64 of the
// contraction at a time; two warpgroups multiply, 64 rows each. Two blocks make a cluster, with tiles above
// each other, and each fetches half of what both read on the right.
// Rounded to bf16, the sums of a tile take half of their registers. So the next tile can begin at once, and
// what becomes of them, SwiGLU and the way to memory, is done in pieces between the steps of that tile, while
// the tensor cores multiply.
constexpr int kRows = 128, kColumns = 256, kDepth = kPanel, kStages = 4, kBlocks = 2;
constexpr int kMultipliers = 256, kBlockThreads = 128 + kMultipliers, kWarps = kMultipliers / 32;
constexpr int kLeftBytes = kRows / kPanel * kPanelBytes, kRightBytes = kColumns / kPanel * kPanelBytes,
              kStageBytes = kLeftBytes + kRightBytes;
// Shared memory: the stages, a place for each warp's way to memory, the barriers.
constexpr int kPlaceBytes = 4096, kPlaces = kStages * kStageBytes, kBarriers = kPlaces + kWarps * kPlaceBytes,
              kSharedBytes = kBarriers + 8 * (2 * kStages + 2 * kWarps);

struct Job {
  int rows, across, steps;  // of the left operand; tiles beside each other; of 64 along the contraction
};

struct Tile {
  int row0, column;  // the latter counts tiles
};

// The tiles of one block, in an order that lets the blocks at work share what they read: down a band of rows,
// then to the right.
class Schedule {
 public:
  __device__ Schedule(const Job& job, int rank)
      : job_(job),
        rank_(rank),
        down_((job.rows + kRows * kBlocks - 1) / (kRows * kBlocks)),
        next_(static_cast<int>(blockIdx.x) / kBlocks) {}

  __device__ bool next(Tile& tile) {
    constexpr int kBand = 2048 / (kRows * kBlocks);
    if (next_ >= down_ * job_.across) return false;
    const int band = next_ / (kBand * job_.across), rest = next_ - band * kBand * job_.across,
              height = min(kBand, down_ - band * kBand);
    tile.row0 = ((band * kBand + rest % height) * kBlocks + rank_) * kRows;
    tile.column = rest / height;
    next_ += static_cast<int>(gridDim.x) / kBlocks;
    return true;
  }

 private:
  const Job& job_;
  int rank_, down_, next_;
};

// Two elements of bf16 in a word.
__device__ __forceinline__ float low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// What one warp, which has 16 rows of a tile, knows of its way to memory. The words of a tile are those of
// its sums: words 2 j and 2 j + 1 have columns 8 j to 8 j + 7 of rows 0 to 7 and 8 to 15.
struct Way {
  uint32_t place;  // in shared memory
  Barrier arrived[2];
  int row, lane;
  uint64_t policy;

  // Where this lane's row of four matrices lies: eight columns from column 8 c of rows 0 to 7, then 8 to 15,
  // then the next eight, in a buffer with rows of Bytes as TMA swizzles them.
  template <int Bytes>
  __device__ uint32_t matrices(uint32_t buffer, int c) const {
    const int r = lane % 16, turn = Bytes == 128 ? r % 8 : r / 2 % 4;
    return buffer + r * Bytes + (((c + lane / 16) ^ turn) << 4);
  }
};

// Forward. A tile has 128 columns of the gate and the same of up. Its words go to memory as they are, and
// once more with SwiGLU: for each half of the columns a piece that stores gate and up, and two of 32 columns
// each for the activation, which is stored with the second.
struct GateForward {
  static constexpr bool kRightInner = true;
  static constexpr int kPieces = 6, kWidth = kColumns / 2;
  const CUtensorMap &x, &y;

  // Gate and up lie apart in b, one matrix each: one block fetches the one, the other the other.
  static __device__ void fetch_right(uint32_t to, const CUtensorMap& b, Barrier full, int column, int k,
                                     int rank) {
    hopper::load_box_for_all<kBlocks>(to + rank * (kRightBytes / kBlocks), b, full, k, column * kWidth, rank);
  }

  __device__ void ask(const Way&, const Tile&, int) const {}

  template <int P>
  __device__ void piece(const Way& way, const Tile& tile, const uint32_t (&words)[64]) const {
    constexpr int half = P / 3, part = P % 3;
    if constexpr (part < 2) {
      if (way.lane == 0) hopper::wait_stores_read<0>();
      __syncwarp();
    }
    if constexpr (part == 0) {
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        hopper::store_matrices(way.matrices<128>(way.place, c), words + 2 * (8 * half + c));
        hopper::store_matrices(way.matrices<128>(way.place + 2048, c), words + 2 * (16 + 8 * half + c));
      }
    } else {
#pragma unroll
      for (int c = 4 * (part - 1); c < 4 * part; c += 2) {
        uint32_t active[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t gate = words[2 * (8 * half + c) + i], up = words[2 * (16 + 8 * half + c) + i];
          active[i] = narrow_pair<bfloat>(low(gate) * sigmoid<true>(low(gate)) * low(up),
                                          high(gate) * sigmoid<true>(high(gate)) * high(up));
        }
        hopper::store_matrices(way.matrices<128>(way.place, c), active);
      }
    }
    if constexpr (part != 1) {
      hopper::publish_writes();
      __syncwarp();
      if (way.lane == 0) {
        const int column = tile.column * kWidth + half * 64, row = tile.row0 + way.row;
        if constexpr (part == 0) {
          hopper::store_box(x, way.place, column, row, 0, way.policy);
          hopper::store_box(x, way.place + 2048, column, row, 1, way.policy);
        } else {
          hopper::store_box(y, way.place, column, row, 0, way.policy);
        }
      }
      __syncwarp();
    }
  }
};

// Backward. The words of a tile are the activation's gradient; each piece fetches 32 columns of gate and up,
// which takes a while and is asked for one piece before, and stores the gradients of both from the same
// place.
struct GateBackward {
  static constexpr bool kRightInner = false;
  static constexpr int kPieces = 8, kWidth = kColumns;
  const CUtensorMap &x, &dx;

  static __device__ void fetch_right(uint32_t to, const CUtensorMap& b, Barrier full, int column, int k,
                                     int rank) {
    constexpr int panels = kColumns / kPanel / kBlocks;
#pragma unroll
    for (int i = 0; i < panels; ++i) {
      const int panel = rank * panels + i;
      hopper::load_box_for_all<kBlocks>(to + panel * kPanelBytes, b, full, column * kWidth + panel * kPanel,
                                        k, 0);
    }
  }

  // For piece p of the tile, once the piece before the last has left its place.
  __device__ void ask(const Way& way, const Tile& tile, int p) const {
    if (way.lane == 0) {
      hopper::wait_stores_read<0>();
      const int column = tile.column * kWidth + p * 32, row = tile.row0 + way.row;
      const uint32_t to = way.place + p % 2 * 2048;
      way.arrived[p % 2].arrive_expecting(2048);
      hopper::load_box(to, x, way.arrived[p % 2], column, row, 0, way.policy);
      hopper::load_box(to + 1024, x, way.arrived[p % 2], column, row, 1, way.policy);
    }
    __syncwarp();
  }

  template <int P>
  __device__ void piece(const Way& way, const Tile& tile, const uint32_t (&words)[64]) const {
    const uint32_t place = way.place + P % 2 * 2048;
    way.arrived[P % 2].wait(P / 2 % 2);
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
      const uint32_t at = way.matrices<64>(place, c);
      uint32_t gate[4], up[4];
      hopper::load_matrices(at, gate);
      hopper::load_matrices(at + 1024, up);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t d = words[2 * (4 * P + c) + i];
        float g[] = {low(gate[i]), high(gate[i])}, u[] = {low(up[i]), high(up[i])}, dy[] = {low(d), high(d)};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float s = sigmoid<true>(g[j]), value = g[j] * s, slope = s + value * (1.f - s);
          g[j] = dy[j] * u[j] * slope;
          u[j] = dy[j] * value;
        }
        gate[i] = narrow_pair<bfloat>(g[0], g[1]);
        up[i] = narrow_pair<bfloat>(u[0], u[1]);
      }
      hopper::store_matrices(at, gate);
      hopper::store_matrices(at + 1024, up);
    }
    hopper::publish_writes();
    __syncwarp();
    if (way.lane == 0) {
      const int column = tile.column * kWidth + P * 32, row = tile.row0 + way.row;
      hopper::store_box(dx, place, column, row, 0, way.policy);
      hopper::store_box(dx, place + 1024, column, row, 1, way.policy);
    }
    __syncwarp();
  }
};

template <int... P, class F>
__device__ __forceinline__ void each(std::integer_sequence<int, P...>, F&& f) {
  (f(std::integral_constant<int, P>{}), ...);
}

template <class Gate>
__global__ void __launch_bounds__(kBlockThreads, 1)
    gated_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                 const __grid_constant__ CUtensorMap first, const __grid_constant__ CUtensorMap second,
                 const __grid_constant__ Job job) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  const uint32_t stages = shared_address(memory);
  auto left = [&](int s) { return stages + s * kStageBytes; };
  auto right = [&](int s) { return left(s) + kLeftBytes; };
  auto full = [&](int s) { return Barrier{stages + kBarriers + 8 * s}; };
  auto empty = [&](int s) { return full(kStages + s); };
  auto arrived = [&](int i) { return full(2 * kStages + i); };
  const int rank = hopper::cluster_rank();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      full(s).init(1);
      empty(s).init(kBlocks * kWarps);  // a warp of either block reads what came for both
    }
    for (int i = 0; i < 2 * kWarps; ++i) arrived(i).init(1);
    hopper::publish_barriers();
  }
  hopper::cluster_sync();
  Schedule schedule(job, rank);
  Tile tile;
  hopper::Ring<kStages> at;
  if (threadIdx.x < 128) {
    hopper::fewer_registers<24>();
    if (threadIdx.x == 0)
      while (schedule.next(tile))
        for (int k = 0; k < job.steps; ++k, at.advance()) {
          empty(at.stage).wait(at.parity ^ 1);
          full(at.stage).arrive_expecting(kStageBytes);
          hopper::load_box(left(at.stage), a, full(at.stage), k * kDepth, tile.row0, 0);
          Gate::fetch_right(right(at.stage), b, full(at.stage), tile.column, k * kDepth, rank);
        }
  } else {
    hopper::more_registers<240>();
    const int warp = static_cast<int>(threadIdx.x) / 32 - 4, lane = threadIdx.x % 32;
    const Gate gate{first, second};
    const Way way{stages + kPlaces + warp * kPlaceBytes,
                  {arrived(2 * warp), arrived(2 * warp + 1)},
                  warp * 16,
                  lane,
                  hopper::passing()};
    float sums[128];
    uint32_t words[64];
    Tile before{};  // the one that the words are of
    bool waiting = false;
    for (bool more = true; more;) {
      more = schedule.next(tile);
      const int steps = more ? job.steps : 0;
      int k = 0, oldest = at.stage;  // of the stages that are being read
      auto release = [&] {
        if (lane < kBlocks) empty(oldest).arrive_at(lane);
        oldest = oldest + 1 == kStages ? 0 : oldest + 1;
      };
      auto step = [&] {
        full(at.stage).wait(at.parity);
        const uint64_t x = hopper::operand(left(at.stage) + warp / 4 * kPanelBytes),
                       y = hopper::operand(right(at.stage));
        hopper::begin_products();
#pragma unroll
        for (int i = 0; i < kDepth / 16; ++i)
          hopper::add_product<bfloat, true, Gate::kRightInner>(
              sums, hopper::further<true>(x, i), hopper::further<Gate::kRightInner>(y, i), k || i);
        hopper::commit_products();
        if (k) {  // the step before has been read; this one may still be
          hopper::wait_products<1>();
          release();
        }
        at.advance();
        ++k;
      };
      // The steps of this tile, and between them the pieces of the one before.
      each(std::make_integer_sequence<int, Gate::kPieces>{}, [&](auto index) {
        constexpr int p = decltype(index)::value;
        constexpr bool last = p + 1 == Gate::kPieces;
        const int until = steps * (p + 1) / Gate::kPieces;
        bool asked = false;
        do {
          if (k < until) step();
          if (!asked && (last ? more : waiting)) gate.ask(way, last ? tile : before, last ? 0 : p + 1);
          asked = true;
        } while (k < until);
        if (waiting) gate.template piece<p>(way, before, words);
      });
      hopper::wait_products<0>();
      if (more) release();
#pragma unroll
      for (int i = 0; i < 64; ++i) words[i] = narrow_pair<bfloat>(sums[2 * i], sums[2 * i + 1]);
      before = tile;
      waiting = true;
    }
    hopper::wait_stores_read<0>();
  }
  __syncwarp();
  hopper::cluster_sync();  // the other block may still arrive at barriers of this one
#else
  __trap();
#endif
}

// Only code for sm_90a has the instructions; it runs on GPUs of capability 9.0 and no others.
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
// Gate and up beside each other in every row, or above each other.
Matrices halves_of_rows(const Tensor& t) {
  return {t.raw(), t.size(1) / 2, t.size(0), 2, t.stride(0), t.size(1) / 2};
}
Matrices halves(const Tensor& t) {
  return {t.raw(), t.size(1), t.size(0) / 2, 2, t.stride(0), t.stride(0) * (t.size(0) / 2)};
}

template <class Gate>
void launch(const KernelContext& ctx, const char* name, const CUtensorMap (&maps)[4], int64_t rows,
            int64_t width, int64_t depth) {
  auto kernel = gated_kernel<Gate>;
  cudaLaunchConfig_t config{};
  config.stream = stream_of(ctx);  // which also makes its GPU the current one
  allow_shared_memory(kernel, kSharedBytes);
  const Job job{static_cast<int>(rows), static_cast<int>((width + Gate::kWidth - 1) / Gate::kWidth),
                static_cast<int>((depth + kDepth - 1) / kDepth)};
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  config.gridDim = runtime_of(ctx).properties().multiprocessors / kBlocks * kBlocks;
  config.blockDim = kBlockThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, maps[0], maps[1], maps[2], maps[3], job), name);
}

}  // namespace
}  // namespace cuda

bool cuda_gated_gemm(const KernelContext& ctx, const GatedGemmArgs& args) {
  using namespace cuda;
  CUtensorMap maps[4];
  if (!can_run(ctx, {args.a, args.b, args.x, args.y}) ||
      !describe(DType::BF16, whole(args.a), 128, kRows, maps[0]) ||
      !describe(DType::BF16, halves(args.b), 128, kColumns / 2, maps[1]) ||
      !describe(DType::BF16, halves_of_rows(args.x), 128, 16, maps[2]) ||
      !describe(DType::BF16, whole(args.y), 128, 16, maps[3]))
    return false;
  launch<GateForward>(ctx, "gated_gemm", maps, args.y.size(0), args.y.size(1), args.a.size(1));
  return true;
}

bool cuda_gated_gemm_backward(const KernelContext& ctx, const GatedGemmBackwardArgs& args) {
  using namespace cuda;
  CUtensorMap maps[4];
  if (!can_run(ctx, {args.a, args.b, args.x, args.dx}) ||
      !describe(DType::BF16, whole(args.a), 128, kRows, maps[0]) ||
      !describe(DType::BF16, whole(args.b), 128, kPanel, maps[1]) ||
      !describe(DType::BF16, halves_of_rows(args.x), 64, 16, maps[2]) ||
      !describe(DType::BF16, halves_of_rows(args.dx), 64, 16, maps[3]))
    return false;
  launch<GateBackward>(ctx, "gated_gemm_backward", maps, args.x.size(0), args.b.size(1), args.a.size(1));
  return true;
}

}  // namespace megatron
