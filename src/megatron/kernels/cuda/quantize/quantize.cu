#include "megatron/kernels/cuda/quantize/fp8_tile.cuh"

namespace megatron::cuda {
namespace {

// A value of an int8 weight, which is read with a scale.
struct Int8 {
  int8_t value;
  Int8() = default;
  explicit __device__ Int8(float x) : value(static_cast<int8_t>(rintf(x))) {}
  __device__ operator float() const { return value; }
};

template <class Q>
constexpr float kBound = kLargest<Q>;
template <>
constexpr float kBound<Int8> = 127.f;

template <class F>
void dispatch_bytes(const char* kernel, DType dtype, F&& f) {
  if (dtype == DType::I8) return f(Type<Int8>{});
  dispatch_fp8(kernel, dtype, std::forward<F>(f));
}

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
                           : kBound<Q> / amax),
        inverse(whole ? 1.f / factor : (amax == 0 ? 1.f : amax / kBound<Q>)),
        whole(whole) {}
  __device__ Q cast(float value) const {
    value = whole ? value * factor : value / inverse;
    value = value > kBound<Q> ? kBound<Q> : value;  // in this form NaN stays NaN
    value = value < -kBound<Q> ? -kBound<Q> : value;
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
  griddep_launch();
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

template <class T, class Q>
__global__ void __launch_bounds__(kThreads)
    whole_cast_kernel(const T* x, Q* q, Q* transposed, const float* amax, const float* given, int* met,
                      float* inverse_scale, int64_t rows, int64_t columns) {
  __shared__ uint32_t transposed_tile[Fp8Tile::kSize * Fp8Tile::kPitch];
  const Fp8Tile tile(rows, columns);
  uint32_t raw[2][4][4];
  tile.load(raw, x);
  griddep_wait();  // for amax
  const BlockScale<Q> scale(given ? 0.f : *amax, true, given);
  const float f = scale.factor;
  int largest = 0;  // as bits; only with a given scale, else it is known
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *inverse_scale = scale.inverse;
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    uint32_t word[4][2];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[2 * j] = low<T>(raw[pass][r][j]), v[2 * j + 1] = high<T>(raw[pass][r][j]);
      if (met)
#pragma unroll
        for (int j = 0; j < 8; ++j) largest = max(largest, __float_as_int(fabsf(v[j])));
      word[r][0] = cast4<Q>(v[0] * f, v[1] * f, v[2] * f, v[3] * f);
      word[r][1] = cast4<Q>(v[4] * f, v[5] * f, v[6] * f, v[7] * f);
      if (q && tile.has(pass))
        write(reinterpret_cast<uint32_t*>(q + tile.index(pass, r)), Vec<uint32_t, 2>{word[r][0], word[r][1]});
    }
    tile.turn(transposed_tile, word, pass);
  }
  if (met) {
    largest = warp_reduce(largest, Maximum<int>{});
    if (tile.lane == 0) atomicMax(met, largest);
  }
  if (!transposed) return;
  __syncthreads();
  tile.store_transposed(transposed_tile, transposed);
}

template <class Q, class T>
struct DequantizeOp {
  const Q* q;
  const float* inverse_scale;
  int64_t down, across;  // strides of the scales
  T* x;
  Blocking b;
  template <int W>
  __device__ void run(int64_t i) const {
    const int64_t row = i / b.columns / b.block_rows, column = i % b.columns / b.block_columns;
    x[i] = narrow<T>(static_cast<float>(q[i]) * inverse_scale[row * down + column * across]);
  }
};

// Rows of a weight with a scale for each 128 numbers: a thread has 16 of them.
template <class Q>
__global__ void __launch_bounds__(kThreads)
    dequantize_rows_kernel(const Q* q, const float* inverse_scale, int64_t down, int64_t across, bfloat* x,
                           int block_rows, int vectors, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const auto row = static_cast<int>(i / vectors), column = static_cast<int>(i % vectors) * 16;
  const float scale = inverse_scale[row / block_rows * down + column / 128 * across];
  const auto raw = read<16>(q + i * 16);
  Vec<bfloat, 8> out[2];
#pragma unroll
  for (int j = 0; j < 16; ++j) out[j / 8].v[j % 8] = narrow<bfloat>(static_cast<float>(raw.v[j]) * scale);
  write(x + i * 16, out[0]);
  write(x + i * 16 + 8, out[1]);
}

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

// With a given scale one pass does all.
template <class T, class Q>
void quantize_whole(const KernelContext& ctx, const T* x, Q* q, Q* transposed, float* inverse_scale,
                    const float* given, float* met, const Blocking& b) {
  cudaStream_t stream = stream_of(ctx);
  dim3 grid(blocks_for(b.columns, Fp8Tile::kSize), blocks_for(b.rows, Fp8Tile::kSize));
  if (given) {
    whole_cast_kernel<T, Q><<<grid, kThreads, 0, stream>>>(
        x, q, transposed, nullptr, given, reinterpret_cast<int*>(met), inverse_scale, b.rows, b.columns);
    return check_launch("quantize");
  }
  Scratch amax(ctx, sizeof(float));
  check_cuda(cudaMemsetAsync(amax.as<float>(), 0, sizeof(float), stream), "zeroing GPU memory");
  int64_t vectors = b.rows * b.columns / kVector<T>;
  unsigned blocks = std::min(blocks_for(vectors, kThreads * 4),
                             static_cast<unsigned>(8 * runtime_of(ctx).properties().sm_count));
  whole_amax_kernel<T><<<blocks, kThreads, 0, stream>>>(x, vectors, amax.as<int>());
  check_launch("quantize");
  launch_pdl("quantize", whole_cast_kernel<T, Q>, grid, kThreads, stream, x, q, transposed,
             amax.as<const float>(), nullptr, nullptr, inverse_scale, b.rows, b.columns);
  if (met) for_each<1>(ctx, "quantize", 1, false, NoteOp{amax.as<float>(), met});
}

void quantize(const KernelContext& ctx, const QuantizeArgs& args) {
  if (args.x.numel() == 0) return;
  Blocking b(args.x, args.block_rows, args.block_columns);
  cudaStream_t stream = stream_of(ctx);
  float *scale = pointer<float>(args.inverse_scale), *met = pointer<float>(args.amax);
  const float* given = pointer<float>(args.scale);
  dispatch_float("quantize", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_bytes("quantize", args.q.dtype(), [&]<class Q>(Type<Q>) {
      const T* x = pointer<T>(args.x);
      Q *q = pointer<Q>(args.q), *transposed = pointer<Q>(args.transposed);
      if constexpr (sizeof(T) == 2 && !std::is_same_v<Q, Int8>)
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
                                   static_cast<unsigned>(8 * runtime_of(ctx).properties().sm_count));
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
                                 static_cast<unsigned>(8 * runtime_of(ctx).properties().sm_count));
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
  dispatch_bytes("dequantize", args.q.dtype(), [&]<class Q>(Type<Q>) {
    if (args.x.dtype() == DType::BF16 && args.block_columns == 128 && b.columns % 16 == 0 &&
        b.rows < int64_t{1} << 31 && aligned(args.q.raw()) && aligned(args.x.raw())) {
      const int64_t count = args.x.numel() / 16;
      dequantize_rows_kernel<Q><<<blocks_for(count, kThreads), kThreads, 0, stream_of(ctx)>>>(
          pointer<Q>(args.q), pointer<float>(args.inverse_scale), args.inverse_scale.stride(0),
          args.inverse_scale.stride(1), pointer<bfloat>(args.x), static_cast<int>(b.block_rows),
          static_cast<int>(b.columns / 16), count);
      return check_launch("dequantize");
    }
    dispatch_float("dequantize", args.x.dtype(), [&]<class T>(Type<T>) {
      for_each<1>(ctx, "dequantize", args.x.numel(), false,
                  DequantizeOp<Q, T>{pointer<Q>(args.q), pointer<float>(args.inverse_scale),
                                     args.inverse_scale.stride(0), args.inverse_scale.stride(1),
                                     pointer<T>(args.x), b});
    });
  });
}

}  // namespace

void add_quantize_kernels(KernelTable& table) {
  table.quantize = quantize;
  table.dequantize = dequantize;
}

}  // namespace megatron::cuda
