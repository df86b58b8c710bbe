#include "megatron/kernels/cuda/gemm/gemm_small_weight.h"

#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/core/mma.cuh"

namespace megatron::cuda {
namespace {

constexpr int kFewRows = 16;  // at most, in two groups of eight
constexpr int kColumns = 16;  // of the output that a block makes
constexpr int kSplit = 8;     // warps of a block, which share K among them
constexpr int kBlock = 128;   // of K: what a scale belongs to, two loads of all lanes of a warp
constexpr int kSplitThreads = kSplit * 32;
constexpr int kStreamedRows = 4;  // that a kernel of their own takes

struct SmallWeightTask {
  const bfloat *x, *bias;  // x [rows, k]
  const uint8_t* w;        // [n, k]
  const float* scale;      // of row n and block b of K: scale[n / scale_rows · down + b · across]
  bfloat* y;
  int64_t x_stride, w_stride, y_stride, down, across;
  int rows, n, blocks, scale_rows;
  bool prefetch;  // w is read before the kernels in front are done
};

// Four bytes as two pairs of bf16, which is exact.
struct FromInt8 {
  // 128 + the lower seven bits, less 128 or 256 by the sign: both are bf16 numbers whose last bit is 1.
  static __device__ __forceinline__ uint32_t pair(uint32_t word, uint32_t bytes) {
    const uint32_t biased = __byte_perm(word, 0x43434343u, bytes);
    const uint32_t magnitude = biased & 0xff7fff7fu, offset = biased & 0xff80ff80u;
    const __nv_bfloat162 value = __hsub2(reinterpret_cast<const __nv_bfloat162&>(magnitude),
                                         reinterpret_cast<const __nv_bfloat162&>(offset));
    return reinterpret_cast<const uint32_t&>(value);
  }
  static __device__ __forceinline__ uint32_t low(uint32_t word) { return pair(word, 0x4140); }
  static __device__ __forceinline__ uint32_t high(uint32_t word) { return pair(word, 0x4342); }
};

struct FromE4m3 {
  // Exponent and mantissa at the places of bf16's, whose exponents are 120 higher.
  static __device__ __forceinline__ uint32_t pair(uint32_t word, uint32_t bytes) {
    const uint32_t left = __byte_perm(word, 0, bytes), scale = 0x7b807b80u;  // 2¹²⁰ twice
    const uint32_t raw = (left & 0x80008000u) | (left >> 4 & 0x07f007f0u);
    const __nv_bfloat162 value =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(raw), reinterpret_cast<const __nv_bfloat162&>(scale));
    return reinterpret_cast<const uint32_t&>(value);
  }
  static __device__ __forceinline__ uint32_t low(uint32_t word) { return pair(word, 0x1404); }
  static __device__ __forceinline__ uint32_t high(uint32_t word) { return pair(word, 0x3424); }
};

// Four bytes as two pairs of fp16, which is exact as well and takes fewer instructions.
struct HalfFromInt8 {
  // 1024 + the number + 128 is an fp16 number whose last bit is 1.
  static __device__ __forceinline__ uint32_t pair(uint32_t word, uint32_t bytes) {
    const uint32_t biased = __byte_perm(word ^ 0x80808080u, 0x64646464u, bytes), offset = 0x64806480u;
    const __half2 value =
        __hsub2(reinterpret_cast<const __half2&>(biased), reinterpret_cast<const __half2&>(offset));
    return reinterpret_cast<const uint32_t&>(value);
  }
  static __device__ __forceinline__ uint32_t low(uint32_t word) { return pair(word, 0x4140); }
  static __device__ __forceinline__ uint32_t high(uint32_t word) { return pair(word, 0x4342); }
};

struct HalfFromE4m3 {
  static __device__ __forceinline__ uint32_t pair(uint32_t bytes) {
    const __half2_raw value = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes), __NV_E4M3);
    return static_cast<uint32_t>(value.y) << 16 | value.x;
  }
  static __device__ __forceinline__ uint32_t low(uint32_t word) { return pair(word & 0xffffu); }
  static __device__ __forceinline__ uint32_t high(uint32_t word) { return pair(word >> 16); }
};

__device__ __forceinline__ uint4 read_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(from)));
  return v;
}

// c += 64 elements of K of 16 rows of w, times those of eight rows of x. A lane holds 16 neighbours in K of
// each of its rows. Fragments of mma.sync ask for other neighbours, but as w and x are permuted alike, the
// sum over K is the same.
template <class From>
__device__ __forceinline__ void multiply(float (&c)[4], const uint4& own, const uint4& next, const uint4& x0,
                                         const uint4& x1) {
  const uint32_t w0[4] = {own.x, own.y, own.z, own.w}, w1[4] = {next.x, next.y, next.z, next.w};
  const uint32_t b[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const uint32_t a[4] = {From::low(w0[m]), From::low(w1[m]), From::high(w0[m]), From::high(w1[m])};
    mma<bfloat>(c, a, b[2 * m], b[2 * m + 1]);
  }
}

// More than four rows of x.
// Math: mma.sync m16n8k16 with 16 rows of w, widened in registers, as A and eight rows of x as B. Sums of a
// block of K are scaled before they are added, in fp32.
// Grid: a block for each 16 columns of the output; its eight warps have a part of K each. A warp has `Ahead`
// blocks of K on their way in registers.
// PDL: they are asked for before the block waits for the kernel that makes x.
// Shared memory: the accumulators of the warps, which are added in order.
template <class From, int Groups>
__global__ void __launch_bounds__(kSplitThreads, 2)
    small_weight_kernel(const __grid_constant__ SmallWeightTask task) {
  constexpr int Ahead = 2;
  __shared__ float partial[kSplit][8 * Groups][kColumns + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = lane / 4, at = lane % 4 * 16;
  const int column0 = blockIdx.x * kColumns;
  const int begin = warp * task.blocks / kSplit, end = (warp + 1) * task.blocks / kSplit;
  griddep_launch();

  // Rows beyond the last are read as the last; nobody looks at their results.
  const uint8_t* w[2];
  const float* scale[2];
  const bfloat* x[Groups];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = min(column0 + own + 8 * i, task.n - 1);
    w[i] = task.w + row * task.w_stride + at;
    scale[i] = task.scale + row / task.scale_rows * task.down;
  }
#pragma unroll
  for (int g = 0; g < Groups; ++g) x[g] = task.x + min(8 * g + own, task.rows - 1) * task.x_stride + at;

  uint4 weights[Ahead][2][2];  // block of K, half of it, row
  float scales[Ahead][2];
  const auto read_weights = [&](int a, int block) {
    if (block >= end) return;  // no lane of a warp diverges: all have the same `end`
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[a][i] = scale[i][block * task.across];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        weights[a][h][i] = read_once(w[i] + static_cast<int64_t>(block) * kBlock + h * (kBlock / 2));
    }
  };
  if (task.prefetch) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) read_weights(a, begin + a);
  }
  griddep_wait();
  if (!task.prefetch) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) read_weights(a, begin + a);
  }

  float acc[Groups][4] = {};
  for (int block0 = begin; block0 < end; block0 += Ahead) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) {
      const int block = block0 + a;
      if (block >= end) break;
      float c[Groups][4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int g = 0; g < Groups; ++g) {
          const auto* from =
              reinterpret_cast<const uint4*>(x[g] + static_cast<int64_t>(block) * kBlock + h * (kBlock / 2));
          multiply<From>(c[g], weights[a][h][0], weights[a][h][1], from[0], from[1]);
        }
#pragma unroll
      for (int g = 0; g < Groups; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[g][i] += scales[a][i / 2] * c[g][i];
      read_weights(a, block + Ahead);
    }
  }
#pragma unroll
  for (int g = 0; g < Groups; ++g)
#pragma unroll
    for (int i = 0; i < 4; ++i) partial[warp][8 * g + lane % 4 * 2 + i % 2][own + 8 * (i / 2)] = acc[g][i];
  __syncthreads();

  for (int i = threadIdx.x; i < 8 * Groups * kColumns; i += kSplitThreads) {
    const int row = i / kColumns, column = column0 + i % kColumns;
    if (row >= task.rows || column >= task.n) continue;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kSplit; ++s) sum += partial[s][row][i % kColumns];
    if (task.bias) sum += widen(task.bias[column]);
    task.y[row * task.y_stride + column] = narrow<bfloat>(sum);
  }
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// What x is multiplied by, so that its numbers are fp16 ones: the power of two that brings the largest of
// them, whose bits as bf16 are `largest`, to 2¹⁴. Infinity and NaN stay what they are.
__device__ __forceinline__ float half_factor(uint32_t largest) {
  const int exponent = static_cast<int>(largest >> 7);
  return exponent == 255 ? 1.f : __int_as_float(min(max(268 - exponent, 14), 240) << 23);
}
__device__ __forceinline__ uint32_t half_pair(uint32_t pair, float factor) {
  const __half2 value =
      __floats2half2_rn(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xffff0000u) * factor);
  return reinterpret_cast<const uint32_t&>(value);
}

// Up to four rows of x.
// Math: as above in fp16, in which x is times a power of two. Eight lanes take 128 numbers of a row of w:
// rows 2 r and 2 r + 1 of A are the halves of a block of K of one row, and columns 0–3 of B have the first
// halves of four rows of x, columns 4–7 the second ones. A sum is that of row 2 r with columns 0–3 and of row
// 2 r + 1 with columns 4–7; the other half of the results is nothing. Grid: as many blocks as the GPU holds
// at once, which take tiles of 16 columns of the output in turn; the eight warps have a part of K each. A
// warp has Ahead blocks of K on their way in registers, those of the next tile too. PDL: the first are asked
// for before the block waits for the kernel that makes x. Shared memory: the accumulators of the warps, which
// are added in order, of two tiles in turn: one barrier a tile is enough.
template <class From>
__global__ void __launch_bounds__(kSplitThreads, 2)
    streamed_kernel(const __grid_constant__ SmallWeightTask task) {
  constexpr int Ahead = 2, Loads = 4;
  __shared__ float partial[2][kSplit][kStreamedRows][kColumns + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = lane / 8;
  const int begin = warp * task.blocks / kSplit, end = (warp + 1) * task.blocks / kSplit;
  const int tiles = (task.n + kColumns - 1) / kColumns;
  griddep_launch();

  // Rows beyond the last are read as the last; nobody looks at their results.
  const uint8_t* w[Loads];
  const float* scale[Loads];
  int asked_tile = static_cast<int>(blockIdx.x), asked = begin;
  const auto open = [&] {
#pragma unroll
    for (int j = 0; j < Loads; ++j) {
      const int row = min(asked_tile * kColumns + own + 4 * j, task.n - 1);
      w[j] = task.w + row * task.w_stride + static_cast<int64_t>(begin) * kBlock + lane % 8 * 16;
      scale[j] = task.scale + row / task.scale_rows * task.down + begin * task.across;
    }
  };
  uint4 weights[Ahead][Loads];
  float scales[Ahead][Loads];
  const auto ask = [&](int a) {
    if (asked_tile >= tiles) return;
#pragma unroll
    for (int j = 0; j < Loads; ++j) {
      weights[a][j] = read_once(w[j]);
      scales[a][j] = *scale[j];
      w[j] += kBlock;
      scale[j] += task.across;
    }
    if (++asked == end) {
      asked = begin;
      asked_tile += static_cast<int>(gridDim.x);
      open();
    }
  };
  const bool works = begin < end;
  if (works) open();
  if (works && task.prefetch) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) ask(a);
  }
  griddep_wait();
  if (works && !task.prefetch) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) ask(a);
  }

  // 16 numbers of a block of K of one row of x.
  const bfloat* x =
      task.x + min(lane / 4 % 4, task.rows - 1) * task.x_stride + lane / 16 * (kBlock / 2) + lane % 4 * 16;
  uint4 inputs[2];
  const auto read_inputs = [&](int at) {
    const auto* from = reinterpret_cast<const uint4*>(x + static_cast<int64_t>(at) * kBlock);
    inputs[0] = from[0];
    inputs[1] = from[1];
  };
  uint32_t largest = 0;
#pragma unroll 4
  for (int at = begin; at < end; ++at) {
    read_inputs(at);
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = __vmaxu2(largest, word_of(inputs[i / 4], i % 4) & 0x7fff7fffu);
  }
  largest = max(largest & 0xffffu, largest >> 16);
#pragma unroll
  for (const int offset : {1, 2, 16}) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  const float factor = half_factor(largest);
  float inverse[2];  // of the rows whose sums this lane has
#pragma unroll
  for (int i = 0; i < 2; ++i) inverse[i] = 1.f / __shfl_sync(0xffffffffu, factor, 4 * (lane % 2 * 2 + i));

  float acc[2][4] = {};
  int tile = static_cast<int>(blockIdx.x), block = begin, turn = 0;
  const auto finish = [&] {
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // The second half's sum is in the lane of the next row and of the columns four further.
        const float sum = acc[p][i] + __shfl_xor_sync(0xffffffffu, acc[p][i], 6);
        acc[p][i] = 0;
        if (lane / 4 % 2 == 0 && lane % 4 < 2)
          partial[turn][warp][lane % 2 * 2 + i % 2][own + 4 * (2 * p + i / 2)] = sum * inverse[i % 2];
      }
    __syncthreads();
    for (int i = threadIdx.x; i < kStreamedRows * kColumns; i += kSplitThreads) {
      const int row = i / kColumns, column = tile * kColumns + i % kColumns;
      if (row >= task.rows || column >= task.n) continue;
      float sum = 0;
#pragma unroll
      for (int s = 0; s < kSplit; ++s) sum += partial[turn][s][row][i % kColumns];
      if (task.bias) sum += widen(task.bias[column]);
      task.y[row * task.y_stride + column] = narrow<bfloat>(sum);
    }
    turn ^= 1;
    tile += static_cast<int>(gridDim.x);
  };
  if (!works) {
    while (tile < tiles) finish();
    return;
  }
  read_inputs(block);
  while (tile < tiles) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) {
      if (tile >= tiles) break;
      float c[2][4] = {};
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t b0 = half_pair(word_of(inputs[m / 2], m % 2 * 2), factor),
                       b1 = half_pair(word_of(inputs[m / 2], m % 2 * 2 + 1), factor);
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const uint32_t w0 = word_of(weights[a][2 * p], m), w1 = word_of(weights[a][2 * p + 1], m);
          const uint32_t rows[4] = {From::low(w0), From::low(w1), From::high(w0), From::high(w1)};
          mma<half>(c[p], rows, b0, b1);
        }
      }
      float factors[Loads];
#pragma unroll
      for (int j = 0; j < Loads; ++j) factors[j] = scales[a][j];
      ask(a);
      read_inputs(block + 1 == end ? begin : block + 1);
#pragma unroll
      for (int p = 0; p < 2; ++p)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[p][i] += factors[2 * p + i / 2] * c[p][i];
      if (++block == end) {
        block = begin;
        finish();
      }
    }
  }
}

template <class From, class Half>
void launch(const KernelContext& ctx, const SmallWeightTask& task) {
  const int64_t tiles = blocks_for(task.n, kColumns);
  if (task.rows <= kStreamedRows) {
    const int64_t resident = int64_t{2} * runtime_of(ctx).properties().sm_count;
    step_launch(ctx, "gemm", static_cast<unsigned>(std::min(tiles, resident)), kSplitThreads)
        .run(streamed_kernel<Half>, task);
    return;
  }
  const Launch by = step_launch(ctx, "gemm", static_cast<unsigned>(tiles), kSplitThreads);
  if (task.rows <= 8)
    by.run(small_weight_kernel<From, 1>, task);
  else
    by.run(small_weight_kernel<From, 2>, task);
}

}  // namespace

bool small_weight_gemm(const KernelContext& ctx, const GemmArgs& args) {
  const Tensor w = args.b.detach().transpose(0, 1);
  const Tensor &x = args.a, &y = args.c;
  const bool bytes = w.dtype() == DType::I8 || w.dtype() == DType::F8E4M3;
  if (!bytes || args.a_scale || args.alpha != 1 || args.beta != 0 || x.dtype() != DType::BF16 ||
      y.dtype() != DType::BF16 || y.rank() != 2 || y.stride(1) != 1 || x.size(0) > kFewRows ||
      x.size(1) % kBlock != 0 || x.stride(1) != 1 || w.stride(1) != 1 || !aligned(x.raw()) ||
      !aligned(w.raw()) || (x.size(0) > 1 && x.stride(0) % 8 != 0) || w.stride(0) % 16 != 0 ||
      w.size(0) >= int64_t{1} << 30)
    return false;
  if (args.bias && (args.bias.dtype() != DType::BF16 || args.bias.stride(0) != 1)) return false;
  SmallWeightTask task{};
  task.x = pointer<bfloat>(x);
  task.bias = pointer<bfloat>(args.bias);
  task.w = static_cast<const uint8_t*>(w.raw());
  task.scale = pointer<float>(args.b_scale);
  task.y = pointer<bfloat>(y);
  task.x_stride = x.stride(0);
  task.w_stride = w.stride(0);
  task.y_stride = y.stride(0);
  task.down = args.b_scale.stride(0);
  task.across = args.b_scale.stride(1);
  task.rows = static_cast<int>(x.size(0));
  task.n = static_cast<int>(w.size(0));
  task.blocks = static_cast<int>(x.size(1) / kBlock);
  task.scale_rows = static_cast<int>(std::max<int64_t>(args.b_block_rows, 1));
  task.prefetch = ctx.pdl && args.static_b;
  if (w.dtype() == DType::I8)
    launch<FromInt8, HalfFromInt8>(ctx, task);
  else
    launch<FromE4m3, HalfFromE4m3>(ctx, task);
  return true;
}

}  // namespace megatron::cuda
