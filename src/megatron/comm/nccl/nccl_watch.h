#pragma once

#include <nccl.h>

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "megatron/comm/process_group.h"

namespace megatron {

void check_nccl(ncclResult_t result, const char* doing);

// A communicator of one rank. Shared by the group and the operations that run in it.
struct NcclComm {
  ncclComm_t native = nullptr;
};

// An operation that is queued on a GPU.
struct NcclOp {
  NcclOp(std::shared_ptr<GroupBackend> control, std::shared_ptr<DeviceRuntime> runtime, uint64_t sequence,
         std::vector<CommRequest> requests)
      : control(std::move(control)),
        sequence(sequence),
        requests(std::move(requests)),
        finished(std::move(runtime)) {}

  std::shared_ptr<GroupBackend> control;  // the same group, for its names and the flight record
  uint64_t sequence;
  std::vector<CommRequest> requests;  // keep their tensors
  Event finished;
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  uint64_t entry = 0;
};

// Watches over one rank's operations: one that does not end in time, a fault that NCCL found, or a world that
// was stopped by another rank ends all of the rank's communicators, so that no kernel and no host thread
// waits for ever. Looks a few times a second, and sleeps while nothing is under way.
class NcclWatch {
 public:
  NcclWatch(std::shared_ptr<GroupBackend> world, std::chrono::milliseconds timeout);
  ~NcclWatch();

  std::shared_ptr<NcclComm> adopt(ncclComm_t native);  // destroyed with its last user
  void add(std::shared_ptr<NcclOp> op);
  void require_running();  // throws CommAborted

 private:
  void watch();
  std::string problem_locked(std::unique_lock<std::mutex>& lock);
  std::string tell_late(NcclOp& op) const;
  void stop_locked();
  void release(ncclComm_t native);

  std::shared_ptr<GroupBackend> world_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<std::shared_ptr<NcclOp>> under_way_;
  std::set<ncclComm_t> comms_;
  bool stopped_ = false, closing_ = false;
  std::thread thread_;
};

}  // namespace megatron
