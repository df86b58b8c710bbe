#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/training/run/callback.h"

namespace megatron {

// A planted fault: what happens to which rank, before which iteration begins.
struct InjectedFault {
  enum class Kind { throws, kill, stop, slow, hang, nan, bit_flip, disk_full, network };
  Kind kind = Kind::throws;
  int rank = 0;
  int peer = -1;          // the other end of a lost network
  int64_t iteration = 1;  // counted as logs do, from 1
  double seconds = 0;     // by which a slow rank is late, in every iteration from then on

  friend bool operator==(const InjectedFault&, const InjectedFault&) = default;
};

// The faults of --inject-fault: KIND@RANK:ITERATION, separated by commas or blanks. A ConfigError names what
// cannot be read.
//   throw@2:10      an exception
//   kill@2:10       SIGKILL to the rank's process
//   stop@2:10       SIGSTOP to it
//   slow@2:10=0.5   half a second (0.1 where nothing is said) late in every iteration from then on
//   hang@2:10       the rank does not come to the next collective until the world is stopped
//   nan@2:10        NaN in a weight
//   bit_flip@2:10   one bit of a weight
//   disk_full@2:10  files of the rank's process cannot grow beyond 16 KiB in that iteration
//   network@2-3:10  the connection between the processes of two ranks breaks
std::vector<InjectedFault> parse_faults(std::span<const std::string> texts);

// Acts on the ranks of this process, whose first one is `first_rank` at the start of the run: later
// generations number ranks anew, faults do not. Each fault acts once, also where iterations are computed
// again.
std::shared_ptr<Callback> fault_injector(std::vector<InjectedFault> faults, int first_rank, int ranks_here);

}  // namespace megatron
