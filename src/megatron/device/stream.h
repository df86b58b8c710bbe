#pragma once

#include <memory>
#include <utility>

#include "megatron/device/runtime.h"

namespace megatron {

// An ordered queue of work on a device. Move-only.
class Stream {
 public:
  explicit Stream(std::shared_ptr<DeviceRuntime> runtime, int priority = 0)
      : runtime_(std::move(runtime)), native_(runtime_->create_stream(priority)) {}
  Stream(Stream&& other) noexcept
      : runtime_(std::move(other.runtime_)), native_(std::exchange(other.native_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(native_, other.native_);
    return *this;
  }
  ~Stream() {
    if (runtime_ && native_) runtime_->destroy_stream(native_);
  }

  DeviceRuntime& runtime() const { return *runtime_; }
  void* native() const { return native_; }
  void synchronize() const { runtime_->synchronize(native_); }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  void* native_ = nullptr;
};

// A point in a stream that other streams, or the host, can wait for. Move-only.
class Event {
 public:
  explicit Event(std::shared_ptr<DeviceRuntime> runtime, bool timed = false)
      : runtime_(std::move(runtime)),
        native_(timed ? runtime_->create_timed_event() : runtime_->create_event()) {}
  Event(Event&& other) noexcept
      : runtime_(std::move(other.runtime_)), native_(std::exchange(other.native_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(native_, other.native_);
    return *this;
  }
  ~Event() {
    if (runtime_ && native_) runtime_->destroy_event(native_);
  }

  void record(const Stream& stream) { runtime_->record_event(native_, stream.native()); }
  void wait(const Stream& stream) const { runtime_->wait_event(native_, stream.native()); }
  bool done() const { return runtime_->event_done(native_); }
  double seconds_since(const Event& earlier) const {  // both timed, both done
    return runtime_->seconds_between(earlier.native_, native_);
  }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  void* native_ = nullptr;
};

}  // namespace megatron
