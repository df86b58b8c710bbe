#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "megatron/comm/process_group.h"

namespace megatron {

class NcclCapture;

bool failed(ncclResult_t result);  // "in progress" has not
void check_nccl(ncclResult_t result, const char* doing);

// What a rank called, as its neighbour is told: NCCL itself would compute something, or wait.
struct CalledOp {
  uint64_t signature = 0;
  char text[120] = {};
};

// An operation that is queued on a GPU, or about to be.
struct NcclOp {
  NcclOp(std::shared_ptr<GroupBackend> control, std::shared_ptr<DeviceRuntime> runtime, uint64_t sequence,
         const CommRequest& request)
      : control(std::move(control)), sequence(sequence), call(request), finished(std::move(runtime)) {}
  ~NcclOp() {
    if (comparison) comparison->withdraw();
  }

  std::shared_ptr<GroupBackend> control;  // the same group, for its names and the flight record
  uint64_t sequence;
  CommCall call;
  Event finished;
  std::atomic<bool> queued = false;  // `finished` tells something
  bool ended = false;                // as it told; guarded by the watchdog
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  uint64_t entry = 0;

  // Tells the next rank of the group what was called here, and hears of the one before.
  void compare(GroupBackend& calls, const CommRequest& request);
  // "" where both called the same, or nothing is known yet.
  std::string mismatch();
  std::unique_ptr<PendingOp> comparison;  // under way
  CalledOp own, other;
};

// Device memory that no allocator knows of.
struct GpuBytes {
  GpuBytes(std::shared_ptr<DeviceRuntime> runtime, size_t size)
      : runtime(std::move(runtime)),
        size(size),
        data(static_cast<char*>(this->runtime->acquire_memory(size))) {}
  ~GpuBytes() { runtime->release_memory(data, size); }
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;

  std::shared_ptr<DeviceRuntime> runtime;
  size_t size;
  char* data;
};

// Others wait for what a rank sends, so its blocks come before those of kernels that only this rank needs.
inline constexpr int kFirst = -5;  // CUDA takes its own highest priority for what is beyond it

// What the operations of one group need on a GPU. The watchdog keeps it until its communicator has ended:
// NCCL's own threads use the stream.
struct NcclCommunicator {
  explicit NcclCommunicator(const std::shared_ptr<DeviceRuntime>& runtime) : stream(runtime, kFirst) {}

  ncclComm_t comm = nullptr;
  Stream stream;
  std::optional<GpuBytes> handshakes;
};

// Makes one rank's communicators and watches over its operations: one that does not end in time, a fault that
// NCCL found, or a world that was stopped by another rank ends all of the communicators, so that no kernel
// and no host thread waits for ever. Looks a few times a second, and sleeps while nothing is under way.
//
// Two threads: while a kernel waits for ever, whoever frees memory holds a lock of the driver, and so may the
// one that asks which operations have ended. The other calls nothing of CUDA before all communicators know
// that they end.
//
// Communicators are non-blocking: NCCL returns while it still connects, and the rank can be woken. Ending one
// takes all ranks of a node, so they live as long as the watchdog and end in the order of their making, which
// is the same on every rank.
class NcclWatchdog {
 public:
  NcclWatchdog(std::shared_ptr<GroupBackend> world, std::chrono::milliseconds timeout);
  ~NcclWatchdog();

  // All ranks of the group, on their GPUs.
  std::shared_ptr<NcclCommunicator> connect(const ProcessGroup& control,
                                            const std::shared_ptr<DeviceRuntime>& runtime);
  void add(std::shared_ptr<NcclOp> op);
  void set_timeout(std::chrono::milliseconds timeout) { patience_ = timeout; }  // of operations from now on
  // Runs `fn`, which calls NCCL for an operation that was added, while no communicator is ended; then waits
  // until NCCL has done what it said it would.
  void call(NcclCommunicator& communicator, const char* doing, const std::function<ncclResult_t()>& fn);
  // Runs `fn`, which queues operations that NCCL has prepared, unless the world was stopped.
  void unless_stopped(const std::function<void()>& fn);
  // Throws CommAborted where the world was stopped, once NCCL has let go of what the caller owns. So do the
  // others.
  void require_running();

  // While a CUDA graph has operations in it, NCCL cannot end its communicators: a rank that has to leave
  // drops its capture then, and does not wait for NCCL.
  void hold_capture();
  void drop_capture();
  // What operations are added to instead of being carried out; only the rank itself asks.
  NcclCapture* capture = nullptr;

 private:
  using Clock = std::chrono::steady_clock;
  void watchdog();
  void find_ended();
  std::string problem_locked(std::unique_lock<std::mutex>& lock);
  std::string tell_first(std::unique_lock<std::mutex>& lock, const std::string& what);
  std::string tell(NcclOp& op, const std::string& what) const;
  void stop(std::unique_lock<std::mutex>& lock);
  void settle(ncclComm_t comm, const std::string& doing, std::chrono::milliseconds patience);
  [[noreturn]] void leave(const std::string& reason);
  bool running() { return world_->abort_reason().empty(); }
  std::vector<ncclComm_t> comms() const;
  void finish();

  std::shared_ptr<GroupBackend> world_;
  std::chrono::milliseconds timeout_;                // of connecting and ending
  std::atomic<std::chrono::milliseconds> patience_;  // with an operation
  std::timed_mutex calls_;  // held by the rank within NCCL, and by who ends communicators
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<std::shared_ptr<NcclOp>> under_way_;
  std::vector<std::shared_ptr<NcclCommunicator>> channels_;  // in the order of their making
  std::string trouble_;                                      // of the GPU
  int captures_ = 0;
  bool stopped_ = false, closing_ = false;
  bool ended_ = false;  // all communicators, after the world was stopped
  std::thread watching_, finding_;
};

}  // namespace megatron
