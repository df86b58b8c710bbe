#include "megatron/comm/processes/peer_address.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

namespace megatron {
namespace {

constexpr int kBacklog = 4096;  // processes look and leave; nobody answers them

// In the abstract namespace, where a name begins with a zero and ends with the socket.
struct AbstractAddress {
  explicit AbstractAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t size;
};

}  // namespace

PeerAddress PeerAddress::from(const std::string& text) {
  PeerAddress address;
  std::istringstream words(text);
  words >> address.host >> address.port >> address.mark;
  return address;
}

std::string PeerAddress::text() const { return fmt::format("{} {} {}", host, port, mark); }

NearbyMark::NearbyMark() : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  std::random_device random;
  const std::string name = fmt::format("megatron-{:08x}{:08x}{:08x}", random(), random(), random());
  const AbstractAddress address(name);
  if (socket_ && ::bind(socket_.descriptor(), address.get(), address.size) == 0 &&
      ::listen(socket_.descriptor(), kBacklog) == 0)
    name_ = name;
}

Nearby look_for(const std::string& mark) {
  const Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const AbstractAddress address(mark);
  if (!socket) return {};
  if (::connect(socket.descriptor(), address.get(), address.size) != 0)
    return {.network = errno == EAGAIN};  // too many have looked
  ucred who{};                            // of whoever listens
  socklen_t size = sizeof who;
  const bool known = ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
  return {.network = true, .pid = known && shows_own_pids() ? who.pid : 0};
}

// The kernel lists the pids of a process in the namespace of /proc and in those below it, down to its own.
bool shows_own_pids(const std::string& proc) {
  std::array<char, 32> link{};
  const ssize_t size = ::readlink((proc + "/self").c_str(), link.data(), link.size());
  if (size <= 0 || std::string_view(link.data(), static_cast<size_t>(size)) != std::to_string(::getpid()))
    return false;
  std::ifstream file(proc + "/self/status");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    if (words >> name; name != "NSpid:") continue;
    pid_t outer = 0, inner = 0;
    return (words >> outer) && !(words >> inner);
  }
  return true;  // an older kernel, which does not tell
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
