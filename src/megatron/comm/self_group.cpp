#include "megatron/comm/gpu_mover.h"
#include "megatron/comm/process_group.h"

namespace megatron {
namespace {

class Finished : public PendingOp {
 public:
  void wait() override {}
  bool done() override { return true; }
  void withdraw() noexcept override {}
};

// One rank alone: every operation is a copy, or nothing, and done when it returns.
class SelfGroup : public GroupBackend {
 public:
  SelfGroup(std::string name, int world_rank) : name_(std::move(name)), world_ranks_{world_rank} {}

  int rank() const override { return 0; }
  const std::vector<int>& world_ranks() const override { return world_ranks_; }
  const std::string& name() const override { return name_; }

  std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) override {
    require_running();
    const bool message = requests[0].kind == CommKind::Send || requests[0].kind == CommKind::Recv;
    const auto move = [&](const Mover& mover) {
      message ? exchange(requests, mover) : run_part(requests, 0, mover);
    };
    // Work in place is done already, wherever the memory is.
    const CommRequest& own = requests[0];
    const bool in_place = !message && own.input.defined() && own.output.defined() && own.input.numel() > 0 &&
                          own.input.raw() == own.output.raw();
    if (in_place || !own.tensor().defined()) return std::make_unique<Finished>();
    own.tensor().device().is_cuda() ? move(GpuMover(queue()->of(own))) : move(HostMover());
    return std::make_unique<Finished>();
  }

  std::shared_ptr<GroupBackend> split(CommRequest request) override {
    require_running();
    if (request.color < 0) return nullptr;
    return std::make_shared<SelfGroup>(std::move(request.name), world_ranks_[0]);
  }

  void abort(const std::string& reason) override { aborted_ = reason.empty() ? "aborted" : reason; }
  std::string flight_record() const override { return {}; }
  std::string abort_reason() override {
    return aborted_.empty() ? "" : fmt::format("group {}: {}", name_, aborted_);
  }

 private:
  // The i-th send meets the i-th receive: both must be in the same exchange, as nobody else could match them.
  void exchange(std::span<CommRequest> requests, const Mover& mover) {
    std::vector<const CommRequest*> sends, recvs;
    for (const CommRequest& request : requests)
      (request.kind == CommKind::Send ? sends : recvs).push_back(&request);
    if (sends.size() != recvs.size())
      throw CommError(fmt::format("group {} has one rank: {} at {} has no partner", name_,
                                  describe(CommCall(requests[0])), describe(requests[0].where)));
    for (size_t i = 0; i < sends.size(); ++i) {
      const Tensor &from = sends[i]->input, &to = recvs[i]->output;
      require(from.numel() == to.numel() && from.dtype() == to.dtype(),
              "exchange at {}: {} was sent, {} is received", describe(sends[i]->where), from, to);
      copy_message(*sends[i], *recvs[i], mover);
    }
  }

  std::string name_, aborted_;
  std::vector<int> world_ranks_;
};

}  // namespace

ProcessGroup ProcessGroup::self(std::string name, int world_rank) {
  return ProcessGroup(std::make_shared<SelfGroup>(std::move(name), world_rank));
}

}  // namespace megatron
