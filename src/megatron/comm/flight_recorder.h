#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "megatron/comm/backend.h"

namespace megatron {

// The last operations that one rank began, told when something goes wrong.
class FlightRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns the number of the entry, for finish().
  uint64_t begin(std::shared_ptr<const std::string> group, uint64_t sequence, const CommRequest& request);
  void finish(uint64_t entry);

  std::string last() const;  // of any group
  std::string last_in(
      const std::string& group) const;  // "all_gather #3 fp32[8] at trainer.cpp:88, done 0.2 s ago"
  std::string text() const;             // all that is remembered, the oldest first

 private:
  static constexpr uint64_t kRemembered = 32;
  struct Entry {
    std::shared_ptr<const std::string> group;
    uint64_t sequence;
    CommCall call;
    Clock::time_point begun, finished;
    bool done;
  };
  static std::string tell(const Entry& entry);

  std::vector<Entry> entries_;  // a ring once full
  uint64_t begun_ = 0;
};

// Keeps an operation in the list of those that a rank waits for. The world's lock is held when it begins and
// ends.
template <class Op>
class WaitingFor {
 public:
  WaitingFor(std::vector<const Op*>& list, const Op* op) : list_(list), op_(op) { list_.push_back(op_); }
  ~WaitingFor() { list_.erase(std::find(list_.begin(), list_.end(), op_)); }
  WaitingFor(const WaitingFor&) = delete;
  WaitingFor& operator=(const WaitingFor&) = delete;

 private:
  std::vector<const Op*>& list_;
  const Op* op_;
};

// "0 2", the ranks that an operation misses; "0 2; held up by rank 3" where these wait for others in turn, up
// to `culprits`, which wait for nobody.
std::string tell_ranks(const std::vector<int>& missing, const std::set<int>& culprits);

}  // namespace megatron
