#pragma once

#include <map>

#include "megatron/comm/nccl/nccl_watchdog.h"

namespace megatron {

// A CUDA graph of one rank with NCCL's operations in it. What each rank has captured is compared before it is
// run for the first time; then each replay is one operation of the world, so that ranks that do not come are
// found and named.
class NcclCapture final : public CapturedOps {
 public:
  NcclCapture(std::shared_ptr<NcclWatchdog> watchdog, ProcessGroup world,
              std::shared_ptr<GroupBackend> world_backend, std::shared_ptr<RankQueue> queue, CallSite where);
  ~NcclCapture() override;
  NcclCapture(const NcclCapture&) = delete;
  NcclCapture& operator=(const NcclCapture&) = delete;

  void add(const GroupBackend& group, std::span<const CommRequest> requests);
  void end() override;
  void replay(const std::function<void()>& run) override;

 private:
  // What was captured of one group. What is sent adds to `messages` and what is received is taken away again,
  // so that the sum over the ranks of the group is zero where every message has its other end.
  struct Group {
    uint64_t key = 0, collectives = 0, signature = 0, messages = 0;
  };
  struct OwnGroup {
    Group sum;
    std::string name;
    std::vector<int> ranks;                             // of the world
    std::map<std::pair<int, int>, uint64_t> so_far[2];  // messages from one to another: received, sent
  };
  static constexpr size_t kGroups = 48;

  std::string difference(const OwnGroup& own, std::span<const Group> all) const;

  std::shared_ptr<NcclWatchdog> watchdog_;
  ProcessGroup world_;  // for host memory
  std::shared_ptr<GroupBackend> backend_;
  std::shared_ptr<RankQueue> queue_;
  CallSite where_;
  std::vector<OwnGroup> groups_;
  uint64_t replays_ = 0;
};

}  // namespace megatron
