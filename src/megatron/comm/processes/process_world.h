#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include "megatron/comm/flight_recorder.h"
#include "megatron/comm/patience.h"
#include "megatron/comm/processes/wire.h"

namespace megatron {

// Ranks spread over processes, each of which hosts as many of them as threads. Every pair of ranks exchanges
// frames; a collective is one or two phases in which each rank sends the others their parts and combines what
// came, sums in rank order, so that results are bitwise those of threads in one process.
//
// The wire's thread carries operations on as frames come, whatever the ranks do meanwhile; they sleep until
// it wakes them. A world belongs to one generation of processes and ends with it. Frames are copies: no
// operation touches a rank's memory but in begin() and while it is marked as running.

// A group as one of its ranks sees it; only that rank's thread counts in it.
struct ProcessGroupState {
  uint64_t id = 0;
  std::shared_ptr<const std::string> name;
  std::vector<int> world_ranks;
  int rank = 0;
  uint64_t next_sequence = 0;
  std::map<int, uint64_t> sent, received;  // messages by peer

  int world_rank() const { return world_ranks[static_cast<size_t>(rank)]; }
};

std::string tell_group(const ProcessGroupState& group);
std::string tell_call(const CommRequest& request);

struct ProcessOp {
  std::shared_ptr<ProcessGroupState> group;
  uint64_t sequence = 0;
  CommRequest request;
  uint8_t phase = 0;
  std::vector<int> awaited;  // ranks of the group whose frames this phase needs
  uint64_t entry = 0;        // in the rank's flight record
  bool running = false, done = false;
  std::shared_ptr<ProcessGroupState> made;  // by a split
};

class ProcessWorld {
 public:
  using OpPtr = std::shared_ptr<ProcessOp>;

  ProcessWorld(std::shared_ptr<Wire> wire, Generation generation, int ranks_here,
               std::chrono::milliseconds timeout);
  ~ProcessWorld();

  int size() const { return size_; }
  int first_rank() const { return first_rank_; }  // of those here
  std::shared_ptr<ProcessGroupState> world_group(int rank) const;

  OpPtr begin(const std::shared_ptr<ProcessGroupState>& group, CommRequest request);
  void wait(const OpPtr& op);
  bool done(const OpPtr& op);
  void withdraw(const OpPtr& op) noexcept;

  void abort(const std::string& reason);  // everywhere; the first reason stays
  // Ranks may run functions one after another: they are back from one until the next begins.
  void begin_run();
  void retire(int world_rank);
  void set_timeout(int world_rank, std::chrono::milliseconds timeout);  // of its waits from now on
  void disconnect(int world_rank) { wire_->disconnect(process_of(world_rank)); }
  std::string flight_record();  // of the ranks here

  uint64_t note_begin(const ProcessGroupState& group, uint64_t sequence, const CommRequest& request);
  void note_done(const ProcessGroupState& group, uint64_t entry);
  std::string last_calls(const ProcessGroupState& group, int rank);
  std::string abort_reason();
  // When this process first knew that a rank is gone, or that the world ends.
  std::optional<std::chrono::steady_clock::time_point> noticed();

 private:
  static constexpr std::chrono::milliseconds kGrace{2000};  // for answers of processes in trouble
  // The same once a rank is gone, and for whoever lacks it to end the world.
  static constexpr std::chrono::milliseconds kGraceAfterLoss{200};

  using Lock = std::unique_lock<std::mutex>;
  // Which frame: group, receiver, number, phase, sender. Messages have a phase of their own, apart from
  // collectives'.
  using FrameKey = std::tuple<uint64_t, int, uint64_t, uint8_t, int>;
  // Which operation: group, rank, number, and the sender for messages (-1 for collectives).
  using OpKey = std::tuple<uint64_t, int, uint64_t, int>;
  struct Rank {  // of this process
    std::condition_variable wake;
    FlightRecorder recorder;
    std::chrono::milliseconds timeout;
    std::vector<const ProcessOp*> waiting;  // what its threads wait for
  };
  struct Answer {                // of a rank's process, about the rank
    std::vector<int> waits_for;  // ranks
    std::string text;
  };
  struct Inquiry {  // among the ranks that hold an operation up
    std::vector<std::pair<int, Answer>> answers;
    std::set<int> silent;   // ranks whose processes have not answered, and are not asked again
    bool in_haste = false;  // a rank was gone, so that others were hardly waited for
  };
  struct Heard {  // the last call that another rank is known to have made
    std::string call;
    std::chrono::steady_clock::time_point when;
  };

  bool is_here(int world_rank) const {
    return world_rank >= first_rank_ && world_rank < first_rank_ + static_cast<int>(ranks_.size());
  }
  Rank& here(int world_rank) { return ranks_[static_cast<size_t>(world_rank - first_rank_)]; }
  int process_of(int world_rank) const {
    return generation_.processes[static_cast<size_t>(world_rank) / ranks_.size()];
  }
  std::vector<int> ranks_of(int process) const;
  bool has_ended(int world_rank) const {  // the run that goes on; before the first there is none
    return run_ > 0 && returned_from_[static_cast<size_t>(world_rank)] >= run_;
  }
  bool is_gone(int world_rank) const {
    return died_.count(world_rank) > 0 || returned_from_[static_cast<size_t>(world_rank)] >= run_;
  }
  int world_rank(const ProcessOp& op, int member) const {
    return op.group->world_ranks[static_cast<size_t>(member)];
  }

  void send_part(const ProcessOp& op, int member, const void* data, size_t bytes);
  void receive(int process, Frame frame);
  void store(Frame frame, Lock& lock);
  void tell_all(FrameKind kind, int from, const std::string& text);
  FrameKey key_of(const ProcessOp& op, int member) const;
  OpKey op_key(const ProcessOp& op) const;
  bool ready(const ProcessOp& op) const;
  void carry_on(const OpPtr& op, Lock& lock);  // as far as the frames that are here allow
  bool run_phase(ProcessOp& op, const std::map<int, Frame>& frames);  // true: that was the last
  void check_frame(const ProcessOp& op, int member, const Frame& frame) const;

  void ask(int world_rank, const std::string& group);
  bool has_answered(int world_rank) const;
  bool is_stopped(int world_rank) const;
  bool lacks_gone_rank(const ProcessOp& op) const;  // which will not come any more
  // A rank has died, and nobody has ended the world yet: all may wait for another one, which is stopped.
  bool is_doomed() const {
    return first_death_ && std::chrono::steady_clock::now() - *first_death_ >= kGraceAfterLoss;
  }
  bool is_culprit(int world_rank, const Answer& answer, const Inquiry& inquiry) const;
  Answer answer_of(int world_rank, const std::string& group, bool in_haste);
  void inquire(const ProcessOp& op, Inquiry& inquiry, Patience* all, Lock& lock);
  std::string tell_missing(const ProcessOp& op, const std::string& what, Inquiry& inquiry, Lock& lock);
  Answer own_calls(int world_rank, const std::string& group);
  static std::string to_text(const Answer& answer);
  static Answer answer_from(const std::string& text);
  std::vector<int> missing_of(const ProcessOp& op) const;
  void abort_locked(const std::string& reason, bool tell_others);
  void notice();
  void note_death();
  // Stops the world and throws, unless the operation ends while others are asked.
  void reject(const ProcessOp& op, const std::string& what, Inquiry& inquiry, Lock& lock);
  void mark_lost(int process, const std::string& why);
  void mark_silent(int process, const std::string& why);
  std::string last_heard(int world_rank) const;

  std::shared_ptr<Wire> wire_;
  Generation generation_;
  int size_, first_rank_;
  std::mutex mutex_;
  std::deque<Rank> ranks_;
  uint64_t run_ = 0;
  std::vector<uint64_t> returned_from_;  // by world rank: the last run that it ended
  std::set<int> died_;                   // world ranks
  std::set<int> died_between_runs_;      // and those that the next run will miss
  std::map<FrameKey, Frame> inbox_;
  std::map<OpKey, OpPtr> ops_;
  std::map<int, Answer> answers_;  // by world rank: what it did last
  std::map<int, Heard> heard_;     // by world rank
  bool aborted_ = false;
  std::string reason_;
  std::optional<std::chrono::steady_clock::time_point> noticed_, first_death_;  // the latter: of died_
};

}  // namespace megatron
