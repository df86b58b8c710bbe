#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::cuda {
namespace {

template <class Q>
constexpr float kLargest = std::is_same_v<Q, __nv_fp8_e4m3> ? 448.f : 57344.f;

// How a block is scaled. A single block, the whole tensor, is multiplied by its scale, others are divided by
// their inverse: the conventions of kernels/quantize.h, which differ in the last bit.
template <class Q>
struct BlockScale {
  float factor, inverse;
  bool whole;

  // `scale`: where given, what the block is multiplied by whatever it holds.
  __device__ BlockScale(float amax, bool whole, const float* scale = nullptr)
      : factor(scale       ? *scale
               : amax == 0 ? 1.f
                           : kLargest<Q> / amax),
        inverse(whole ? 1.f / factor : (amax == 0 ? 1.f : amax / kLargest<Q>)),
        whole(whole) {}
  __device__ Q cast(float value) const {
    value = whole ? value * factor : value / inverse;
    value = value > kLargest<Q> ? kLargest<Q> : value;  // in this form NaN stays NaN
    value = value < -kLargest<Q> ? -kLargest<Q> : value;
    return Q(value);
  }
};

struct Blocking {
  int64_t rows, columns, block_rows, block_columns, across;  // across: blocks side by side

  Blocking(const Tensor& x, int64_t block_rows, int64_t block_columns)
      : rows(x.size(0)),
        columns(x.size(1)),
        block_rows(block_rows ? block_rows : std::max<int64_t>(rows, 1)),
        block_columns(block_columns ? block_columns : std::max<int64_t>(columns, 1)),
        across((columns + this->block_columns - 1) / this->block_columns) {}
  __host__ __device__ int64_t count() const { return (rows + block_rows - 1) / block_rows * across; }
  __device__ int64_t block_of(int64_t i) const {
    return i / columns / block_rows * across + i % columns / block_columns;
  }
};

// A thread block per block of x: the largest value, then the cast.
template <class T, class Q>
__global__ void quantize_block_kernel(const T* x, Q* q, float* inverse_scale, Blocking b) {
  int64_t row0 = blockIdx.x / b.across * b.block_rows, column0 = blockIdx.x % b.across * b.block_columns;
  int64_t rows = min(b.block_rows, b.rows - row0), columns = min(b.block_columns, b.columns - column0);
  float amax = 0;
  for (int64_t i = threadIdx.x; i < rows * columns; i += blockDim.x)
    amax = fmaxf(
        amax, fabsf(static_cast<float>(widen(x[(row0 + i / columns) * b.columns + column0 + i % columns]))));
  BlockScale<Q> scale(block_reduce(amax, Maximum<float>{}, 0.f), b.count() == 1);
  if (threadIdx.x == 0) inverse_scale[blockIdx.x] = scale.inverse;
  for (int64_t i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    int64_t at = (row0 + i / columns) * b.columns + column0 + i % columns;
    q[at] = scale.cast(static_cast<float>(widen(x[at])));
  }
}

// Blocks too large for one thread block: amax of each by an integer maximum over the bits (order does not
// matter there), then the cast, then the scales.
template <class T>
__global__ void amax_kernel(const T* x, float* amax, Blocking b) {
  int64_t n = b.rows * b.columns;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    int block = static_cast<int>(b.block_of(i));
    int bits = __float_as_int(fabsf(static_cast<float>(widen(x[i]))));
    unsigned active = __activemask(), same = __match_any_sync(active, block);
    bits = __reduce_max_sync(same, bits);
    if (threadIdx.x % 32 == __ffs(same) - 1) atomicMax(reinterpret_cast<int*>(amax) + block, bits);
  }
}

template <class Q>
struct ScaleOp {
  float* scale;
  bool whole;
  template <int W>
  __device__ void run(int64_t i) const {
    scale[i] = BlockScale<Q>(scale[i], whole).inverse;
  }
};

template <class T, class Q>
struct CastOp {
  const T* x;
  Q *q, *transposed;
  const float* amax;
  Blocking b;
  template <int W>
  __device__ void run(int64_t i) const {
    q[i] = BlockScale<Q>(amax[b.block_of(i)], b.count() == 1).cast(static_cast<float>(widen(x[i])));
    if (transposed) transposed[i % b.columns * b.rows + i / b.columns] = q[i];
  }
};

template <class Q>
struct TransposeOp {
  const Q* q;
  Q* transposed;
  int64_t rows, columns;
  template <int W>
  __device__ void run(int64_t i) const {
    transposed[i % columns * rows + i / columns] = q[i];
  }
};

// A whole tensor that lies well, in two passes at the speed of memory: its largest magnitude, then the cast,
// which writes the transposed values too. The maximum is one over bits, so that order does not matter and NaN
// wins.
template <class T>
__global__ void __launch_bounds__(kThreads) whole_amax_kernel(const T* x, int64_t vectors, int* amax) {
  constexpr int W = kVector<T>, kAhead = 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  int largest = 0;
  auto take = [&](const Vec<T, W>& raw) {
#pragma unroll
    for (int j = 0; j < W; ++j)
      largest = max(largest, __float_as_int(fabsf(static_cast<float>(widen(raw.v[j])))));
  };
  int64_t v = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; v + (kAhead - 1) * stride < vectors; v += kAhead * stride) {
    Vec<T, W> raw[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) raw[k] = read<W>(x + (v + k * stride) * W);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) take(raw[k]);
  }
  for (; v < vectors; v += stride) take(read<W>(x + v * W));
  largest = block_reduce(largest, Maximum<int>{}, 0);
  if (threadIdx.x == 0) atomicMax(amax, largest);
}

// Four values to four bytes, saturating.
template <class Q>
__device__ __forceinline__ uint32_t cast4(float a, float b, float c, float d) {
  constexpr auto kind = std::is_same_v<Q, __nv_fp8_e4m3> ? __NV_E4M3 : __NV_E5M2;
  uint32_t low = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, kind);
  uint32_t high = __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, kind);
  return low | high << 16;
}

// A tile of 128 × 128 per block. A thread takes four rows of eight columns at a time, so that four values of
// a column make a word of the transposed tile; the lanes of a warp cover 32 rows of 32 columns, which spreads
// those words over all banks.
constexpr int kTile = 128, kTileWords = kTile / 4 + 1;

template <class T, class Q>
__global__ void __launch_bounds__(kThreads)
    whole_cast_kernel(const T* x, Q* q, Q* transposed, const float* amax, const float* given, int* met,
                      float* inverse_scale, int64_t rows, int64_t columns) {
  constexpr int W = 8;
  __shared__ uint32_t tile[kTile * kTileWords];
  const BlockScale<Q> scale(given ? 0.f : *amax, true, given);
  const float factor = scale.factor;
  int largest = 0;  // as bits; only with a given scale, else it is known
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *inverse_scale = scale.inverse;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = (warp % 4) * 32 + lane % 4 * W;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kTile,
                row0 = static_cast<int64_t>(blockIdx.y) * kTile;
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    const int row = pass * 64 + (warp / 4) * 32 + lane / 4 * 4;
    if (row0 + row >= rows || column0 + column >= columns) continue;
    const int64_t at = (row0 + row) * columns + column0 + column;
    uint32_t word[4][2];
    Vec<T, W> raw[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) raw[r] = read<W>(x + at + r * columns);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float v[W];
#pragma unroll
      for (int j = 0; j < W; ++j) {
        v[j] = static_cast<float>(widen(raw[r].v[j]));
        if (met) largest = max(largest, __float_as_int(fabsf(v[j])));
        v[j] *= factor;
      }
      word[r][0] = cast4<Q>(v[0], v[1], v[2], v[3]);
      word[r][1] = cast4<Q>(v[4], v[5], v[6], v[7]);
      if (q)
        write(reinterpret_cast<uint32_t*>(q + at + r * columns), Vec<uint32_t, 2>{word[r][0], word[r][1]});
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t pick = static_cast<uint32_t>(j) | static_cast<uint32_t>(j + 4) << 4;
        uint32_t top = __byte_perm(word[0][half], word[1][half], pick);
        uint32_t bottom = __byte_perm(word[2][half], word[3][half], pick);
        tile[(column + half * 4 + j) * kTileWords + row / 4] = __byte_perm(top, bottom, 0x5410);
      }
  }
  if (met) {
    largest = warp_reduce(largest, Maximum<int>{});
    if (lane == 0) atomicMax(met, largest);
  }
  if (!transposed) return;
  __syncthreads();
  const int64_t row = row0 + lane * 4;
  if (row >= rows) return;
#pragma unroll 4
  for (int c = warp; c < kTile; c += kThreads / 32)
    if (column0 + c < columns)
      *reinterpret_cast<uint32_t*>(transposed + (column0 + c) * rows + row) = tile[c * kTileWords + lane];
}

template <class Q, class T>
struct DequantizeOp {
  const Q* q;
  const float* inverse_scale;
  T* x;
  Blocking b;
  template <int W>
  __device__ void run(int64_t i) const {
    x[i] = narrow<T>(static_cast<float>(q[i]) * inverse_scale[b.block_of(i)]);
  }
};

struct NoteOp {
  const float* amax;
  float* met;
  template <int W>
  __device__ void run(int64_t) const {
    atomicMax(reinterpret_cast<int*>(met), __float_as_int(*amax));
  }
};

// A whole tensor with a given scale that does not lie well.
template <class T, class Q>
struct GivenOp {
  const T* x;
  Q *q, *transposed;
  const float* scale;
  float *inverse_scale, *met;
  int64_t rows, columns;
  template <int W>
  __device__ void run(int64_t i) const {
    const BlockScale<Q> by(0.f, true, scale);
    const float value = static_cast<float>(widen(x[i]));
    q[i] = by.cast(value);
    if (transposed) transposed[i % columns * rows + i / columns] = q[i];
    if (i == 0) *inverse_scale = by.inverse;
    if (met) atomicMax(reinterpret_cast<int*>(met), __float_as_int(fabsf(value)));
  }
};

template <class F>
void dispatch_fp8(const char* kernel, DType dtype, F&& f) {
  switch (dtype) {
    case DType::F8E4M3:
      return f(Type<__nv_fp8_e4m3>{});
    case DType::F8E5M2:
      return f(Type<__nv_fp8_e5m2>{});
    default:
      fail("{}: {} is no fp8 format; use fp8_e4m3 or fp8_e5m2", kernel, dtype);
  }
}

// With a given scale one pass does all.
template <class T, class Q>
void quantize_whole(const KernelContext& ctx, const T* x, Q* q, Q* transposed, float* inverse_scale,
                    const float* given, float* met, const Blocking& b) {
  cudaStream_t stream = stream_of(ctx);
  dim3 grid(blocks_for(b.columns, kTile), blocks_for(b.rows, kTile));
  if (given) {
    whole_cast_kernel<T, Q><<<grid, kThreads, 0, stream>>>(
        x, q, transposed, nullptr, given, reinterpret_cast<int*>(met), inverse_scale, b.rows, b.columns);
    return check_launch("quantize");
  }
  Scratch amax(ctx, sizeof(float));
  check_cuda(cudaMemsetAsync(amax.as<float>(), 0, sizeof(float), stream), "zeroing GPU memory");
  int64_t vectors = b.rows * b.columns / kVector<T>;
  unsigned blocks = std::min(blocks_for(vectors, kThreads * 4),
                             static_cast<unsigned>(8 * runtime_of(ctx).properties().multiprocessors));
  whole_amax_kernel<T><<<blocks, kThreads, 0, stream>>>(x, vectors, amax.as<int>());
  whole_cast_kernel<T, Q><<<grid, kThreads, 0, stream>>>(x, q, transposed, amax.as<float>(), nullptr, nullptr,
                                                         inverse_scale, b.rows, b.columns);
  check_launch("quantize");
  if (met) for_each<1>(ctx, "quantize", 1, false, NoteOp{amax.as<float>(), met});
}

void quantize(const KernelContext& ctx, const QuantizeArgs& args) {
  if (args.x.numel() == 0) return;
  Blocking b(args.x, args.block_rows, args.block_columns);
  cudaStream_t stream = stream_of(ctx);
  float *scale = pointer<float>(args.inverse_scale), *met = pointer<float>(args.amax);
  const float* given = pointer<float>(args.scale);
  dispatch_float("quantize", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_fp8("quantize", args.q.dtype(), [&]<class Q>(Type<Q>) {
      const T* x = pointer<T>(args.x);
      Q *q = pointer<Q>(args.q), *transposed = pointer<Q>(args.transposed);
      if constexpr (sizeof(T) == 2)
        if (b.count() == 1 && b.columns % 8 == 0 && b.rows % 4 == 0 && aligned(x) && aligned(q, 8) &&
            aligned(transposed, 4))
          return quantize_whole(ctx, x, q, transposed, scale, given, met, b);
      if (given) {
        for_each<1>(ctx, "quantize", args.x.numel(), false,
                    GivenOp<T, Q>{x, q, transposed, given, scale, met, b.rows, b.columns});
        return;
      }
      if (met) {  // into it, without a change of what was there
        unsigned blocks = std::min(blocks_for(args.x.numel(), kThreads * 8),
                                   static_cast<unsigned>(8 * runtime_of(ctx).properties().multiprocessors));
        amax_kernel<T><<<blocks, kThreads, 0, stream>>>(x, met, b);
        check_launch("quantize");
      }
      if (int64_t size = b.block_rows * b.block_columns; size <= 65536) {
        quantize_block_kernel<T, Q>
            <<<static_cast<unsigned>(b.count()), std::min(row_threads(size, 4), 512), 0, stream>>>(x, q,
                                                                                                   scale, b);
        check_launch("quantize");
        if (transposed)
          for_each<1>(ctx, "quantize", args.x.numel(), false,
                      TransposeOp<Q>{q, transposed, b.rows, b.columns});
        return;
      }
      check_cuda(cudaMemsetAsync(scale, 0, static_cast<size_t>(b.count()) * sizeof(float), stream),
                 "zeroing GPU memory");
      unsigned blocks = std::min(blocks_for(args.x.numel(), kThreads * 8),
                                 static_cast<unsigned>(8 * runtime_of(ctx).properties().multiprocessors));
      amax_kernel<T><<<blocks, kThreads, 0, stream>>>(x, scale, b);
      check_launch("quantize");
      for_each<1>(ctx, "quantize", args.x.numel(), false, CastOp<T, Q>{x, q, transposed, scale, b});
      for_each<1>(ctx, "quantize", b.count(), false, ScaleOp<Q>{scale, b.count() == 1});
    });
  });
}

void dequantize(const KernelContext& ctx, const DequantizeArgs& args) {
  if (args.x.numel() == 0) return;
  Blocking b(args.x, args.block_rows, args.block_columns);
  dispatch_fp8("dequantize", args.q.dtype(), [&]<class Q>(Type<Q>) {
    dispatch_float("dequantize", args.x.dtype(), [&]<class T>(Type<T>) {
      for_each<1>(
          ctx, "dequantize", args.x.numel(), false,
          DequantizeOp<Q, T>{pointer<Q>(args.q), pointer<float>(args.inverse_scale), pointer<T>(args.x), b});
    });
  });
}

}  // namespace

void add_quantize_kernels(KernelTable& table) {
  table.quantize = quantize;
  table.dequantize = dequantize;
}

}  // namespace megatron::cuda
