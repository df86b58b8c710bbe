#pragma once

#include <sys/types.h>

#include <string>

#include "megatron/comm/processes/transport.h"
#include "megatron/comm/rendezvous/socket.h"

namespace megatron {

// Where a process is and listens, as the others of its run are told.
struct PeerAddress {
  std::string host;
  int port = 0;
  std::string mark;  // see NearbyMark

  static PeerAddress from(const std::string& text);
  std::string text() const;
};

// By which processes find out that they use one network stack, and so meet by loopback: names of machines may
// be shared, unknown or those of clones, and namespaces of two kernels have the same numbers. It is a Unix
// socket with a random name, which the kernel shows to this network namespace alone.
class NearbyMark {
 public:
  NearbyMark();
  const std::string& name() const { return name_; }

 private:
  Socket socket_;
  std::string name_ = "-";  // where the system does not let one be made
};

struct Nearby {
  bool network = false;  // loopback reaches it
  pid_t pid = 0;         // as /proc shows it here; 0: it does not
};
Nearby look_for(const std::string& mark);

// Whether pids that the kernel tells this process are those of a /proc: it may be that of another namespace.
bool shows_own_pids(const std::string& proc = "/proc");

// What /proc says of a process whose pid is known here; 0: none is.
PeerState state_of_process(pid_t pid);

}  // namespace megatron
