#include "megatron/device/cuda_runtime.h"

#include <cstring>

#include "megatron/base/counted.h"
#include "megatron/device/cuda/cuda_runtime_impl.h"

namespace megatron {
namespace {

const char* advice(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "use a smaller micro-batch, recompute activations, or shard over more ranks";
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
      return "install a driver for this CUDA version, or use --device cpu";
    case cudaErrorNoKernelImageForDevice:
      return "this build has no code for the GPU: build on it, or set CMAKE_CUDA_ARCHITECTURES";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
      return "a kernel before this point is at fault: run under compute-sanitizer, or with "
             "CUDA_LAUNCH_BLOCKING=1 to see which";
    default:
      return "see nvidia-smi and dmesg for the state of the GPU";
  }
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

void check_cuda(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // a refused call must not be reported again by the next kernel
  fail("CUDA: {} failed: {} ({}); {}", doing, cudaGetErrorString(error), cudaGetErrorName(error),
       advice(error));
}

CudaRuntime::CudaRuntime(int index) : index_(index) {
  bind();
  auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, which, index), "reading the GPU's properties");
    return value;
  };
  properties_.sm_count = attribute(cudaDevAttrMultiProcessorCount);
  properties_.shared_memory_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  properties_.compute_capability =
      10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
}

// As release_memory: nothing is left to report here.
CudaRuntime::~CudaRuntime() {
  cudaSetDevice(index_);
  for (Staging& s : staging_) {
    cudaEventSynchronize(s.read);
    cudaEventDestroy(s.read);
    cudaFreeHost(s.data);
  }
}

void* CudaRuntime::acquire_memory(size_t bytes) {
  bind();
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    fail("out of GPU memory on cuda:{}: {:.1f} MiB were asked for, {:.1f} of {:.1f} MiB are free; {}", index_,
         bytes / 1048576.0, free_bytes / 1048576.0, total / 1048576.0, advice(error));
  }
  check_cuda(error, "allocating GPU memory");
  return data;
}

// Runs from destructors, also after a fault that made every later call fail: nothing is left to report then.
void CudaRuntime::release_memory(void* data, size_t) {
  cudaSetDevice(index_);
  cudaFree(data);
}

void* CudaRuntime::create_stream(int priority) {
  bind();
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "creating a stream");
  return stream;
}

void CudaRuntime::destroy_stream(void* stream) { cudaStreamDestroy(stream_of(stream)); }

void CudaRuntime::synchronize(void* stream) {
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  check_cuda(cudaStreamSynchronize(stream_of(stream)), "waiting for a stream");
}

void* CudaRuntime::create_event() {
  bind();
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  return event;
}

void CudaRuntime::destroy_event(void* event) { cudaEventDestroy(event_of(event)); }

void CudaRuntime::record_event(void* event, void* stream) {
  check_cuda(cudaEventRecord(event_of(event), stream_of(stream)), "recording an event");
}

void CudaRuntime::wait_event(void* event, void* stream) {
  check_cuda(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "making a stream wait");
}

bool CudaRuntime::event_done(void* event) {
  cudaError_t error = cudaEventQuery(event_of(event));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check_cuda(error, "asking for an event");
  return true;
}

void* CudaRuntime::create_timed_event() {
  bind();
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "creating an event");
  return event;
}

double CudaRuntime::seconds_between(void* first, void* second) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, event_of(first), event_of(second)),
             "reading the time between events");
  return milliseconds * 1e-3;
}

// The smallest free piece that is large enough, or a new one. The mutex is held.
CudaRuntime::Staging& CudaRuntime::staging(size_t bytes) {
  Staging* best = nullptr;
  for (Staging& s : staging_)
    if (s.bytes >= bytes && (!best || s.bytes < best->bytes) && event_done(s.read)) best = &s;
  if (best) return *best;
  Staging fresh;
  fresh.bytes = (bytes + 65535) / 65536 * 65536;
  check_cuda(cudaMallocHost(&fresh.data, fresh.bytes), "allocating pinned host memory");
  check_cuda(cudaEventCreateWithFlags(&fresh.read, cudaEventDisableTiming), "creating an event");
  staging_.push_back(fresh);
  return staging_.back();
}

// Through pinned memory, so that the call does not wait for what is on the stream. What is large is copied as
// it is, and waits: loading a checkpoint, not a step.
void CudaRuntime::copy_from_host(void* target, const void* source, size_t bytes, void* stream) {
  bind();
  cudaStreamCaptureStatus graph = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream_of(stream), &graph), "asking a stream");
  require(graph == cudaStreamCaptureStatusNone,
          "copying to the GPU: what comes from the host cannot be captured; leave --cuda-graph-impl out");
  constexpr size_t most = size_t{64} << 20;
  if (bytes > most) {
    check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream_of(stream)),
               "copying to the GPU");
    synchronize(stream);
    return;
  }
  std::lock_guard lock(staging_mutex_);
  Staging& s = staging(bytes);
  std::memcpy(s.data, source, bytes);
  check_cuda(cudaMemcpyAsync(target, s.data, bytes, cudaMemcpyHostToDevice, stream_of(stream)),
             "copying to the GPU");
  check_cuda(cudaEventRecord(s.read, stream_of(stream)), "recording an event");
}

void CudaRuntime::copy_to_host(void* target, const void* source, size_t bytes, void* stream) {
  bind();
  // The driver would wait within the copy, where it keeps other threads out: one that watches over NCCL and
  // could end what is waited for.
  check_cuda(cudaStreamSynchronize(stream_of(stream)), "waiting for a stream");
  check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, stream_of(stream)),
             "copying from the GPU");
  synchronize(stream);
}

void* CudaRuntime::acquire_host_memory(size_t bytes) {
  bind();
  void* data = nullptr;
  check_cuda(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "allocating pinned host memory");
  return data;
}

// Like release_memory: runs from destructors.
void CudaRuntime::release_host_memory(void* data, size_t) {
  cudaSetDevice(index_);
  cudaFreeHost(data);
}

void CudaRuntime::copy_from_host_async(void* target, const void* source, size_t bytes, void* stream) {
  bind();
  check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream_of(stream)),
             "copying to the GPU");
}

void CudaRuntime::copy_to_host_async(void* target, const void* source, size_t bytes, void* stream) {
  bind();
  check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, stream_of(stream)),
             "copying from the GPU");
}

// Relaxed: memory that is missing may be taken from the device meanwhile.
void CudaRuntime::begin_capture(void* stream) {
  bind();
  check_cuda(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeRelaxed),
             "beginning a CUDA graph");
}

void* CudaRuntime::end_capture(void* stream) {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream_of(stream), &graph), "ending a CUDA graph");
  cudaGraphExec_t runnable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&runnable, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(error, "making a CUDA graph runnable");
  return runnable;
}

void CudaRuntime::abandon_capture(void* stream) noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_of(stream), &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
  cudaGetLastError();
}

void CudaRuntime::launch_graph(void* graph, void* stream) {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "running a CUDA graph");
}

void CudaRuntime::destroy_graph(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

int count_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::shared_ptr<DeviceRuntime> make_cuda_runtime(int index) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "looking for GPUs");
  if (index < 0 || index >= count)
    throw ConfigError(fmt::format("cuda:{} does not exist: this machine has {}; use cuda:0 to cuda:{}", index,
                                  counted(count, "GPU"), count - 1));
  return std::make_shared<CudaRuntime>(index);
}

}  // namespace megatron
