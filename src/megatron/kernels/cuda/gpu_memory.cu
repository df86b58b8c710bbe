#include "megatron/kernels/gpu_memory.h"

#include "megatron/device/cuda/cuda_runtime_impl.h"
#include "megatron/kernels/cuda/core/types.cuh"
#include "megatron/kernels/limits/gpu.h"

namespace megatron {
namespace {

using namespace cuda;

constexpr int kMaxRanks = limits::kSharingRanks;
constexpr int kThreads = 256;

// As the CPU adds: integers in their own type, bf16 and fp16 in float.
template <class T>
using Accumulated = std::conditional_t<std::is_integral_v<T>, T, Compute<T>>;

template <class T>
struct Pointers {
  int inputs, outputs;
  const T* in[kMaxRanks];
  T* out[kMaxRanks];
};

template <class T>
__device__ Accumulated<T> widened(T value) {
  if constexpr (std::is_integral_v<T>)
    return value;
  else
    return widen(value);
}

template <class T>
__device__ T narrowed(Accumulated<T> value) {
  if constexpr (std::is_integral_v<T>)
    return value;
  else
    return narrow<T>(value);
}

// b != b: a NaN of any rank reaches all.
template <class A>
__device__ A combined(Combination kind, A a, A b) {
  switch (kind) {
    case Combination::Maximum:
      return a < b || b != b ? b : a;
    case Combination::Minimum:
      return b < a || b != b ? b : a;
    default:
      return a + b;
  }
}

template <class T, int W>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(Combination kind, int64_t n, const __grid_constant__ Pointers<T> p) {
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
  if (i >= n) return;
  int count = n - i < W ? static_cast<int>(n - i) : W;
  Accumulated<T> sum[W];
  T raw[W];
  auto read = [&](const T* from) {
    if (count == W)
      *reinterpret_cast<Vec<T, W>*>(raw) = *reinterpret_cast<const Vec<T, W>*>(from + i);
    else
      for (int j = 0; j < count; ++j) raw[j] = from[i + j];
  };
  for (int j = 0; j < W; ++j) raw[j] = T{};
  read(p.in[0]);
#pragma unroll
  for (int j = 0; j < W; ++j) sum[j] = widened(raw[j]);
  for (int r = 1; r < p.inputs; ++r) {
    read(p.in[r]);
#pragma unroll
    for (int j = 0; j < W; ++j) sum[j] = combined(kind, sum[j], widened(raw[j]));
  }
#pragma unroll
  for (int j = 0; j < W; ++j) {
    if (kind == Combination::Average) sum[j] /= static_cast<Accumulated<T>>(p.inputs);
    raw[j] = narrowed<T>(sum[j]);
  }
  for (int r = 0; r < p.outputs; ++r)
    if (count == W)
      *reinterpret_cast<Vec<T, W>*>(p.out[r] + i) = *reinterpret_cast<const Vec<T, W>*>(raw);
    else
      for (int j = 0; j < count; ++j) p.out[r][i + j] = raw[j];
}

template <class T>
void combine(cudaStream_t stream, const CombineArgs& args) {
  Pointers<T> p{static_cast<int>(args.inputs.size()), static_cast<int>(args.outputs.size()), {}, {}};
  uintptr_t bits = 0;
  for (int r = 0; r < p.inputs; ++r) {
    p.in[r] = static_cast<const T*>(args.inputs[static_cast<size_t>(r)]);
    bits |= reinterpret_cast<uintptr_t>(p.in[r]);
  }
  for (int r = 0; r < p.outputs; ++r) {
    p.out[r] = static_cast<T*>(args.outputs[static_cast<size_t>(r)]);
    bits |= reinterpret_cast<uintptr_t>(p.out[r]);
  }
  auto blocks = [&](int width) {
    return static_cast<unsigned>((args.n + int64_t{kThreads} * width - 1) / (int64_t{kThreads} * width));
  };
  constexpr int W = kVector<T>;
  if (bits % 16 == 0)
    combine_kernel<T, W><<<blocks(W), kThreads, 0, stream>>>(args.kind, args.n, p);
  else
    combine_kernel<T, 1><<<blocks(1), kThreads, 0, stream>>>(args.kind, args.n, p);
  check_cuda(cudaGetLastError(), "reducing over ranks");
}

cudaStream_t native(const Stream& stream) {
  static_cast<CudaRuntime&>(stream.runtime()).bind();
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace

void copy_on_gpu(const Stream& stream, void* target, const void* source, size_t bytes) {
  // Default: the pointers say on which GPU they are.
  check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, native(stream)),
             "copying between ranks");
}

void combine_on_gpu(const Stream& stream, const CombineArgs& args) {
  require(args.inputs.size() <= kMaxRanks, "reducing over ranks: {} of them share GPUs, {} at most may",
          args.inputs.size(), kMaxRanks);
  if (args.n == 0) return;
  cudaStream_t queue = native(stream);
  switch (args.dtype) {
    case DType::I64:
      return combine<int64_t>(queue, args);
    case DType::I32:
      return combine<int32_t>(queue, args);
    case DType::U8:
      return combine<uint8_t>(queue, args);
    default:
      return dispatch_float("reduce", args.dtype, [&]<class T>(Type<T>) { combine<T>(queue, args); });
  }
}

void let_gpus_reach_each_other(std::span<const int> gpus) {
  for (int from : gpus)
    for (int to : gpus) {
      if (from == to) continue;
      int can = 0;
      check_cuda(cudaDeviceCanAccessPeer(&can, from, to), "asking whether GPUs reach each other");
      require(can != 0,
              "cuda:{} cannot reach the memory of cuda:{}: use one rank per GPU, so that NCCL connects them, "
              "or ranks on one GPU alone",
              from, to);
      check_cuda(cudaSetDevice(from), "choosing the GPU");
      cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError();
      else
        check_cuda(error, "letting GPUs reach each other");
    }
}

}  // namespace megatron
