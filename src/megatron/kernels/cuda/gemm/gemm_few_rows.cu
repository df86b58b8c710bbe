#include "megatron/kernels/cuda/gemm/gemm_few_rows.h"

#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/core/mma.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"

namespace megatron::cuda {
namespace {

constexpr int kFewRows = 16;  // at most, in two groups of eight
constexpr int kColumns = 16;  // of the output that a block makes
constexpr int kSplit = 8;     // warps of a block, which share K among them
constexpr int kChunk = 32;    // of K: what one load of all lanes of a warp covers
constexpr int kSplitThreads = kSplit * 32;
constexpr size_t kLongRead = size_t{40} << 20;  // bytes of w; above them cuBLASLt is faster

template <class T>
struct FewRowsTask {
  const T *x, *w, *bias;  // x [rows, k], w [n, k], or [2 n, k] with SwiGLU: the gate's rows, then up's
  T *y, *active;          // y [rows, n] or [rows, 2 n]; active [rows, n] with SwiGLU
  int64_t x_stride, w_stride, y_stride, active_stride;
  int rows, n, chunks;
  bool prefetch;  // w is read before the kernels in front are done
};

// 16 bytes, or zeros. Predicated, so that no branch stands between loads. Weights are read once: they do not
// displace x in the L1 cache.
template <bool Once>
__device__ __forceinline__ uint4 read_if(bool valid, const void* from) {
  uint4 v{};
  if constexpr (Once)
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %5, 0;"
        "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(valid)));
  else
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %5, 0;"
        "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(valid)));
  return v;
}

// c += 32 elements of K of 16 rows of w, times those of eight rows of x. A lane holds 16 bytes of each of its
// rows, eight neighbours in K. Fragments of mma.sync ask for other neighbours, but as w and x are permuted
// alike, the sum over K is the same.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint4& low, const uint4& high, const uint4& x) {
  const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
  mma<T>(c, first, x.x, x.y);
  mma<T>(c, second, x.z, x.w);
}

// Asks for `bytes`, a multiple of 16, of device memory, which a later read then finds in the L2 cache.
__device__ __forceinline__ void prefetch_bulk(const void* data, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(data)), "r"(bytes)
               : "memory");
#endif
}

// y = x · wᵀ + bias for few rows of x; with SwiGLU also active = silu(gate) · up, of what y holds of them.
// Math: mma.sync m16n8k16 with 16 rows of w as A and eight rows of x as B; Groups of eight rows of x.
// Grid: a block for each 16 columns of the output. Its eight warps have a part of K each. A warp has `Ahead`
// chunks on their way in registers; as soon as one is multiplied, the chunk `Ahead` behind it is asked for.
// PDL: the first chunks of w are on their way before the block waits for the kernel that makes x,
// and as many more go to the L2 cache.
// Shared memory: the accumulators of the warps, which are added in order.
template <class T, int Groups, bool Swiglu>
__global__ void __launch_bounds__(kSplitThreads, 2)
    few_rows_kernel(const __grid_constant__ FewRowsTask<T> task) {
  constexpr int Halves = Swiglu ? 2 : 1, Ahead = 8 / (Halves * Groups);
  __shared__ float partial[kSplit][Halves][8 * Groups][kColumns + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = lane / 4, at = lane % 4 * 8;
  const int column0 = blockIdx.x * kColumns;
  const int begin = warp * task.chunks / kSplit, end = (warp + 1) * task.chunks / kSplit;
  griddep_launch();

  // Rows beyond the last are read as the last; nobody looks at their results.
  const T *w[Halves][2], *x[Groups];
#pragma unroll
  for (int h = 0; h < Halves; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      w[h][i] = task.w + (h * task.n + min(column0 + own + 8 * i, task.n - 1)) * task.w_stride + at;
#pragma unroll
  for (int g = 0; g < Groups; ++g) x[g] = task.x + min(8 * g + own, task.rows - 1) * task.x_stride + at;

  uint4 weights[Ahead][Halves][2], inputs[Ahead][Groups];
  const auto read_weights = [&](int a, int chunk) {
    const int64_t k = static_cast<int64_t>(chunk) * kChunk;
#pragma unroll
    for (int h = 0; h < Halves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) weights[a][h][i] = read_if<true>(chunk < end, w[h][i] + k);
  };
  const auto read_inputs = [&](int a, int chunk) {
    const int64_t k = static_cast<int64_t>(chunk) * kChunk;
#pragma unroll
    for (int g = 0; g < Groups; ++g) inputs[a][g] = read_if<false>(chunk < end, x[g] + k);
  };

  if (task.prefetch) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) read_weights(a, begin + a);
    const int first = begin + Ahead, last = min(first + Ahead, end);
    if (lane < Halves * kColumns && first < last) {
      const int64_t row = lane / kColumns * task.n + min(column0 + lane % kColumns, task.n - 1);
      prefetch_bulk(task.w + row * task.w_stride + static_cast<int64_t>(first) * kChunk,
                    (last - first) * kChunk * static_cast<int>(sizeof(T)));
    }
  }
  griddep_wait();
  if (!task.prefetch) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) read_weights(a, begin + a);
  }
#pragma unroll
  for (int a = 0; a < Ahead; ++a) read_inputs(a, begin + a);

  float acc[Halves][Groups][4] = {};
  for (int chunk = begin; chunk < end; chunk += Ahead) {
#pragma unroll
    for (int a = 0; a < Ahead; ++a) {
#pragma unroll
      for (int h = 0; h < Halves; ++h)
#pragma unroll
        for (int g = 0; g < Groups; ++g)
          multiply<T>(acc[h][g], weights[a][h][0], weights[a][h][1], inputs[a][g]);
      read_weights(a, chunk + Ahead + a);
      read_inputs(a, chunk + Ahead + a);
    }
  }
#pragma unroll
  for (int h = 0; h < Halves; ++h)
#pragma unroll
    for (int g = 0; g < Groups; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        partial[warp][h][8 * g + lane % 4 * 2 + i % 2][own + 8 * (i / 2)] = acc[h][g][i];
  __syncthreads();

  for (int i = threadIdx.x; i < 8 * Groups * kColumns; i += kSplitThreads) {
    const int row = i / kColumns, column = column0 + i % kColumns;
    if (row >= task.rows || column >= task.n) continue;
    T value[Halves];
#pragma unroll
    for (int h = 0; h < Halves; ++h) {
      float sum = 0;
#pragma unroll
      for (int s = 0; s < kSplit; ++s) sum += partial[s][h][row][i % kColumns];
      if (task.bias) sum += widen(task.bias[h * task.n + column]);
      value[h] = narrow<T>(sum);
      task.y[row * task.y_stride + h * task.n + column] = value[h];
    }
    if constexpr (Swiglu) {
      const float gate = widen(value[0]);
      task.active[row * task.active_stride + column] =
          narrow<T>(gate * sigmoid<true>(gate) * widen(value[1]));
    }
  }
}

// Rows that begin where 16 bytes are read at once.
bool vectors(const Tensor& rows) {
  return rows.stride(1) == 1 && (rows.size(0) == 1 || rows.stride(0) % 8 == 0) && aligned(rows.raw());
}

// x [rows, k] · wᵀ [n, k] is for this kernel.
bool fits(const Tensor& x, const Tensor& w, const Tensor& y) {
  return (x.dtype() == DType::BF16 || x.dtype() == DType::F16) && w.dtype() == x.dtype() &&
         y.dtype() == x.dtype() && y.stride(1) == 1 && y.numel() > 0 && x.size(0) <= kFewRows &&
         x.size(1) > 0 && x.size(1) % kChunk == 0 && x.size(1) < int64_t{1} << 30 &&
         w.size(0) < int64_t{1} << 30 && vectors(x) && vectors(w);
}

template <class T>
FewRowsTask<T> task_of(const Tensor& x, const Tensor& w, const Tensor& y, bool prefetch) {
  FewRowsTask<T> task{};
  task.x = pointer<T>(x);
  task.w = pointer<T>(w);
  task.y = pointer<T>(y);
  task.x_stride = x.stride(0);
  task.w_stride = w.stride(0);
  task.y_stride = y.stride(0);
  task.rows = static_cast<int>(x.size(0));
  task.n = static_cast<int>(w.size(0));
  task.chunks = static_cast<int>(x.size(1) / kChunk);
  task.prefetch = prefetch;
  return task;
}

template <bool Swiglu, class T>
void launch(const KernelContext& ctx, const FewRowsTask<T>& task) {
  const Launch by = step_launch(ctx, "gemm", blocks_for(task.n, kColumns), kSplitThreads);
  if (task.rows <= 8)
    by.run(few_rows_kernel<T, 1, Swiglu>, task);
  else
    by.run(few_rows_kernel<T, 2, Swiglu>, task);
}

template <class F>
void dispatch_narrow(DType dtype, F&& f) {
  if (dtype == DType::BF16)
    f(Type<bfloat>{});
  else
    f(Type<half>{});
}

}  // namespace

bool few_rows_gemm(const KernelContext& ctx, const GemmArgs& args) {
  if (args.c.rank() != 2 || args.alpha != 1 || args.beta != 0 || args.a_scale || args.b_scale) return false;
  const Tensor w = args.b.detach().transpose(0, 1);
  if (!fits(args.a, w, args.c) || w.bytes() > kLongRead) return false;
  if (args.bias && (args.bias.dtype() != args.a.dtype() || args.bias.stride(0) != 1)) return false;
  dispatch_narrow(args.a.dtype(), [&]<class T>(Type<T>) {
    FewRowsTask<T> task = task_of<T>(args.a, w, args.c, ctx.pdl && args.static_b);
    task.bias = pointer<T>(args.bias);
    launch<false>(ctx, task);
  });
  return true;
}

bool few_rows_swiglu(const KernelContext& ctx, const GemmSwigluArgs& args) {
  if (!fits(args.a, args.b, args.x) || args.y.dtype() != args.a.dtype() || args.y.stride(1) != 1)
    return false;
  dispatch_narrow(args.a.dtype(), [&]<class T>(Type<T>) {
    FewRowsTask<T> task = task_of<T>(args.a, args.b, args.x, ctx.pdl && args.static_b);
    task.n /= 2;
    task.active = pointer<T>(args.y);
    task.active_stride = args.y.stride(0);
    launch<true>(ctx, task);
  });
  return true;
}

}  // namespace megatron::cuda
