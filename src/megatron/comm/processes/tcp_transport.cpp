#include "megatron/comm/processes/tcp_transport.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/processes/peer_address.h"
#include "megatron/comm/rendezvous/socket.h"

namespace megatron {
namespace {

constexpr int kOneTurn = 64;  // frames of a process, then others have a turn
constexpr int kAll = std::numeric_limits<int>::max();

// On the wire a frame is its size, then its bytes.
struct Peer {
  Socket socket;
  pid_t pid = 0;               // 0: it is on another machine, or /proc does not show it
  std::deque<Frame> outgoing;  // guarded by the transport's mutex
  size_t written = 0;          // of the first, its size included
  uint64_t size = 0;           // of the frame that is coming
  Frame incoming;
  size_t received = 0;  // its size included
  bool lost = false;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(Store& store, int process, int processes, std::chrono::milliseconds timeout)
      : process_(process),
        peers_(static_cast<size_t>(processes)),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    require(static_cast<bool>(wake_), "an eventfd cannot be made: {}", std::strerror(errno));
    const Socket listener = Socket::listen(0);
    const PeerAddress own{store.own_address(), listener.local_port(), mark_.name()};
    store.set(fmt::format("address/{}", process), own.text());
    for (int other = 0; other < process; ++other) {  // those before us listen to us
      const PeerAddress theirs = PeerAddress::from(store.get(fmt::format("address/{}", other)));
      const Nearby near = look_for(theirs.mark);
      Patience patience(timeout);
      Socket socket = Socket::connect(near.network ? "127.0.0.1" : theirs.host, theirs.port, patience);
      socket.write(&process, sizeof process);
      socket.write_text(own.text());
      adopt(other, std::move(socket), near.pid);
    }
    Patience patience(timeout);
    for (int count = process + 1; count < processes; ++count) {
      Socket socket = accept_next(listener, patience);
      int other = -1;
      socket.read(&other, sizeof other, patience);
      require(other > process && other < processes && !peers_[static_cast<size_t>(other)].socket,
              "rendezvous: process {} connected to process {} unexpectedly", other, process);
      const PeerAddress theirs = PeerAddress::from(socket.read_text(patience));
      adopt(other, std::move(socket), look_for(theirs.mark).pid);
    }
  }

  int process() const override { return process_; }
  int processes() const override { return static_cast<int>(peers_.size()); }

  void send(int process, Frame frame) override {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(process)];
    if (peer.lost) return;
    peer.outgoing.push_back(std::move(frame));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.descriptor(), &one, sizeof one);
  }

  void poll(std::chrono::milliseconds patience, const Receiver& receiver) override {
    std::vector<pollfd> entries = {{wake_.descriptor(), POLLIN, 0}};
    std::vector<int> whose = {process_};
    {
      std::lock_guard lock(mutex_);
      for (int other = 0; other < processes(); ++other) {
        const Peer& peer = peers_[static_cast<size_t>(other)];
        if (other == process_ || peer.lost) continue;
        const int events = POLLIN | (peer.outgoing.empty() ? 0 : POLLOUT);
        entries.push_back({peer.socket.descriptor(), static_cast<short>(events), 0});
        whose.push_back(other);
      }
    }
    if (::poll(entries.data(), entries.size(), static_cast<int>(patience.count())) <= 0) return;
    uint64_t ignored;
    if (entries[0].revents) [[maybe_unused]]
      const ssize_t got = ::read(wake_.descriptor(), &ignored, sizeof ignored);
    for (size_t i = 1; i < entries.size(); ++i) {
      const int other = whose[i];
      std::string problem;
      if (entries[i].revents & POLLOUT) problem = write_some(other);
      if (!problem.empty())
        read_some(other, receiver, kAll);  // what it said before the connection broke
      else if (entries[i].revents & (POLLIN | POLLERR | POLLHUP))
        problem = read_some(other, receiver, kOneTurn);
      if (!problem.empty()) lose(other, problem, receiver);
    }
  }

  void disconnect(int process) override {
    ::shutdown(peers_[static_cast<size_t>(process)].socket.descriptor(), SHUT_RDWR);
  }

  PeerState state_of(int process) override {
    return state_of_process(peers_[static_cast<size_t>(process)].pid);
  }

  bool idle() override {
    std::lock_guard lock(mutex_);
    for (const Peer& peer : peers_)
      if (!peer.outgoing.empty()) return false;
    return true;
  }

 private:
  Socket accept_next(const Socket& listener, Patience& patience) const {
    try {
      return listener.accept(patience);
    } catch (const Error& error) {
      std::vector<int> missing;
      for (int other = process_ + 1; other < processes(); ++other)
        if (!peers_[static_cast<size_t>(other)].socket) missing.push_back(other);
      fail(
          "rendezvous: of {} processes these did not connect to process {}: {} ({}); start all of them, each "
          "with its "
          "own rank and the same address to meet at",
          processes(), process_, fmt::join(missing, " "), error.what());
    }
  }

  void adopt(int other, Socket socket, pid_t pid) {
    ::fcntl(socket.descriptor(), F_SETFL, ::fcntl(socket.descriptor(), F_GETFL) | O_NONBLOCK);
    Peer& peer = peers_[static_cast<size_t>(other)];
    peer.socket = std::move(socket);
    peer.pid = pid;
  }

  // Both return what broke the connection; "" where it is sound.
  std::string write_some(int other) {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(other)];
    while (!peer.outgoing.empty()) {
      const Frame& frame = peer.outgoing.front();
      const uint64_t size = frame.size;
      const bool in_size = peer.written < sizeof size;
      const char* from = in_size ? reinterpret_cast<const char*>(&size) + peer.written
                                 : frame.bytes.get() + (peer.written - sizeof size);
      const size_t left = (in_size ? sizeof size : sizeof size + size) - peer.written;
      const ssize_t sent =
          ::send(peer.socket.descriptor(), from, left, MSG_NOSIGNAL | (in_size ? MSG_MORE : 0));
      if (sent < 0) return errno == EAGAIN || errno == EINTR ? "" : std::strerror(errno);
      peer.written += static_cast<size_t>(sent);
      if (peer.written < sizeof size + size) continue;
      peer.outgoing.pop_front();
      peer.written = 0;
    }
    return {};
  }

  std::string read_some(int other, const Receiver& receiver, int most) {
    Peer& peer = peers_[static_cast<size_t>(other)];
    for (int frames = 0; frames < most;) {
      const bool in_size = peer.received < sizeof peer.size;
      char* to = in_size ? reinterpret_cast<char*>(&peer.size) + peer.received
                         : peer.incoming.bytes.get() + (peer.received - sizeof peer.size);
      const size_t left = (in_size ? sizeof peer.size : sizeof peer.size + peer.size) - peer.received;
      const ssize_t got = ::recv(peer.socket.descriptor(), to, left, 0);
      if (got == 0) return "it closed the connection";
      if (got < 0) return errno == EAGAIN || errno == EINTR ? "" : std::strerror(errno);
      peer.received += static_cast<size_t>(got);
      if (in_size && peer.received == sizeof peer.size) peer.incoming = Frame(peer.size, pool());
      if (peer.received < sizeof peer.size || peer.received < sizeof peer.size + peer.size) continue;
      peer.received = 0;
      ++frames;
      receiver.frame(other, std::move(peer.incoming));
    }
    return {};
  }

  void lose(int other, const std::string& problem, const Receiver& receiver) {
    {
      std::lock_guard lock(mutex_);
      Peer& peer = peers_[static_cast<size_t>(other)];
      peer.lost = true;
      peer.outgoing.clear();
    }
    receiver.lost(other, fmt::format("the connection to process {} is gone: {}", other, problem));
  }

  int process_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  Socket wake_;
  NearbyMark mark_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(Store& store, int process, int processes,
                                              std::chrono::milliseconds timeout) {
  return std::make_unique<TcpTransport>(store, process, processes, timeout);
}

}  // namespace megatron
