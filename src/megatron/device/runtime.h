#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "megatron/device/device.h"

namespace megatron {

// What a kind of device can do for the layers above: raw memory, streams, events, copies. One implementation
// per kind; the CPU runs everything inline, so streams and events cost nothing there and every test runs
// without a GPU.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual Device device() const = 0;

  virtual void* acquire_memory(size_t bytes) = 0;  // throws an Error that says how much was asked and is free
  virtual void release_memory(void* data, size_t bytes) = 0;

  virtual void* create_stream(int /*priority*/) { return nullptr; }
  virtual void destroy_stream(void*) {}
  virtual void synchronize(void* /*stream*/) {}
  virtual void* create_event() { return nullptr; }
  virtual void destroy_event(void*) {}
  virtual void record_event(void* /*event*/, void* /*stream*/) {}
  virtual void wait_event(void* /*event*/, void* /*stream*/) {}  // the stream waits, not the host
  virtual bool event_done(void* /*event*/) { return true; }
  virtual void* create_timed_event() { return nullptr; }
  virtual double seconds_between(void* /*first*/, void* /*second*/) { return 0; }  // both done, both timed

  // Between this device and the host, contiguous bytes, ordered on `stream`. Either is complete on return as
  // far as the host memory is concerned.
  virtual void copy_from_host(void* target, const void* source, size_t bytes, void* stream) = 0;
  virtual void copy_to_host(void* target, const void* source, size_t bytes, void* stream) = 0;

  // Host memory that copies can run to and from while the host goes on; the copies are done when the stream
  // is.
  virtual void* acquire_host_memory(size_t bytes) { return acquire_memory(bytes); }
  virtual void release_host_memory(void* data, size_t bytes) { release_memory(data, bytes); }
  virtual void copy_from_host_async(void* target, const void* source, size_t bytes, void* stream) {
    copy_from_host(target, source, bytes, stream);
  }
  virtual void copy_to_host_async(void* target, const void* source, size_t bytes, void* stream) {
    copy_to_host(target, source, bytes, stream);
  }

  // Work that is put on a stream between the two is not run but captured, to be run as often as wanted. Until
  // then nothing may wait for the stream.
  virtual void begin_capture(void* /*stream*/);
  virtual void* end_capture(void* /*stream*/) { return nullptr; }
  virtual void abandon_capture(void* /*stream*/) noexcept {}  // instead, where something went wrong
  virtual void launch_graph(void* /*graph*/, void* /*stream*/) {}
  virtual void destroy_graph(void*) {}

  // How often the host has waited for the device so far.
  virtual uint64_t host_waits() const { return 0; }
};

// The runtime of a device; for CUDA an Error that says why it cannot be used (not built in, no driver, no
// such GPU).
std::shared_ptr<DeviceRuntime> make_runtime(Device device);
int cuda_device_count();  // 0 where CUDA is not built in, or where no driver or GPU is usable

}  // namespace megatron
