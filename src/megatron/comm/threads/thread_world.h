#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/flight_recorder.h"

namespace megatron {

// Ranks that are threads of one process. An operation is an object that all its ranks know: each leaves its
// request there and goes on. Once the last has come, whoever waits for the operation helps to carry it out,
// reading and writing the others' memory directly; so it ends even while some rank computes. Waiting threads
// sleep.
//
// GPU memory: the last rank to come queues the whole operation on a stream of the group, which waits for what
// every rank had queued before it; the ranks' streams wait for that. Nobody on the host waits for the GPU.
//
// One mutex guards all bookkeeping of a world; data moves outside it.

struct ThreadGroupState;

struct ThreadOp {
  ThreadOp(ThreadGroupState& group, uint64_t sequence, std::vector<int> members);

  ThreadGroupState* group;  // which keeps the operation until it is complete; tickets keep the group
  uint64_t sequence;
  std::vector<int> members;           // ranks of the group: all of them, or the two ends of a message
  std::vector<CommRequest> requests;  // by member
  std::vector<char> arrived, taken;   // by member: its request is here; its part is being or was carried out
  size_t arrivals = 0, finished = 0, running = 0;
  bool settled = false, done = false;
  bool on_gpu = false, dropped = false;  // dropped: some rank let go of its memory without waiting
  std::vector<Event> ready;              // of GPU memory: what the ranks had queued before
  std::optional<Event> carried_out;
  std::vector<std::shared_ptr<ThreadGroupState>> made;  // by a split

  bool complete() const { return arrivals == members.size(); }
};

struct ThreadGroupState {
  struct Channel {  // messages from one rank to another whose other half is still missing
    std::deque<std::shared_ptr<ThreadOp>> open;
    uint64_t sent = 0, received = 0;
  };

  std::shared_ptr<const std::string> name;
  std::vector<int> world_ranks;
  std::vector<uint64_t> next_sequence;                 // by member
  std::map<uint64_t, std::shared_ptr<ThreadOp>> open;  // collectives that some rank has yet to begin
  std::map<std::pair<int, int>, Channel> channels;     // by sender and receiver
  std::optional<Stream> stream;                        // where operations on GPU memory are queued
};

class ThreadWorld {
 public:
  struct Ticket {  // one rank's share in an operation
    std::shared_ptr<ThreadGroupState> group;
    std::shared_ptr<ThreadOp> op;
    size_t member = 0;
    uint64_t entry = 0;  // in the rank's flight record
    std::shared_ptr<RankQueue> queue;
  };

  ThreadWorld(int size, std::chrono::milliseconds timeout);

  const std::shared_ptr<ThreadGroupState>& world_group() const { return world_group_; }

  std::vector<Ticket> begin(const std::shared_ptr<ThreadGroupState>& group, int rank,
                            std::span<CommRequest> requests, const std::shared_ptr<RankQueue>& queue);
  void wait(const Ticket& ticket);
  bool done(const Ticket& ticket);
  void withdraw(const Ticket& ticket) noexcept;
  void drop(const Ticket& ticket) noexcept;  // nobody will wait for it

  void abort(const std::string& reason);  // the first reason stays
  void retire(int world_rank);            // its thread has ended: nobody should wait for it
  void set_timeout(int world_rank, std::chrono::milliseconds timeout);  // of its waits from now on
  std::string flight_record();

  uint64_t note_begin(const ThreadGroupState& group, int rank, uint64_t sequence, const CommRequest& request);
  void note_done(const ThreadGroupState& group, int rank, uint64_t entry);
  std::string last_calls(const ThreadGroupState& group, int rank);
  std::string abort_reason();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Rank {
    std::condition_variable wake;
    FlightRecorder recorder;
    bool retired = false;
    std::chrono::milliseconds timeout;
    std::vector<const ThreadOp*> waiting;  // what its threads wait for
  };

  std::pair<std::shared_ptr<ThreadOp>, size_t> place_collective(
      const std::shared_ptr<ThreadGroupState>& group, int rank, const CommRequest& request);
  std::pair<std::shared_ptr<ThreadOp>, size_t> place_message(const std::shared_ptr<ThreadGroupState>& group,
                                                             int rank, const CommRequest& request);
  void settle(const std::shared_ptr<ThreadOp>& op, const RankQueue& queue, Lock& lock);
  bool help(ThreadOp& op, size_t member, Lock& lock);
  void finish(ThreadOp& op);
  void make_groups(ThreadOp& op);

  Rank& rank_of(const ThreadOp& op, size_t member);
  Rank& rank_of(const ThreadGroupState& group, int rank) {
    return ranks_[static_cast<size_t>(group.world_ranks[static_cast<size_t>(rank)])];
  }
  void wake_members(ThreadOp& op);
  void abort_locked(const std::string& reason);
  [[noreturn]] void reject(const std::string& reason);
  void check_same_call(const ThreadOp& op, size_t member, const CommRequest& request);
  void check_complete(const ThreadOp& op);
  bool misses_retired(const ThreadOp& op);
  std::string tell_missing(const ThreadOp& op, const std::string& what);
  std::set<int> culprits_of(const ThreadOp& op);

  std::mutex mutex_;
  std::deque<Rank> ranks_;
  std::shared_ptr<ThreadGroupState> world_group_;
  bool aborted_ = false;
  std::string reason_;
};

}  // namespace megatron
