#pragma once

#include <string>
#include <string_view>

#include "megatron/comm/rendezvous/environment.h"

namespace megatron {

// Which process of a job tells a refusal that all of them meet before they are connected: the first process,
// or, where that one goes on, the first that comes. Processes of one machine find each other by a file in the
// folder of temporary files, which whoever tells keeps locked as long as they may look for it; each machine
// has one that tells. The lock of a process that was killed goes with it.
class RefusalClaim {
 public:
  RefusalClaim(const LaunchPlace& place, std::string_view message);
  ~RefusalClaim();  // waits for the others to have looked
  RefusalClaim(const RefusalClaim&) = delete;
  RefusalClaim& operator=(const RefusalClaim&) = delete;

  bool is_own() const { return own_; }

 private:
  std::string path_;
  bool own_ = false;
  int file_ = -1;  // locked; -1: somebody else's, or the folder cannot be written
};

}  // namespace megatron
