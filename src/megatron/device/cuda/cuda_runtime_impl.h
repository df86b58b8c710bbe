#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/device/runtime.h"

namespace megatron {

// Throws an Error with what was being done, CUDA's own words and what to do about it.
void check_cuda(cudaError_t error, const char* doing);

struct CudaProperties {
  int sm_count = 0;
  int shared_memory_per_block = 0;  // with the opt-in
  int compute_capability = 0;       // 90 for Hopper
};

// One GPU as one rank sees it. Library state of the kernels (handles, plans, tuned choices) hangs on it, so
// that it lives as long as the device is used and nothing of it is global.
class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int index);
  ~CudaRuntime() override;

  Device device() const override { return {DeviceType::Cuda, static_cast<int8_t>(index_)}; }
  const CudaProperties& properties() const { return properties_; }
  // CUDA's current device belongs to the thread, and ranks share threads: set before every use.
  void bind() const { check_cuda(cudaSetDevice(index_), "choosing the GPU"); }

  void* acquire_memory(size_t bytes) override;
  void release_memory(void* data, size_t bytes) override;
  void* create_stream(int priority) override;
  void destroy_stream(void* stream) override;
  void synchronize(void* stream) override;
  void* create_event() override;
  void destroy_event(void* event) override;
  void record_event(void* event, void* stream) override;
  void wait_event(void* event, void* stream) override;
  bool event_done(void* event) override;
  void* create_timed_event() override;
  double seconds_between(void* first, void* second) override;
  void copy_from_host(void* target, const void* source, size_t bytes, void* stream) override;
  void copy_to_host(void* target, const void* source, size_t bytes, void* stream) override;
  void* acquire_host_memory(size_t bytes) override;
  void release_host_memory(void* data, size_t bytes) override;
  void copy_from_host_async(void* target, const void* source, size_t bytes, void* stream) override;
  void copy_to_host_async(void* target, const void* source, size_t bytes, void* stream) override;

  void begin_capture(void* stream) override;
  void* end_capture(void* stream) override;
  void abandon_capture(void* stream) noexcept override;
  void launch_graph(void* graph, void* stream) override;
  void destroy_graph(void* graph) override;

  uint64_t host_waits() const override { return host_waits_.load(std::memory_order_relaxed); }

  // The kernels' own state, made at the first call by `make(*this)`.
  template <class State>
  State& kernel_state(std::shared_ptr<State> (*make)(CudaRuntime&)) {
    std::call_once(kernel_state_made_, [&] { kernel_state_ = make(*this); });
    return *static_cast<State*>(kernel_state_.get());
  }

 private:
  // Pinned host memory on its way to the device; free again when the event has passed.
  struct Staging {
    void* data = nullptr;
    size_t bytes = 0;
    cudaEvent_t read = nullptr;
  };
  Staging& staging(size_t bytes);

  int index_;
  CudaProperties properties_;
  std::atomic<uint64_t> host_waits_{0};
  std::mutex staging_mutex_;
  std::vector<Staging> staging_;
  std::once_flag kernel_state_made_;
  std::shared_ptr<void> kernel_state_;
};

}  // namespace megatron
