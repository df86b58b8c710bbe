#include "megatron/comm/processes/process_backend.h"

#include <algorithm>

#include "megatron/device/host_memory.h"

namespace megatron {
namespace {

// A GPU tensor and the host memory that stands in for it while an operation is under way.
struct Staged {
  Tensor gpu, host;
};

class ProcessPending : public PendingOp {
 public:
  ProcessPending(std::shared_ptr<ProcessWorld> world, std::vector<ProcessWorld::OpPtr> ops,
                 std::vector<Staged> results, std::shared_ptr<RankQueue> queue)
      : world_(std::move(world)),
        ops_(std::move(ops)),
        results_(std::move(results)),
        queue_(std::move(queue)) {}

  void wait() override {
    try {
      for (const auto& op : ops_) world_->wait(op);
    } catch (...) {
      withdraw();  // the caller's memory may go with this exception
      throw;
    }
    for (const Staged& result : results_)
      queue_->runtime->copy_from_host(result.gpu.raw(), result.host.raw(), result.gpu.bytes(),
                                      queue_->stream->native());
  }
  bool done() override {
    return std::all_of(ops_.begin(), ops_.end(), [&](const auto& op) { return world_->done(op); });
  }
  void withdraw() noexcept override {
    for (const auto& op : ops_) world_->withdraw(op);
  }

 private:
  std::shared_ptr<ProcessWorld> world_;
  std::vector<ProcessWorld::OpPtr> ops_;
  std::vector<Staged> results_;
  std::shared_ptr<RankQueue> queue_;
};

class ProcessBackend : public GroupBackend {
 public:
  ProcessBackend(std::shared_ptr<ProcessWorld> world, std::shared_ptr<ProcessGroupState> state)
      : world_(std::move(world)), state_(std::move(state)) {}

  int rank() const override { return state_->rank; }
  const std::vector<int>& world_ranks() const override { return state_->world_ranks; }
  const std::string& name() const override { return *state_->name; }

  std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) override {
    std::vector<ProcessWorld::OpPtr> ops;
    std::vector<Staged> results;
    for (CommRequest& request : requests) {
      stage(request, results);
      ops.push_back(world_->begin(state_, std::move(request)));
    }
    return std::make_unique<ProcessPending>(world_, std::move(ops), std::move(results), queue());
  }

  std::shared_ptr<GroupBackend> split(CommRequest request) override {
    const ProcessWorld::OpPtr op = world_->begin(state_, std::move(request));
    world_->wait(op);
    return op->made ? std::make_shared<ProcessBackend>(world_, op->made) : nullptr;
  }

  void abort(const std::string& reason) override {
    world_->abort(fmt::format("rank {} stopped group {}: {}", state_->world_rank(), name(), reason));
  }
  std::string flight_record() const override { return world_->flight_record(); }
  uint64_t note_begin(uint64_t sequence, const CommRequest& request) override {
    return world_->note_begin(*state_, sequence, request);
  }
  void note_done(uint64_t entry) override { world_->note_done(*state_, entry); }
  std::string last_calls(int rank) override { return world_->last_calls(*state_, rank); }
  std::string abort_reason() override { return world_->abort_reason(); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    world_->set_timeout(state_->world_rank(), timeout);
  }
  bool disconnect(int rank) override {
    world_->disconnect(state_->world_ranks[static_cast<size_t>(rank)]);
    return true;
  }

 private:
  // Host memory takes the place of GPU tensors; those that are written are noted for the way back.
  void stage(CommRequest& request, std::vector<Staged>& results) {
    if (!request.tensor().defined() || !request.tensor().device().is_cuda()) return;
    const Stream& stream = queue()->of(request);
    const bool in_place = request.input.defined() && request.output.defined() && request.input.numel() > 0 &&
                          request.input.raw() == request.output.raw() &&
                          request.input.numel() == request.output.numel();
    for (Tensor* tensor : {&request.input, &request.output}) {
      if (!tensor->defined() || tensor->numel() == 0) continue;
      if (tensor == &request.output && in_place) {
        results.push_back({*tensor, request.input});
        *tensor = request.input;
        continue;
      }
      if (!host_) host_ = make_host_allocator(queue()->runtime);
      const Tensor host = Tensor::empty(host_, tensor->shape(), tensor->dtype(), MemoryTag::Communication);
      if (tensor == &request.input)
        queue()->runtime->copy_to_host(host.raw(), tensor->raw(), tensor->bytes(), stream.native());
      else
        results.push_back({*tensor, host});
      *tensor = host;
    }
  }

  std::shared_ptr<ProcessWorld> world_;
  std::shared_ptr<ProcessGroupState> state_;
  std::shared_ptr<Allocator> host_;  // that the GPU copies to by itself
};

}  // namespace

ProcessGroup process_world_group(std::shared_ptr<ProcessWorld> world, int rank) {
  const std::shared_ptr<ProcessGroupState> state = world->world_group(rank);
  return ProcessGroup(std::make_shared<ProcessBackend>(std::move(world), state));
}

}  // namespace megatron
