#include "megatron/comm/threads/thread_group.h"

#include <algorithm>

namespace megatron {
namespace {

class ThreadPending : public PendingOp {
 public:
  ThreadPending(std::shared_ptr<ThreadWorld> world, std::vector<ThreadWorld::Ticket> tickets)
      : world_(std::move(world)), tickets_(std::move(tickets)) {}

  ~ThreadPending() override {
    if (waited_) return;
    for (const auto& ticket : tickets_) world_->drop(ticket);
  }

  void wait() override {
    waited_ = true;
    for (size_t i = 0; i < tickets_.size(); ++i) try {
        world_->wait(tickets_[i]);
      } catch (...) {
        // The caller's memory may go with this exception, that of the other messages too.
        withdraw();
        throw;
      }
  }
  bool done() override {
    return std::all_of(tickets_.begin(), tickets_.end(),
                       [&](const auto& ticket) { return world_->done(ticket); });
  }
  void withdraw() noexcept override {
    for (const auto& ticket : tickets_) world_->withdraw(ticket);
  }

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::vector<ThreadWorld::Ticket> tickets_;
  bool waited_ = false;
};

class ThreadGroup : public GroupBackend {
 public:
  ThreadGroup(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadGroupState> state, int rank)
      : world_(std::move(world)), state_(std::move(state)), rank_(rank) {}

  int rank() const override { return rank_; }
  const std::vector<int>& world_ranks() const override { return state_->world_ranks; }
  const std::string& name() const override { return *state_->name; }

  std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) override {
    return std::make_unique<ThreadPending>(world_, world_->begin(state_, rank_, requests, queue()));
  }

  std::shared_ptr<GroupBackend> split(CommRequest request) override {
    const ThreadWorld::Ticket ticket = world_->begin(state_, rank_, {&request, 1}, queue())[0];
    world_->wait(ticket);
    const std::shared_ptr<ThreadGroupState> state = ticket.op->made[ticket.member];
    if (!state) return nullptr;
    const int world_rank = state_->world_ranks[static_cast<size_t>(rank_)];
    const auto place = std::find(state->world_ranks.begin(), state->world_ranks.end(), world_rank);
    return std::make_shared<ThreadGroup>(world_, state, static_cast<int>(place - state->world_ranks.begin()));
  }

  void abort(const std::string& reason) override {
    world_->abort(fmt::format("rank {} stopped group {}: {}", state_->world_ranks[static_cast<size_t>(rank_)],
                              name(), reason));
  }
  std::string flight_record() const override { return world_->flight_record(); }
  uint64_t note_begin(uint64_t sequence, const CommRequest& request) override {
    return world_->note_begin(*state_, rank_, sequence, request);
  }
  void note_done(uint64_t entry) override { world_->note_done(*state_, rank_, entry); }
  std::string last_calls(int rank) override { return world_->last_calls(*state_, rank); }
  std::string abort_reason() override { return world_->abort_reason(); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    world_->set_timeout(state_->world_ranks[static_cast<size_t>(rank_)], timeout);
  }

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadGroupState> state_;
  int rank_;
};

}  // namespace

ProcessGroup thread_group(std::shared_ptr<ThreadWorld> world, int rank) {
  const std::shared_ptr<ThreadGroupState> state = world->world_group();
  return ProcessGroup(std::make_shared<ThreadGroup>(std::move(world), state, rank));
}

}  // namespace megatron
