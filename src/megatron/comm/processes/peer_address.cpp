#include "megatron/comm/processes/peer_address.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace megatron {
namespace {

uint64_t own_namespace(const char* kind) {
  struct stat space {};
  return ::stat(fmt::format("/proc/self/ns/{}", kind).c_str(), &space) == 0 ? space.st_ino : 0;
}

// The name tells machines apart that were cloned after their start, or whose kernel does not tell when that
// was.
std::string own_machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return boot + "/" + name;
}

}  // namespace

PeerAddress PeerAddress::own(std::string host, int port) {
  return {std::move(host), port, own_machine(), own_namespace("net"), own_namespace("pid"), ::getpid()};
}

PeerAddress PeerAddress::from(const std::string& text) {
  PeerAddress address;
  std::istringstream words(text);
  words >> address.host >> address.port >> address.machine >> address.network >> address.pids >> address.pid;
  return address;
}

std::string PeerAddress::text() const {
  return fmt::format("{} {} {} {} {} {}", host, port, machine, network, pids, pid);
}

bool PeerAddress::shares_network(const PeerAddress& other) const {
  return machine == other.machine && network == other.network;
}

bool PeerAddress::shares_pids(const PeerAddress& other) const {
  const bool knows_start = !machine.starts_with('/');
  return knows_start && machine == other.machine && pids != 0 && pids == other.pids;
}

PeerState state_of_process(pid_t pid) {
  if (pid == 0) return PeerState::Unknown;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // a name may have any characters
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return PeerState::Unknown;
  switch (text[name_end + 2]) {
    case 'T':
      return PeerState::Stopped;
    case 'R':
    case 'S':
    case 'D':
    case 't':  // a debugger looks at it
      return PeerState::Runs;
    default:  // it has died
      return PeerState::Unknown;
  }
}

}  // namespace megatron
