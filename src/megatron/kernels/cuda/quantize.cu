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

  __device__ BlockScale(float amax, bool whole)
      : factor(amax == 0 ? 1.f : kLargest<Q> / amax),
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
  Q* q;
  const float* amax;
  Blocking b;
  template <int W>
  __device__ void run(int64_t i) const {
    q[i] = BlockScale<Q>(amax[b.block_of(i)], b.count() == 1).cast(static_cast<float>(widen(x[i])));
  }
};

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

void quantize(const KernelContext& ctx, const QuantizeArgs& args) {
  if (args.x.numel() == 0) return;
  Blocking b(args.x, args.block_rows, args.block_columns);
  cudaStream_t stream = stream_of(ctx);
  float* scale = pointer<float>(args.inverse_scale);
  dispatch_float("quantize", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_fp8("quantize", args.q.dtype(), [&]<class Q>(Type<Q>) {
      const T* x = pointer<T>(args.x);
      Q* q = pointer<Q>(args.q);
      if (int64_t size = b.block_rows * b.block_columns; size <= 65536) {
        quantize_block_kernel<T, Q>
            <<<static_cast<unsigned>(b.count()), std::min(row_threads(size, 4), 512), 0, stream>>>(x, q,
                                                                                                   scale, b);
        check_launch("quantize");
        return;
      }
      check_cuda(cudaMemsetAsync(scale, 0, static_cast<size_t>(b.count()) * sizeof(float), stream),
                 "zeroing GPU memory");
      unsigned blocks = std::min(blocks_for(args.x.numel(), kThreads * 8),
                                 static_cast<unsigned>(8 * runtime_of(ctx).properties().multiprocessors));
      amax_kernel<T><<<blocks, kThreads, 0, stream>>>(x, scale, b);
      check_launch("quantize");
      for_each<1>(ctx, "quantize", args.x.numel(), false, CastOp<T, Q>{x, q, scale, b});
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
