#pragma once

#include "megatron/kernels/cuda/launch.cuh"

// Matrix products inside a kernel, of operands that are computed as they are read: for chunks of scans. Tiles
// of 64 × 64. In bf16 on tensor cores, which round operands to 11 bits and sum in fp32; in other dtypes,
// where exactness counts, on the ordinary units.
namespace megatron::cuda {

inline constexpr int kTileSide = 64;

inline int64_t tiles(int64_t n) { return (n + kTileSide - 1) / kTileSide; }

// A stride of eight banks: what four neighbouring k and eight neighbouring rows hold lies in 32 of them.
template <class C, int Depth>
struct TileMemory {
  C a[Depth][kTileSide + 8], b[Depth][kTileSide + 8];
};

// How the elements of a tile lie over threads: `kAcross` of them hold a row, in order; each has kRows ×
// kColumns elements.
template <class T, bool Tensor = sizeof(T) == 2>
struct TileLayout {
  static constexpr int kRows = 4, kColumns = 4, kThreads = 256, kAcross = 16, kDepth = 16;

  static __device__ int row(int i) { return static_cast<int>(threadIdx.x) / kAcross + 16 * i; }
  static __device__ int column(int j) { return static_cast<int>(threadIdx.x) % kAcross + 16 * j; }
};

template <class T>
struct TileLayout<T, true> {
  static constexpr int kRows = 2, kColumns = 16, kThreads = 128, kAcross = 4, kDepth = 32;

  static __device__ int row(int i) {
    return static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / kAcross + 8 * i;
  }
  static __device__ int column(int j) {
    return j / 2 * 8 + 2 * (static_cast<int>(threadIdx.x) % kAcross) + j % 2;
  }
};

template <class T>
struct TileSum : TileLayout<T> {
  using C = Compute<T>;
  using Layout = TileLayout<T>;
  using Memory = TileMemory<C, Layout::kDepth>;
  static constexpr bool kTensor = Layout::kAcross == 4;
  C sum[Layout::kRows][Layout::kColumns] = {};

  // f(element, row, column) for each element of this thread.
  template <class F>
  __device__ void each(F&& f) {
#pragma unroll
    for (int i = 0; i < Layout::kRows; ++i)
#pragma unroll
      for (int j = 0; j < Layout::kColumns; ++j) f(sum[i][j], Layout::row(i), Layout::column(j));
  }

  // f(row, Σ over the row's columns of value(element, row, column)): called by one thread of each row.
  template <class Value, class F>
  __device__ void each_row(Value&& value, F&& f) {
#pragma unroll
    for (int i = 0; i < Layout::kRows; ++i) {
      C total = 0;
#pragma unroll
      for (int j = 0; j < Layout::kColumns; ++j) total += value(sum[i][j], Layout::row(i), Layout::column(j));
#pragma unroll
      for (int offset = Layout::kAcross / 2; offset; offset /= 2)
        total += __shfl_xor_sync(0xffffffffu, total, offset);
      if (threadIdx.x % Layout::kAcross == 0) f(Layout::row(i), total);
    }
  }

  // += Σ_k a(row, k) · b(k, column) over k in [begin, end). Neighbouring threads read neighbouring k where
  // `AlongK`, else neighbouring rows or columns. Outside of the matrices the functions give zeros.
  template <bool AAlongK, bool BAlongK, class A, class B>
  __device__ void add(Memory& memory, int begin, int end, A a, B b) {
    constexpr int kDepth = Layout::kDepth, kEach = kTileSide * kDepth / Layout::kThreads;
    const int thread = static_cast<int>(threadIdx.x);
    for (int k0 = begin; k0 < end; k0 += kDepth) {
      __syncthreads();
#pragma unroll 8
      for (int e = 0; e < kEach; ++e) {
        const int at = e * Layout::kThreads + thread;
        const int k = AAlongK ? at % kDepth : at / kTileSide, m = AAlongK ? at / kDepth : at % kTileSide;
        memory.a[k][m] = k0 + k < end ? a(m, k0 + k) : C(0);
      }
#pragma unroll 8
      for (int e = 0; e < kEach; ++e) {
        const int at = e * Layout::kThreads + thread;
        const int k = BAlongK ? at % kDepth : at / kTileSide, m = BAlongK ? at / kDepth : at % kTileSide;
        memory.b[k][m] = k0 + k < end ? b(k0 + k, m) : C(0);
      }
      __syncthreads();
      if constexpr (kTensor)
        multiply_on_tensor_cores(memory);
      else
        multiply(memory);
    }
  }

 private:
  // A number as the tensor cores take it, and what is left of it.
  struct Halves {
    uint32_t high, low;
    __device__ explicit Halves(float value)
        : high(cut(value)), low(cut(value - __builtin_bit_cast(float, high))) {}
    static __device__ uint32_t cut(float value) {
      uint32_t bits;
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
      return bits;
    }
  };

  __device__ void multiply(const Memory& memory) {
#pragma unroll
    for (int k = 0; k < Layout::kDepth; ++k) {
      C x[Layout::kRows], y[Layout::kColumns];
#pragma unroll
      for (int i = 0; i < Layout::kRows; ++i) x[i] = memory.a[k][Layout::row(i)];
#pragma unroll
      for (int j = 0; j < Layout::kColumns; ++j) y[j] = memory.b[k][Layout::column(j)];
#pragma unroll
      for (int i = 0; i < Layout::kRows; ++i)
#pragma unroll
        for (int j = 0; j < Layout::kColumns; ++j) sum[i][j] += x[i] * y[j];
    }
  }

  // A warp has 16 rows; products of 16 × 8 × 8.
  __device__ void multiply_on_tensor_cores(const Memory& memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32, quarter = lane % 4, eighth = lane / 4;
    const int row = Layout::row(0);
#pragma unroll 2
    for (int k = 0; k < Layout::kDepth; k += 8) {
      const C *near = memory.a[k + quarter], *far = memory.a[k + quarter + 4];
      const Halves a[4] = {Halves(near[row]), Halves(near[row + 8]), Halves(far[row]), Halves(far[row + 8])};
      const uint32_t high[4] = {a[0].high, a[1].high, a[2].high, a[3].high},
                     low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
#pragma unroll
      for (int n = 0; n < Layout::kColumns / 2; ++n) {
        const Halves b0(memory.b[k + quarter][8 * n + eighth]), b1(memory.b[k + quarter + 4][8 * n + eighth]);
        product(n, low, b0.high, b1.high);
        product(n, high, b0.low, b1.low);
        product(n, high, b0.high, b1.high);
      }
    }
  }
  __device__ void product(int n, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sum[0][2 * n]), "+f"(sum[0][2 * n + 1]), "+f"(sum[1][2 * n]), "+f"(sum[1][2 * n + 1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

}  // namespace megatron::cuda
