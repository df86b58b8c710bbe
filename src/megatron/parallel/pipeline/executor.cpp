#include "megatron/parallel/pipeline/executor.h"

#include <deque>
#include <map>
#include <memory>

namespace megatron {
namespace {

// A micro-batch between its forward and its last backward step on one chunk.
struct InFlight {
  std::unique_ptr<Tape> tape;
  Tensor input, output;  // input watched, output on the tape
  Tensor received;       // the activation from the previous stage, before the forward step
  Tensor output_grad, input_grad;
  Work activation_arrival, gradient_arrival;
};

// Keeps what is being sent until it has gone.
struct Sending {
  Tensor tensor;
  Work work;
};

class Executor {
 public:
  Executor(RankContext& ctx, const PipelineShape& shape, const PipelineWork& work, const ProcessGroup& group)
      : ctx_(ctx), shape_(shape), work_(work), group_(group), rank_(group.rank()) {
    losses_.resize(static_cast<size_t>(shape.microbatches));
  }

  std::vector<Tensor> run() {
    const auto lists = schedules(shape_);
    for (const Step& step : lists[static_cast<size_t>(rank_)]) {
      switch (step.kind) {
        case StepKind::forward:
          forward(step);
          break;
        case StepKind::backward:
          backward(step, false);
          break;
        case StepKind::backward_data:
          backward(step, true);
          break;
        case StepKind::backward_weight:
          weight(step);
          break;
        case StepKind::send:
          send(step);
          break;
        case StepKind::recv:
          receive(step);
          break;
      }
    }
    for (Sending& sending : sends_) sending.work.wait();
    require(in_flight_.empty(), "pipeline: the schedule left {} micro-batches without their backward pass",
            in_flight_.size());
    if (!has_loss_) losses_.clear();
    return std::move(losses_);
  }

 private:
  InFlight& at(int chunk, int microbatch) { return in_flight_[{chunk, microbatch}]; }
  int stage(int chunk) const { return model_stage(shape_, rank_, chunk); }
  bool is_last(int chunk) const { return stage(chunk) == shape_.pp * shape_.vpp - 1; }

  // The chunk of the stage `offset` away where this rank has it too, else -1.
  int local_neighbour(int chunk, int offset) const {
    int next = stage(chunk) + offset;
    if (next < 0 || next >= shape_.pp * shape_.vpp) return -1;
    ChunkPlace place = chunk_at(shape_, next);
    return place.rank == rank_ ? place.chunk : -1;
  }

  void forward(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    work.activation_arrival.wait();
    Tensor input = std::move(work.received);
    if (shape_.forward_only) {
      work.output = work_.forward(ctx_, step.chunk, step.microbatch, input);
    } else {
      work.tape = std::make_unique<Tape>(ctx_);
      if (input) input = work.input = work.tape->watch(input);
      TapeScope scope(ctx_, work.tape.get());
      work.output = work_.forward(ctx_, step.chunk, step.microbatch, input);
    }
    if (is_last(step.chunk)) {
      has_loss_ = true;
      losses_[static_cast<size_t>(step.microbatch)] = work.output.detach();
      if (shape_.forward_only) in_flight_.erase({step.chunk, step.microbatch});
    } else if (int next = local_neighbour(step.chunk, 1); next >= 0) {
      at(next, step.microbatch).received = work.output.detach();
      if (shape_.forward_only) in_flight_.erase({step.chunk, step.microbatch});
    }
  }

  void backward(const Step& step, bool defer_weight) {
    InFlight& work = at(step.chunk, step.microbatch);
    work.gradient_arrival.wait();
    Tensor grad = is_last(step.chunk) ? ctx_.full(work.output.shape(), work.output.dtype(), 1)
                                      : std::move(work.output_grad);
    ctx_.defer_weight_grads = defer_weight;
    work.tape->backward_data(ctx_, {&work.output, 1}, {&grad, 1});
    ctx_.defer_weight_grads = false;
    work.output = {};
    if (work.input) {
      work.input_grad = work.tape->grad(work.input);
      if (int previous = local_neighbour(step.chunk, -1); previous >= 0)
        at(previous, step.microbatch).output_grad = std::move(work.input_grad);
    }
    work.input = {};
    if (!defer_weight) finish(step);
  }

  void weight(const Step& step) {
    at(step.chunk, step.microbatch).tape->backward_weight(ctx_);
    finish(step);
  }

  // Done, unless its input's gradient still waits to be sent.
  void finish(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    work.tape.reset();
    if (!work.input_grad) in_flight_.erase({step.chunk, step.microbatch});
  }

  void send(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    if (step.payload == Payload::activation) {
      post(work.output.detach(), step.peer);
      if (shape_.forward_only) in_flight_.erase({step.chunk, step.microbatch});
      return;
    }
    post(std::move(work.input_grad), step.peer);
    work.input_grad = {};
    if (!work.tape) in_flight_.erase({step.chunk, step.microbatch});
  }

  void post(Tensor tensor, int peer) {
    while (!sends_.empty() && sends_.front().work.done()) sends_.pop_front();
    Work work = group_.send(tensor, peer);
    sends_.push_back({std::move(tensor), std::move(work)});
  }

  void receive(const Step& step) {
    Tensor tensor = ctx_.empty(work_.boundary, work_.dtype, MemoryTag::Communication);
    InFlight& work = at(step.chunk, step.microbatch);
    bool activation = step.payload == Payload::activation;
    (activation ? work.received : work.output_grad) = tensor;
    (activation ? work.activation_arrival : work.gradient_arrival) = group_.recv(tensor, step.peer);
  }

  RankContext& ctx_;
  const PipelineShape& shape_;
  const PipelineWork& work_;
  const ProcessGroup& group_;
  int rank_;
  bool has_loss_ = false;
  std::map<std::pair<int, int>, InFlight> in_flight_;
  std::deque<Sending> sends_;
  std::vector<Tensor> losses_;
};

}  // namespace

std::vector<Tensor> run_pipeline(RankContext& ctx, const PipelineShape& shape, const PipelineWork& work,
                                 const ProcessGroup& group) {
  return Executor(ctx, shape, work, group).run();
}

}  // namespace megatron
