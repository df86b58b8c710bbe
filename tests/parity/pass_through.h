#pragma once

#include "megatron/comm/process_group.h"

namespace megatron::testing {

// A group that hands every operation on to another: what faults are planted in.
class PassThrough : public GroupBackend {
 public:
  explicit PassThrough(ProcessGroup inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_.rank(); }
  const std::vector<int>& world_ranks() const override { return inner_.world_ranks(); }
  const std::string& name() const override { return inner_.name(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }
  std::string flight_record() const override { return inner_.flight_record(); }
  void require_running() override { inner_.require_running(); }

  std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) override {
    struct Started final : PendingOp {
      Work work;
      bool seen_to_end = true;
      void wait() override { work.wait(); }
      bool done() override { return seen_to_end && work.done(); }
      void withdraw() noexcept override {}
    };
    auto op = std::make_unique<Started>();
    op->seen_to_end = operations_are_seen_to_end();
    std::vector<Message> messages;
    for (CommRequest& r : requests) {
      if (drops(r)) continue;
      change(r);
      switch (r.kind) {
        case CommKind::AllReduce:
          op->work = inner_.all_reduce(r.input, r.op);
          break;
        case CommKind::AllGather:
          op->work = inner_.all_gather(r.input, r.output);
          break;
        case CommKind::ReduceScatter:
          op->work = inner_.reduce_scatter(r.input, r.output, r.op);
          break;
        case CommKind::AllToAll:
          op->work = inner_.all_to_all(r.input, r.output, rows(r.send_elements, r.input),
                                       rows(r.recv_elements, r.output));
          break;
        case CommKind::Broadcast:
          op->work = inner_.broadcast(r.input, r.peer);
          break;
        case CommKind::Send:
          for (Tensor& tensor : sent(r.input)) messages.push_back({Message::Direction::Send, tensor, r.peer});
          break;
        case CommKind::Recv:
          messages.push_back({Message::Direction::Recv, r.output, r.peer});
          break;
        default:
          fail("unexpected {}", name_of(r.kind));
      }
    }
    if (!messages.empty()) op->work = inner_.batch_send_recv(messages);
    return op;
  }

  std::shared_ptr<GroupBackend> split(CommRequest r) override {
    ProcessGroup group = inner_.split(r.color, r.key, r.name);
    return group ? part(group) : nullptr;
  }

 protected:
  virtual bool drops(const CommRequest&) { return false; }
  virtual void change(CommRequest&) {}
  virtual bool operations_are_seen_to_end() { return true; }                   // before they are waited for
  virtual std::vector<Tensor> sent(const Tensor& tensor) { return {tensor}; }  // instead of a tensor
  virtual std::shared_ptr<GroupBackend> part(ProcessGroup group) = 0;

 private:
  // How many rows of the first dimension so many elements are.
  static std::vector<int64_t> rows(std::vector<int64_t> elements, const Tensor& tensor) {
    for (int64_t& count : elements)
      if (count > 0) count /= tensor.numel() / tensor.size(0);
    return elements;
  }

  ProcessGroup inner_;
};

}  // namespace megatron::testing
