#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/backend.h"

namespace megatron {

class Tracer;
struct RankContext;

// An operation that may still be under way: its tensors may be neither read nor changed before wait(). A rank
// that throws past a Work breaks the operation for all: the destructor then stops the group.
class [[nodiscard]] Work {
 public:
  Work() = default;  // done
  // `tracer` points to the rank's tracer, which records waits; it may be null.
  explicit Work(std::unique_ptr<PendingOp> op, Tracer* const* tracer = nullptr);
  Work(Work&& other) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  void wait();  // throws CommError; the second call does nothing
  bool done();

 private:
  void drop() noexcept;

  std::unique_ptr<PendingOp> op_;
  Tracer* const* tracer_ = nullptr;
  int exceptions_ = 0;  // in flight when the operation began
};

// A message of ProcessGroup::batch_send_recv.
struct Message {
  enum class Direction : uint8_t { Send, Recv } direction;
  Tensor tensor;
  int peer;
};

// A set of ranks that communicate; a value, cheap to copy. All ranks of a group call the same operations in
// the same order. Operations begin at once and return a Work; nothing waits but Work::wait(), barrier() and
// split(). Tensors on a GPU are read once what the rank has queued on its stream by then is done; there
// Work::wait() makes that stream wait, not the host.
class ProcessGroup {
 public:
  ProcessGroup() = default;  // no group: this rank is not a member
  explicit ProcessGroup(std::shared_ptr<GroupBackend> backend) : backend_(std::move(backend)) {}
  static ProcessGroup self(std::string name = "self", int world_rank = 0);  // one rank, alone

  // The rank computes in this context from now on: needed before GPU memory can be moved, by this group and
  // all that were split from the same world. All ranks of a world call it: NCCL connects their GPUs then.
  void attach(const RankContext& ctx) const;
  void detach() const;                         // that context is gone
  ProcessGroup alone(std::string name) const;  // of this rank, on the same stream

  explicit operator bool() const { return backend_ != nullptr; }
  int rank() const { return backend().rank(); }
  int size() const { return static_cast<int>(world_ranks().size()); }
  const std::vector<int>& world_ranks() const { return backend().world_ranks(); }
  const std::string& name() const { return backend().name(); }

  // In place.
  Work all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::Sum,
                  CallSite where = CallSite::current()) const;
  // The input is size() parts of the output's size; rank i gets the reduction of the parts i. The output may
  // be the rank's own part of its input.
  Work reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op = ReduceOp::Sum,
                      CallSite where = CallSite::current()) const;
  // The output is the inputs of all ranks in turn. The input may be the rank's own part of its output.
  Work all_gather(const Tensor& input, const Tensor& output, CallSite where = CallSite::current()) const;
  // Equal parts: part i of the input goes to rank i, part i of the output comes from it.
  Work all_to_all(const Tensor& input, const Tensor& output, CallSite where = CallSite::current()) const;
  // Unequal parts, in rows of the first dimension.
  Work all_to_all(const Tensor& input, const Tensor& output, const std::vector<int64_t>& send_rows,
                  const std::vector<int64_t>& recv_rows, CallSite where = CallSite::current()) const;
  Work broadcast(const Tensor& tensor, int root, CallSite where = CallSite::current()) const;

  // Messages from one rank to another arrive in the order in which they were sent.
  Work send(const Tensor& tensor, int peer, CallSite where = CallSite::current()) const;
  Work recv(const Tensor& tensor, int peer, CallSite where = CallSite::current()) const;
  // Sends and receives at once, so that two ranks can each send first.
  Work batch_send_recv(const std::vector<Message>& messages, CallSite where = CallSite::current()) const;

  void barrier(CallSite where = CallSite::current()) const;

  // Ranks of one color form a group, ranked by key, then by their rank here; a negative color: no group.
  ProcessGroup split(int color, int key, std::string name, CallSite where = CallSite::current()) const;
  // The same by a rule that tells the color of every rank of this group, so that a plan can be made without
  // the others.
  ProcessGroup split_by(const std::function<int(int rank)>& color, std::string name,
                        CallSite where = CallSite::current()) const;

  // Recordings (CUDA graphs) of a step with its operations, of this group and of all that were split from the
  // same world. Why not, or "".
  std::string cannot_capture() const { return backend().cannot_capture(); }
  std::unique_ptr<CapturedOps> begin_capture(CallSite where = CallSite::current()) const {
    return backend().begin_capture(where);
  }

  // Every operation of this group and of all that were split from the same world ends, on all ranks, with
  // this reason.
  void abort(const std::string& reason) const { backend().abort(reason); }
  // Throws CommAborted where the world was stopped. On a GPU an operation that was stopped ends like any
  // other, so what the host reads of its results counts only behind this.
  void require_running() const { backend().require_running(); }
  std::string flight_record() const {
    return backend().flight_record();
  }  // the last operations of every rank
  // How long this rank waits for others from now on, in all groups of the world.
  void set_timeout(std::chrono::milliseconds timeout) const { backend().set_timeout(timeout); }
  // Breaks the connection to the process of another rank, for tests of faults; false: there is none.
  bool disconnect(int rank) const { return backend().disconnect(rank); }

 private:
  GroupBackend& backend() const {
    require(backend_ != nullptr, "process group: this rank is not a member of the group");
    return *backend_;
  }
  friend class NcclBackend;
  Work start(CommRequest request) const;
  Work start(std::span<CommRequest> requests) const;
  ProcessGroup split(CommRequest request) const;

  std::shared_ptr<GroupBackend> backend_;
};

}  // namespace megatron
