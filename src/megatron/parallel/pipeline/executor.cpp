#include "megatron/parallel/pipeline/executor.h"

#include <deque>
#include <map>
#include <memory>
#include <span>

namespace megatron {
namespace {

// A micro-batch between its forward and its last backward step on one chunk.
struct InFlight {
  std::unique_ptr<Tape> tape;
  GradSlot input, output;  // on the tape
  Shape output_shape;
  Tensor received;  // the activation from the previous stage, until the forward step
  Tensor result;    // of the forward step, until it is passed on; its memory is not needed for the gradient
  Tensor output_grad, input_grad;
  Tensor shape;  // of the activation that comes next, where it is not known
  Work activation_arrival, gradient_arrival;
};

// Keeps what is being sent until it has gone.
struct Sending {
  Tensor tensor;
  Work work;
};

bool is_message(const Step& step) { return step.kind == StepKind::send || step.kind == StepKind::recv; }

class Executor {
 public:
  Executor(RankContext& ctx, const PipelineShape& shape, const PipelineWork& work, const ProcessGroup& group)
      : ctx_(ctx), shape_(shape), work_(work), group_(group), rank_(group.rank()) {
    losses_.resize(static_cast<size_t>(shape.microbatches));
  }

  std::vector<Tensor> run() {
    const auto lists = schedules(shape_);
    const std::vector<Step>& list = lists[static_cast<size_t>(rank_)];
    for (size_t at = 0; at < list.size();) {
      size_t end = at;
      while (end < list.size() && is_message(list[end])) ++end;
      if (end == at) {
        compute(list[at++]);
      } else {
        pass_on(std::span(list).subspan(at, end - at));
        at = end;
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

  void compute(const Step& step) {
    switch (step.kind) {
      case StepKind::forward:
        return forward(step);
      case StepKind::backward:
        return backward(step, false);
      case StepKind::backward_data:
        return backward(step, true);
      case StepKind::backward_weight:
        return weight(step);
      default:
        fail("pipeline: {} is no computation", to_string(step));
    }
  }

  void forward(const Step& step) {
    const TraceRange range(ctx_.tracer, "forward");
    InFlight& work = at(step.chunk, step.microbatch);
    work.activation_arrival.wait();
    Tensor input = std::move(work.received);
    work.received = {};
    Tensor result;
    if (shape_.forward_only) {
      result = work_.forward(ctx_, step.chunk, step.microbatch, input);
    } else {
      work.tape = std::make_unique<Tape>(ctx_);
      if (input) input = work.tape->watch(input);
      work.input = input ? input.grad_slot() : GradSlot{};
      TapeScope scope(ctx_, work.tape.get());
      result = work_.forward(ctx_, step.chunk, step.microbatch, input);
      work.output = result.grad_slot();
      work.output_shape = result.shape();
    }
    result = result.detach();
    if (is_last(step.chunk)) {
      has_loss_ = true;
      losses_[static_cast<size_t>(step.microbatch)] = result;
      if (shape_.forward_only) in_flight_.erase({step.chunk, step.microbatch});
    } else if (int next = local_neighbour(step.chunk, 1); next >= 0) {
      at(next, step.microbatch).received = result;
      if (shape_.forward_only) in_flight_.erase({step.chunk, step.microbatch});
    } else {
      work.result = result;
    }
  }

  void backward(const Step& step, bool defer_weight) {
    const TraceRange range(ctx_.tracer, "backward");
    InFlight& work = at(step.chunk, step.microbatch);
    work.gradient_arrival.wait();
    Tensor grad = is_last(step.chunk) ? ones_like(losses_[static_cast<size_t>(step.microbatch)])
                                      : std::move(work.output_grad);
    work.output_grad = {};
    ctx_.defer_weight_grads = defer_weight;
    work.tape->backward_data(ctx_, work.output, grad, is_last(step.chunk));
    ctx_.defer_weight_grads = false;
    if (work.input) {
      work.input_grad = work.tape->take_grad(work.input);
      if (int previous = local_neighbour(step.chunk, -1); previous >= 0)
        at(previous, step.microbatch).output_grad = std::move(work.input_grad);
    }
    if (!defer_weight) finish(step);
  }

  Tensor ones_like(const Tensor& loss) { return ctx_.full(loss.shape(), loss.dtype(), 1); }

  void weight(const Step& step) {
    const TraceRange range(ctx_.tracer, "weight gradients");
    at(step.chunk, step.microbatch).tape->backward_weight(ctx_);
    finish(step);
  }

  // Done, unless its input's gradient still waits to be sent.
  void finish(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    work.tape.reset();
    if (!work.input_grad) in_flight_.erase({step.chunk, step.microbatch});
  }

  // A run of messages between two computations.
  void pass_on(std::span<const Step> steps) {
    if (work_.overlap) {
      for (const Step& step : steps) {
        if (sends_shape(step)) transfer(shape_message(step));
        transfer(message(step), &step);
      }
      return;
    }
    std::vector<Message> batch;
    for (const Step& step : steps)
      if (sends_shape(step)) batch.push_back(shape_message(step));
    if (!batch.empty()) group_.batch_send_recv(batch).wait();
    batch.clear();
    for (const Step& step : steps) batch.push_back(message(step));
    group_.batch_send_recv(batch).wait();
  }

  bool sends_shape(const Step& step) const {
    return !work_.input_shape && step.payload == Payload::activation;
  }

  Message shape_message(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    if (step.kind == StepKind::recv) {
      work.shape = ctx_.empty({2}, DType::I64, MemoryTag::Communication);
      return {Message::Direction::Recv, work.shape, step.peer};
    }
    const Shape& shape = work.result.shape();
    require(shape.rank() == 2, "pipeline: {} passes between stages; it must have two dimensions",
            work.result);
    return {Message::Direction::Send, ctx_.from_vector(std::vector<int64_t>{shape[0], shape[1]}, {2}),
            step.peer};
  }

  // What a send takes from this rank's work, or a receive adds to it.
  Message message(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    bool activation = step.payload == Payload::activation;
    if (step.kind == StepKind::recv) {
      Tensor& target = activation ? work.received : work.output_grad;
      target = ctx_.empty(activation ? incoming_shape(step.chunk, work) : work.output_shape, work_.dtype,
                          MemoryTag::Communication);
      return {Message::Direction::Recv, target, step.peer};
    }
    Message out{Message::Direction::Send, std::move(activation ? work.result : work.input_grad), step.peer};
    (activation ? work.result : work.input_grad) = {};
    if (activation ? shape_.forward_only : !work.tape) in_flight_.erase({step.chunk, step.microbatch});
    return out;
  }

  Shape incoming_shape(int chunk, InFlight& work) {
    if (work_.input_shape) return work_.input_shape(stage(chunk));
    std::vector<int64_t> sizes = ctx_.to_vector<int64_t>(work.shape);
    group_.require_running();
    work.shape = {};
    return {sizes[0], sizes[1]};
  }

  // Lets go of what has been sent. In a CUDA graph nothing has, but the stream can be made to wait for it:
  // whoever gets its memory next uses it in the order of that stream. Schedules end with sends that wait for
  // their receivers, too.
  void drop_sends() {
    for (; !sends_.empty(); sends_.pop_front())
      if (work_.captured)
        sends_.front().work.wait();
      else if (!sends_.front().work.done())
        return;
  }

  // Starts one message. A tensor that arrives is waited for by the step that needs it, a shape at once: the
  // memory for what follows depends on it.
  void transfer(const Message& message, const Step* step = nullptr) {
    if (message.direction == Message::Direction::Send) {
      drop_sends();
      Work work = group_.send(message.tensor, message.peer);
      sends_.push_back({message.tensor, std::move(work)});
      return;
    }
    Work arrival = group_.recv(message.tensor, message.peer);
    if (!step) return arrival.wait();
    InFlight& work = at(step->chunk, step->microbatch);
    (step->payload == Payload::activation ? work.activation_arrival : work.gradient_arrival) =
        std::move(arrival);
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
