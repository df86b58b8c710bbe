#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/device/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class Tracer;

// A collective failed: mismatched, not answered in time, or its group is gone.
class CommError : public Error {
 public:
  using Error::Error;
};

// Another process is gone or does not answer: starting again helps.
class PeerLost : public CommError {
 public:
  using CommError::CommError;
  int exit_code() const override { return 19; }
};

// This rank was stopped because another one failed; the message is that of the first failure.
class CommAborted : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

using CallSite = std::source_location;

enum class CommKind : uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  AllToAll,
  Broadcast,
  Send,
  Recv,
  Barrier,
  Split,
  Replay  // of a CUDA graph, with all operations in it
};
std::string_view name_of(CommKind kind);
constexpr bool is_message(CommKind kind) { return kind == CommKind::Send || kind == CommKind::Recv; }

enum class ReduceOp : uint8_t { Sum, Avg, Max, Min };
std::string_view name_of(ReduceOp op);

// One rank's part of one operation, checked by ProcessGroup: tensors are contiguous and their sizes fit the
// group.
struct CommRequest {
  CommKind kind = CommKind::Barrier;
  ReduceOp op = ReduceOp::Sum;
  Tensor input = {}, output = {};           // one and the same for all-reduce and broadcast
  int peer = -1;                            // root of a broadcast, other end of a message
  std::vector<int64_t> send_elements = {};  // all-to-all: to and from each rank
  std::vector<int64_t> recv_elements = {};
  int color = 0, key = 0;         // split
  std::string name = {};          // of the groups that a split makes
  std::vector<int> members = {};  // of the rank's, where the rank itself can tell
  CallSite where = {};

  const Tensor& tensor() const { return input.defined() ? input : output; }
};

// A request without its memory, to be told later.
struct CommCall {
  explicit CommCall(const CommRequest& request);
  CommKind kind;
  ReduceOp op;
  bool has_tensor;
  DType dtype = DType::F32;
  Shape shape;
  int peer;
  std::string name;
  CallSite where;
};
std::string describe(const CommCall& call);   // "all_reduce fp32[4, 8] sum"
std::string describe(const CallSite& where);  // "linear.cpp:88"

// An operation under way, as one rank sees it.
class PendingOp {
 public:
  virtual ~PendingOp() = default;
  virtual void wait() = 0;  // throws CommError
  virtual bool done() = 0;
  virtual void withdraw() noexcept = 0;  // its memory goes away: nobody may touch it after this returns
};

// The operations within a CUDA graph, as one rank sees them. Lives from before the CUDA graph
// begins until after it is gone.
class CapturedOps {
 public:
  virtual ~CapturedOps() = default;
  virtual void end() = 0;  // of the CUDA graph, on all ranks: a CommError where they have captured otherwise
  // Calls `run`, which queues the CUDA graph on the rank's stream. On all ranks.
  virtual void replay(const std::function<void()>& run) = 0;
};

// Where a rank queues its work on a GPU. Only the rank itself reads or changes it.
struct RankQueue {
  std::shared_ptr<DeviceRuntime> runtime;
  const Stream* stream = nullptr;
  Tracer* const* tracer = nullptr;  // who is told of operations, where somebody is

  const Stream& of(const CommRequest& request) const;  // an Error where the rank has not said
};

// Where a tensor's bytes are; null where it has none.
inline char* bytes_of(const Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? static_cast<char*>(tensor.raw()) : nullptr;
}

// What a kind of process group must be able to do. Ranks are those of the group.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;

  // One per rank, shared by all groups that were split from its world.
  const std::shared_ptr<RankQueue>& queue() const { return queue_; }
  void share_queue(std::shared_ptr<RankQueue> queue) { queue_ = std::move(queue); }

  virtual int rank() const = 0;
  virtual const std::vector<int>& world_ranks() const = 0;
  virtual const std::string& name() const = 0;

  // Never waits for other ranks. Several requests are sends and receives that may wait for each other.
  virtual std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) = 0;
  virtual std::shared_ptr<GroupBackend> split(CommRequest request) = 0;  // null for a negative color
  virtual void abort(const std::string& reason) = 0;
  virtual std::string flight_record() const = 0;

  // Why operations on GPU memory cannot be part of a CUDA graph; "" where they can. What is called between
  // begin_capture() and CapturedOps::end() is not carried out.
  virtual std::string cannot_capture() const;
  virtual std::unique_ptr<CapturedOps> begin_capture(CallSite where);

  // For a backend that carries operations out elsewhere and has another one for everything else: its calls go
  // into that one's flight record, which knows the other ranks too.
  virtual uint64_t note_begin(uint64_t /*sequence*/, const CommRequest& /*request*/) { return 0; }
  virtual void note_done(uint64_t /*entry*/) {}
  virtual std::string last_calls(int /*rank*/) { return "its last call is not known"; }
  virtual std::string abort_reason() { return {}; }  // "" while the world runs
  virtual void require_running();                    // throws CommAborted where it does not
  virtual void attached() {}                         // the rank has said where it computes
  // How long this rank waits for others from now on, in any group of the world.
  virtual void set_timeout(std::chrono::milliseconds /*timeout*/) {}
  // Breaks the connection to the process of another rank, as a network does; false: there is none.
  virtual bool disconnect(int /*rank*/) { return false; }

 private:
  std::shared_ptr<RankQueue> queue_ = std::make_shared<RankQueue>();
};

}  // namespace megatron
