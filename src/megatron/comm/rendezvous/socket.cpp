#include "megatron/comm/rendezvous/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr uint64_t kLongestText = 64 << 20;
constexpr auto kOneAddress = std::chrono::seconds(10);  // until the next address of a host is tried

std::string reason() { return std::strerror(errno); }

// Waits for an event of the socket; false: the patience ended first.
bool comes(int descriptor, short event, Patience& patience) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(patience.next() - Patience::Clock::now());
    pollfd entry{descriptor, event, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (ready > 0) return true;
    require(ready == 0 || errno == EINTR, "waiting for a connection failed: {}", reason());
    if (patience.over()) return false;
  }
}

void no_delay(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Connects to one address; "" where that succeeds, else what is wrong. A call that blocked could not be told
// from a process that was stopped.
std::string problem_with(int descriptor, const addrinfo& address, Patience& patience) {
  if (::connect(descriptor, address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return reason();
  Patience own(kOneAddress);
  do {
    Patience slice(std::chrono::milliseconds(100));
    if (!comes(descriptor, POLLOUT, slice)) continue;
    int problem = 0;
    socklen_t size = sizeof problem;
    getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &problem, &size);
    return problem == 0 ? "" : std::strerror(problem);
  } while (!own.over() && !patience.over());
  return "it does not answer";
}

std::string last_problem_of(const addrinfo* list, int& descriptor, Patience& patience) {
  std::string problem = "no address";
  for (const addrinfo* at = list; at; at = at->ai_next) {
    descriptor = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    problem = descriptor < 0 ? reason() : problem_with(descriptor, *at, patience);
    if (problem.empty()) {
      ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
      return {};
    }
    if (descriptor >= 0) ::close(descriptor);
  }
  return problem;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// A socket of IPv6 takes connections of both kinds; a machine may have been started without it.
Socket Socket::listen(int port) {
  const int on = 1, off = 0;
  const sockaddr_in6 both{.sin6_family = AF_INET6,
                          .sin6_port = htons(static_cast<uint16_t>(port)),
                          .sin6_flowinfo = 0,
                          .sin6_addr = IN6ADDR_ANY_INIT,
                          .sin6_scope_id = 0};
  Socket result(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bool listens = result && setsockopt(result.descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
                 setsockopt(result.descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                 ::bind(result.descriptor_, reinterpret_cast<const sockaddr*>(&both), sizeof both) == 0;
  if (!listens && errno != EADDRINUSE && errno != EACCES) {
    result = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    require(static_cast<bool>(result), "a TCP socket cannot be made: {}", reason());
    const sockaddr_in old{.sin_family = AF_INET,
                          .sin_port = htons(static_cast<uint16_t>(port)),
                          .sin_addr = {htonl(INADDR_ANY)},
                          .sin_zero = {}};
    setsockopt(result.descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    listens = ::bind(result.descriptor_, reinterpret_cast<const sockaddr*>(&old), sizeof old) == 0;
  }
  require(listens && ::listen(result.descriptor_, 1024) == 0,
          "port {} cannot be listened to: {}; choose another MASTER_PORT", port, reason());
  return result;
}

Socket Socket::connect(const std::string& host, int port, Patience& patience,
                       std::chrono::milliseconds unknown_for) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  const auto known_by = std::chrono::steady_clock::now() + unknown_for;
  std::string problem;
  bool known = false;
  do {
    addrinfo* list = nullptr;
    const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (failed != 0) {
      problem = gai_strerror(failed);
      if (!known && std::chrono::steady_clock::now() >= known_by)
        throw ConfigError(fmt::format(
            "MASTER_ADDR={}: this machine does not know the name ({}); set MASTER_ADDR to the name "
            "or address of the machine that the first process runs on",
            host, problem));
    } else {
      known = true;
      int descriptor = -1;
      problem = last_problem_of(list, descriptor, patience);
      ::freeaddrinfo(list);
      if (problem.empty()) {
        no_delay(descriptor);
        return Socket(descriptor);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (!patience.over());
  fail(
      "{}:{} cannot be reached: {}; is the first process running there, and MASTER_ADDR and MASTER_PORT "
      "right?",
      host, port, problem);
}

Socket Socket::accept(Patience& patience) const {
  require(comes(descriptor_, POLLIN, patience), "nobody connected to port {} in time", local_port());
  Socket result(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC));
  require(static_cast<bool>(result), "a connection could not be accepted: {}", reason());
  no_delay(result.descriptor_);
  return result;
}

int Socket::local_port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string Socket::local_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST] = "";
  getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
  getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

void Socket::write(const void* data, size_t bytes) const {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(descriptor_, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    require(sent > 0, "a connection broke: {}", reason());
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

void Socket::read(void* data, size_t bytes, Patience& patience) const {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    require(comes(descriptor_, POLLIN, patience), "the other side of a connection did not answer in time");
    const ssize_t got = ::recv(descriptor_, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    require(got > 0, "a connection was closed by the other side{}",
            got < 0 ? ": " + reason() : std::string());
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

void Socket::write_text(const std::string& text) const {
  const uint64_t size = text.size();
  write(&size, sizeof size);
  write(text.data(), text.size());
}

std::string Socket::read_text(Patience& patience) const {
  uint64_t size = 0;
  read(&size, sizeof size, patience);
  require(size <= kLongestText, "a connection brought {} bytes at once: it is none of ours", size);
  std::string text(size, '\0');
  read(text.data(), size, patience);
  return text;
}

}  // namespace megatron
