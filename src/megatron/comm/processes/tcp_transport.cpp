#include "megatron/comm/processes/tcp_transport.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <vector>

#include "megatron/comm/backend.h"
#include "megatron/comm/processes/peer_address.h"
#include "megatron/comm/rendezvous/socket.h"

namespace megatron {
namespace {

constexpr auto kOfTheLiving = std::chrono::seconds(1), kAnswer = std::chrono::seconds(5);  // when rejoining
constexpr size_t kWaitingRoom = 16;      // connections that have not said who they are
constexpr size_t kLongestAddress = 500;  // bytes
constexpr int kOneTurn = 64;             // frames of a process, then others have a turn
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

// A connection that has not said which process it is, and what it has said so far.
struct Newcomer {
  Socket socket;
  std::string said;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(Store& store, int process, int processes, std::chrono::milliseconds timeout, bool rejoins)
      : process_(process),
        peers_(static_cast<size_t>(processes)),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        listener_(Socket::listen(0)) {
    require(static_cast<bool>(wake_), "an eventfd cannot be made: {}", std::strerror(errno));
    const PeerAddress own{store.own_address(), listener_.local_port(), mark_.name()};
    store.set(fmt::format("address/{}", process), own.text());
    if (rejoins)
      rejoin(store, own);
    else
      connect_all(store, own, timeout);
    set_nonblocking(listener_);
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
    for (const int other : std::exchange(unreached_, {}))
      receiver.lost(other, fmt::format("process {} could not be reached when this one was started", other));
    std::vector<pollfd> entries = {{wake_.descriptor(), POLLIN, 0}, {listener_.descriptor(), POLLIN, 0}};
    const size_t first_newcomer = entries.size();
    for (const Newcomer& each : waiting_) entries.push_back({each.socket.descriptor(), POLLIN, 0});
    std::vector<int> whose(entries.size(), process_);
    const size_t first_peer = entries.size();
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
    for (size_t i = first_peer; i < entries.size(); ++i) {
      const int other = whose[i];
      std::string problem;
      if (entries[i].revents & POLLOUT) problem = write_some(other);
      if (!problem.empty())
        read_some(other, receiver, kAll);  // what it said before the connection broke
      else if (entries[i].revents & (POLLIN | POLLERR | POLLHUP))
        problem = read_some(other, receiver, kOneTurn);
      if (!problem.empty()) lose(other, problem, receiver);
    }
    auto newcomer = waiting_.begin();
    for (size_t i = first_newcomer; i < first_peer; ++i) {
      const bool met = entries[i].revents && meet_newcomer(*newcomer, receiver);
      newcomer = met ? waiting_.erase(newcomer) : std::next(newcomer);
    }
    if (entries[1].revents) accept_newcomer();
  }

  void disconnect(int process) override {
    std::lock_guard lock(mutex_);
    ::shutdown(peers_[static_cast<size_t>(process)].socket.descriptor(), SHUT_RDWR);
  }

  PeerState state_of(int process) override {
    std::lock_guard lock(mutex_);
    return state_of_process(peers_[static_cast<size_t>(process)].pid);
  }

  bool idle() override {
    std::lock_guard lock(mutex_);
    for (const Peer& peer : peers_)
      if (!peer.outgoing.empty()) return false;
    return true;
  }

 private:
  static void set_nonblocking(const Socket& socket) {
    ::fcntl(socket.descriptor(), F_SETFL, ::fcntl(socket.descriptor(), F_GETFL) | O_NONBLOCK);
  }

  Socket call(const PeerAddress& theirs, const Nearby& near, const PeerAddress& own,
              Patience& patience) const {
    Socket socket = Socket::connect(near.network ? "127.0.0.1" : theirs.host, theirs.port, patience);
    socket.write(&process_, sizeof process_);
    socket.write_text(own.text());
    return socket;
  }

  void connect_all(Store& store, const PeerAddress& own, std::chrono::milliseconds timeout) {
    for (int other = 0; other < process_; ++other) {  // those before us listen to us
      const PeerAddress theirs = PeerAddress::from(store.get(fmt::format("address/{}", other)));
      const Nearby near = look_for(theirs.mark);
      Patience patience(timeout);
      adopt(other, call(theirs, near, own, patience), near.pid);
    }
    Patience patience(timeout);
    for (int count = process_ + 1; count < processes(); ++count) {
      Socket socket = accept_next(listener_, patience);
      int other = -1;
      socket.read(&other, sizeof other, patience);
      require(other > process_ && other < processes() && !peers_[static_cast<size_t>(other)].socket,
              "rendezvous: process {} connected to process {} unexpectedly", other, process_);
      const PeerAddress theirs = PeerAddress::from(socket.read_text(patience));
      adopt(other, std::move(socket), look_for(theirs.mark).pid);
    }
  }

  // Whoever is still there answers with its number.
  void rejoin(Store& store, const PeerAddress& own) {
    for (int other = 0; other < processes(); ++other) {
      if (other == process_) continue;
      try {
        const PeerAddress theirs = PeerAddress::from(store.get(fmt::format("address/{}", other)));
        const Nearby near = look_for(theirs.mark);
        Patience patience(kOfTheLiving), for_answer(kAnswer);
        Socket socket = call(theirs, near, own, patience);
        int answer = -1;
        socket.read(&answer, sizeof answer, for_answer);
        require(answer == other, "process {} answers for process {}", answer, other);
        adopt(other, std::move(socket), near.pid);
      } catch (const Error&) {
        unreached_.push_back(other);
        peers_[static_cast<size_t>(other)].lost = true;
      }
    }
    if (std::ssize(unreached_) == processes() - 1)
      throw PeerLost(fmt::format("process {} was to join a run, and nobody of it can be reached", process_));
  }

  void accept_newcomer() {
    Socket socket(::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (waiting_.size() == kWaitingRoom) waiting_.erase(waiting_.begin());
    waiting_.push_back({std::move(socket), {}});
  }

  // Takes what a connection says until there are `bytes` of it; false where they have not come, with `ended`
  // where they will not. Nothing stays behind that would wake poll() again and again.
  static bool hear(Newcomer& newcomer, size_t bytes, bool& ended) {
    std::array<char, 64> part{};
    while (newcomer.said.size() < bytes) {
      const size_t wanted = std::min(part.size(), bytes - newcomer.said.size());
      const ssize_t got = ::recv(newcomer.socket.descriptor(), part.data(), wanted, 0);
      ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
      if (got <= 0) return false;
      newcomer.said.append(part.data(), static_cast<size_t>(got));
    }
    return true;
  }

  // Whether a connection waits no longer: it has said which lost process it is, or something else.
  bool meet_newcomer(Newcomer& newcomer, const Receiver& receiver) {
    int other = -1;
    uint64_t size = 0;
    bool ended = false;
    constexpr size_t kHead = sizeof other + sizeof size;
    if (!hear(newcomer, kHead, ended)) return ended;
    std::memcpy(&other, newcomer.said.data(), sizeof other);
    std::memcpy(&size, newcomer.said.data() + sizeof other, sizeof size);
    if (size > kLongestAddress) return true;
    if (!hear(newcomer, kHead + size, ended)) return ended;
    const bool is_lost =
        other >= 0 && other < processes() && other != process_ && peers_[static_cast<size_t>(other)].lost;
    if (!is_lost) return true;
    const PeerAddress theirs = PeerAddress::from(newcomer.said.substr(kHead));
    Socket& socket = newcomer.socket;
    const int on = 1;
    ::setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::send(socket.descriptor(), &process_, sizeof process_, MSG_NOSIGNAL) != sizeof process_) return true;
    adopt(other, std::move(socket), look_for(theirs.mark).pid);
    receiver.returned(other);
    return true;
  }

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
    set_nonblocking(socket);
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(other)];
    peer = {};
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

  std::string read_some(int other, const Receiver& receiver, int max_frames) {
    Peer& peer = peers_[static_cast<size_t>(other)];
    for (int frames = 0; frames < max_frames;) {
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
  Socket wake_, listener_;
  NearbyMark mark_;
  std::vector<int> unreached_;  // by one that rejoins; to be told
  std::vector<Newcomer> waiting_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(Store& store, int process, int processes,
                                              std::chrono::milliseconds timeout, bool rejoins) {
  return std::make_unique<TcpTransport>(store, process, processes, timeout, rejoins);
}

}  // namespace megatron
