#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "megatron/comm/generation.h"
#include "megatron/comm/patience.h"
#include "megatron/comm/processes/frame.h"

namespace megatron {

// What connects a process with the others for as long as it lives: the transport and the thread that serves
// it. Worlds come and go on it, one at a time: a frame tells the generation that it belongs to, older ones
// are dropped and newer ones wait.
class Wire {
 public:
  // The wire calls these for the open world, one at a time, from its own thread.
  struct Listener {
    std::function<void(int process, Frame frame)> frame;
    std::function<void(int process, const std::string& why)> lost;    // its connection is gone
    std::function<void(int process, const std::string& why)> silent;  // it has stopped
    std::function<void(const std::string& why)> broken;               // nobody can be reached any more
  };

  // `newcomer`: this process takes the place of one that was lost, and waits for the next generation.
  Wire(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout, bool newcomer = false);
  ~Wire();  // waits until the other processes leave too

  int process() const { return transport_->process(); }
  int processes() const { return transport_->processes(); }
  const std::shared_ptr<FramePool>& pool() const { return transport_->pool(); }
  void send(int process, Frame frame) { transport_->send(process, std::move(frame)); }
  void disconnect(int process) { transport_->disconnect(process); }
  PeerState state_of(int process) const { return transport_->state_of(process); }
  void watch(const HeartbeatOptions& heartbeat);
  void expect_no_goodbye(int process);  // it does not answer

  // Frames of this generation go to the listener, those that have come already first.
  void listen(const Generation& generation, Listener listener);
  // The listener of this generation is not called any more when this returns. `sound`: its world was not
  // stopped.
  void close(const Generation& generation, bool sound);

  // The processes that are left, as all of them agree on it: the lowest that can be reached decides once
  // everybody has come, or was given up. Of two that cannot reach each other the higher one is left out. A
  // PeerLost where this process is, or where those that are left may be the smaller part of a world that fell
  // apart: two parts would otherwise train on and save over each other.
  //
  // Two may decide at once, where one of them was stopped and goes on just then. Each process takes the first
  // decision that it hears of and says so; a generation is made when all of its members have. Two decisions
  // have members in common, who took one of them: whoever decided otherwise hears so and leaves.
  std::vector<int> meet(uint32_t generation, std::chrono::milliseconds grace);
  // Until the others meet for a later generation (true), or have left (false). A PeerLost where they left
  // after a fault.
  bool wait_for_call(const Generation& generation);
  // The number to meet for: the next one or, of a newcomer, the one that the others meet for.
  uint32_t next_generation(const Generation& generation);
  bool has_newcomer();  // one waits until the others meet

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;
  struct Joined {
    uint32_t generation = 0;
    std::set<int> unreachable;  // for that process
  };

  void serve();
  bool may_leave(std::optional<Clock::time_point>& end);
  void receive(int process, Frame frame);
  void handle(int process, const FrameHead& head, const std::string& text);
  void lose(int process, const std::string& why);
  void welcome(int process);
  uint32_t called_for() const;
  void beat();
  void tell(int other, FrameKind kind, uint32_t generation, const std::string& text);
  void tell_all(FrameKind kind, uint32_t generation, const std::string& text);
  void decide(uint32_t generation, const std::vector<int>& members);
  void lose_stopped(std::map<int, Patience>& since);
  std::set<int> unreachable(const std::set<int>& given_up) const;
  bool leads(uint32_t generation, const std::set<int>& out) const;
  bool all_joined(uint32_t generation, const std::set<int>& out) const;
  std::vector<int> chosen(const std::set<int>& out) const;
  bool is_made(uint32_t generation);
  bool may_go_on(const std::vector<int>& members) const;

  std::unique_ptr<Transport> transport_;
  std::chrono::milliseconds timeout_;

  std::mutex delivering_;  // held while the listener is called
  std::optional<Listener> listener_;
  uint32_t open_ = 0;                          // the generation of the listener
  uint32_t next_ = 0;                          // the first whose frames wait
  std::optional<Clock::time_point> left_out_;  // when the others went on without the listener's world

  std::mutex mutex_;  // of what follows; never held while the listener is called
  std::condition_variable changed_;
  HeartbeatOptions heartbeat_;
  Clock::time_point last_beat_{}, last_look_{};
  std::vector<Clock::time_point> heard_;  // by process: the last frame
  std::map<int, std::string> lost_;       // by process: why; it may only have been silent
  std::map<int, bool> left_;              // processes that said goodbye; whether their world was sound
  std::set<int> mute_;                    // of which no goodbye is expected
  std::set<int> returned_;                // newcomers in the places of lost ones
  bool newcomer_;                         // this process is one
  std::map<int, Joined> joined_;
  std::map<uint32_t, std::vector<int>> decided_;                    // who makes up each generation
  std::map<int, std::pair<uint32_t, std::vector<int>>> taken_;      // by process: its last, as it said
  uint32_t made_ = 0;                                               // the last that all its members took
  std::map<uint32_t, std::vector<std::pair<int, Frame>>> waiting_;  // frames of later generations
  bool leaving_ = false, sound_ = true;
  std::thread server_;
};

}  // namespace megatron
