#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "megatron/comm/processes/transport.h"

namespace megatron {

// Where a process is and listens, as the others of its run are told.
struct PeerAddress {
  std::string host;
  int port = 0;
  std::string machine;             // as it runs since its start, and its name
  uint64_t network = 0, pids = 0;  // its namespaces; 0: the kernel does not tell
  pid_t pid = 0;

  static PeerAddress own(std::string host, int port);
  static PeerAddress from(const std::string& text);
  std::string text() const;

  // Processes of one network stack meet by loopback: what the machine is called, and whether anybody knows
  // that name, does not matter to them.
  bool shares_network(const PeerAddress& other) const;
  bool shares_pids(const PeerAddress& other) const;
};

// What /proc says of a process whose pid is known here; 0: none is.
PeerState state_of_process(pid_t pid);

}  // namespace megatron
