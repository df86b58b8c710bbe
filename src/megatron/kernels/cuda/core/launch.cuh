#pragma once

#include <algorithm>

#include "megatron/device/cuda/cuda_runtime_impl.h"
#include "megatron/kernels/cuda/core/types.cuh"
#include "megatron/kernels/cuda/families.h"

namespace megatron::cuda {

inline CudaRuntime& runtime_of(const KernelContext& ctx) {
  return static_cast<CudaRuntime&>(ctx.stream.runtime());
}

// The stream of a launch; makes its GPU current.
inline cudaStream_t stream_of(const KernelContext& ctx) {
  runtime_of(ctx).bind();
  return static_cast<cudaStream_t>(ctx.stream.native());
}

inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

template <class T>
T* pointer(const Tensor& tensor) {
  return tensor.defined() && tensor.numel() ? static_cast<T*>(tensor.raw()) : nullptr;
}

inline AnyFloat any_float(const Tensor& tensor) { return {pointer<void>(tensor), tensor.dtype()}; }

// Scratch memory for one kernel call. Freed when the call returns: later work on the rank's stream may then
// have it, and runs after the kernels that were launched here.
class Scratch {
 public:
  Scratch(const KernelContext& ctx, size_t bytes)
      : allocator_(ctx.workspace), bytes_(bytes), data_(allocator_.allocate(bytes, MemoryTag::Workspace)) {}
  ~Scratch() { allocator_.deallocate(data_, bytes_, MemoryTag::Workspace); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  T* as(size_t byte_offset = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + byte_offset);
  }

 private:
  Allocator& allocator_;
  size_t bytes_;
  void* data_;
};

inline unsigned blocks_for(int64_t work, int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

inline bool aligned(const void* data, size_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// How a kernel is launched. With PDL it may start while the previous one still runs: call griddep_wait()
// before reading the previous output, or writing at all. The previous kernel may call griddep_launch() once
// all its blocks have started.
struct Launch {
  const char* name;
  dim3 grid, block;
  cudaStream_t stream;
  size_t shared_bytes = 0;
  bool pdl = false;

  template <class... Parameters, class... Args>
  void run(void (*kernel)(Parameters...), Args... args) const {
    cudaLaunchAttribute by_pdl{};
    by_pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    by_pdl.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &by_pdl;
    config.numAttrs = pdl ? 1 : 0;
    check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(args)...), name);
  }
};

template <class... Parameters, class... Args>
void launch_pdl(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                Args... args) {
  Launch{.name = name, .grid = grid, .block = block, .stream = stream, .pdl = true}.run(kernel, args...);
}

// The launch of a kernel of a decoder's step: by PDL where the context asks for it. Every thread of the
// kernel calls griddep_wait() before it returns, and before it reads what a step writes.
inline Launch step_launch(const KernelContext& ctx, const char* name, dim3 grid, dim3 block,
                          size_t shared_bytes = 0) {
  return {name, grid, block, stream_of(ctx), shared_bytes, ctx.pdl};
}

__device__ __forceinline__ void griddep_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void griddep_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Lets the next kernel start as soon as all blocks of this one have, then waits for the previous ones. Every
// kernel of a chain waits, so that the end of one is the end of all before it.
__device__ __forceinline__ void griddep_overlap() {
  griddep_launch();
  griddep_wait();
}

inline constexpr int kThreads = 256;

// op.run<W>(i) treats elements i … i + W − 1. W is the operator's vector width where its pointers allow it.
template <int W, class Op>
__global__ void __launch_bounds__(kThreads) for_each_kernel(int64_t n, Op op) {
  griddep_overlap();
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
  if (i + W <= n) {
    op.template run<W>(i);
  } else {
    for (; i < n; ++i) op.template run<1>(i);
  }
}

template <int W, class Op>
void for_each(const KernelContext& ctx, const char* name, int64_t n, bool vector, const Op& op) {
  if (n == 0) return;
  if (vector && W > 1)
    step_launch(ctx, name, blocks_for(n, int64_t{kThreads} * W), kThreads).run(for_each_kernel<W, Op>, n, op);
  else
    step_launch(ctx, name, blocks_for(n, kThreads), kThreads).run(for_each_kernel<1, Op>, n, op);
}

template <class T>
struct Sum {
  __device__ T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Maximum {
  __device__ T operator()(T a, T b) const { return a > b ? a : b; }
};

// n / by of numbers that are not negative. Divisions of 64 bits cost more than the rest of a small kernel.
__device__ __forceinline__ int64_t divide(int64_t n, int64_t by) {
  return (n | by) >> 32 ? n / by : static_cast<uint32_t>(n) / static_cast<uint32_t>(by);
}

// Divides numbers below 2³¹ by one that is known at the launch: a multiplication and a shift.
struct Divisor {
  uint32_t value, magic, shift = 0;

  explicit Divisor(int64_t by) : value(static_cast<uint32_t>(by)) {
    while (uint64_t{1} << shift < value) ++shift;
    magic = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - value) / value + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

// Butterfly reduction: every lane gets the same result, in a fixed order.
template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_reduce(value, Sum<T>{});
}

// Over the whole block, of at most 32 full warps; every thread gets the result. Safe to call repeatedly.
template <class T, class Op>
__device__ T block_reduce(T value, Op op, T identity) {
  __shared__ T partial[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = warp_reduce(value, op);
  __syncthreads();
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? partial[lane] : identity, op);
}
template <class T>
__device__ T block_sum(T value) {
  return block_reduce(value, Sum<T>{}, T(0));
}

// Threads for a block that treats one row of n elements, W at a time.
inline int row_threads(int64_t n, int width) {
  int64_t vectors = (n + width - 1) / width;
  int threads = 32;
  while (threads < 1024 && threads * 2 <= vectors) threads *= 2;
  return threads;
}

}  // namespace megatron::cuda
