#include "megatron/parallel/pipeline/executor.h"

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>

namespace megatron {
namespace {

using Tensors = std::vector<Tensor>;

// A micro-batch between its forward and its last backward step on one chunk.
struct InFlight {
  std::unique_ptr<Tape> tape;
  std::vector<GradSlot> inputs, outputs;  // on the tape
  std::vector<Shape> input_shapes, output_shapes;
  Tensors received;  // the activations from the previous stage, until the forward step
  Tensors results;   // of the forward step, until they are passed on; gradients do not need their memory
  Tensors output_grads, input_grads;
  std::vector<Work> activation_arrivals, gradient_arrivals;
};

// Keeps what is being sent until it has gone.
struct Sending {
  Tensor tensor;
  Work work;
};

bool is_message(const Step& step) { return step.kind == StepKind::send || step.kind == StepKind::recv; }

void wait_for(RankContext& ctx, std::vector<Work>& arrivals, const char* name) {
  if (arrivals.empty()) return;
  const TraceRange range(ctx.tracer, name);
  for (Work& arrival : arrivals) arrival.wait();
  arrivals.clear();
}

class Executor {
 public:
  Executor(RankContext& ctx, const StepPlan& plan, const PipelineWork& work, const ProcessGroup& group)
      : ctx_(ctx), plan_(plan), shape_(plan.shape), work_(work), group_(group), rank_(group.rank()) {
    losses_.resize(static_cast<size_t>(shape_.microbatches));
  }

  Tensors run() {
    const std::vector<Step>& list = plan_.steps;
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

  // What the chunk makes of its input, on the last stage the loss alone.
  Tensors results_of(const Step& step, const Tensors& input) {
    Tensors results = work_.forward(ctx_, step.chunk, step.microbatch, input);
    if (is_last(step.chunk)) results = {work_.last(ctx_, step.microbatch, results)};
    return results;
  }

  void forward(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    wait_for(ctx_, work.activation_arrivals, "forward receive");
    const TraceRange range(ctx_.tracer, "forward");
    Tensors input = std::exchange(work.received, {}), results;
    if (shape_.forward_only) {
      results = results_of(step, input);
    } else {
      work.tape = std::make_unique<Tape>(ctx_);
      for (Tensor& tensor : input) {
        tensor = work.tape->watch(tensor);
        work.inputs.push_back(tensor.grad_slot());
        work.input_shapes.push_back(tensor.shape());
      }
      TapeScope scope(ctx_, work.tape.get());
      results = results_of(step, input);
      for (const Tensor& result : results) {
        work.outputs.push_back(result.grad_slot());
        work.output_shapes.push_back(result.shape());
      }
    }
    for (Tensor& result : results) result = result.detach();
    if (is_last(step.chunk)) {
      has_loss_ = true;
      losses_[static_cast<size_t>(step.microbatch)] = results[0];
      if (shape_.forward_only) in_flight_.erase({step.chunk, step.microbatch});
    } else if (int next = local_neighbour(step.chunk, 1); next >= 0) {
      at(next, step.microbatch).received = std::move(results);
      if (shape_.forward_only) in_flight_.erase({step.chunk, step.microbatch});
    } else {
      work.results = std::move(results);
    }
  }

  void backward(const Step& step, bool defer_weight) {
    InFlight& work = at(step.chunk, step.microbatch);
    wait_for(ctx_, work.gradient_arrivals, "backward receive");
    const TraceRange range(ctx_.tracer, "backward");
    Tensors grads = std::exchange(work.output_grads, {});
    if (is_last(step.chunk)) grads = {ones_like(losses_[static_cast<size_t>(step.microbatch)])};
    ctx_.defer_weight_grads = defer_weight;
    // What depends on nothing that learns has no slot: a frozen first stage has nothing to do.
    for (size_t i = work.outputs.size(); i-- > 0;)
      if (!work.outputs[i]) {
        work.outputs.erase(work.outputs.begin() + static_cast<std::ptrdiff_t>(i));
        grads.erase(grads.begin() + static_cast<std::ptrdiff_t>(i));
      }
    work.tape->backward_data(ctx_, work.outputs, grads, is_last(step.chunk));
    ctx_.defer_weight_grads = false;
    for (size_t i = 0; i < work.inputs.size(); ++i) {
      Tensor grad = work.tape->take_grad(work.inputs[i]);
      work.input_grads.push_back(grad ? std::move(grad) : ctx_.zeros(work.input_shapes[i], work_.dtype));
    }
    if (int previous = local_neighbour(step.chunk, -1); previous >= 0)
      at(previous, step.microbatch).output_grads = std::exchange(work.input_grads, {});
    if (!defer_weight) finish(step);
  }

  Tensor ones_like(const Tensor& loss) { return ctx_.full(loss.shape(), loss.dtype(), 1); }

  void weight(const Step& step) {
    const TraceRange range(ctx_.tracer, "weight gradients");
    at(step.chunk, step.microbatch).tape->backward_weight(ctx_);
    finish(step);
  }

  // Done, unless its input's gradients still wait to be sent.
  void finish(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    work.tape.reset();
    if (work.input_grads.empty()) in_flight_.erase({step.chunk, step.microbatch});
  }

  // A run of messages between two computations.
  void pass_on(std::span<const Step> steps) {
    std::vector<Message> batch;
    for (const Step& step : steps) {
      for (Message& message : messages(step))
        if (work_.overlap)
          transfer(message, step);
        else
          batch.push_back(std::move(message));
    }
    if (!batch.empty()) group_.batch_send_recv(batch).wait();
  }

  // What a send takes from this rank's work, or a receive adds to it.
  std::vector<Message> messages(const Step& step) {
    InFlight& work = at(step.chunk, step.microbatch);
    const bool activation = step.payload == Payload::activation;
    std::vector<Message> list;
    if (step.kind == StepKind::recv) {
      Tensors& targets = activation ? work.received : work.output_grads;
      for (const Shape& shape :
           activation ? work_.input_shapes(stage(step.chunk), step.microbatch) : work.output_shapes) {
        targets.push_back(ctx_.empty(shape, work_.dtype, MemoryTag::Communication));
        list.push_back({Message::Direction::Recv, targets.back(), step.peer});
      }
      return list;
    }
    for (Tensor& tensor : std::exchange(activation ? work.results : work.input_grads, {}))
      list.push_back({Message::Direction::Send, std::move(tensor), step.peer});
    if (activation ? shape_.forward_only : !work.tape) in_flight_.erase({step.chunk, step.microbatch});
    return list;
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

  // Starts one message. What arrives is waited for by the step that needs it.
  void transfer(const Message& message, const Step& step) {
    if (message.direction == Message::Direction::Send) {
      const TraceRange range(ctx_.tracer,
                             step.payload == Payload::activation ? "forward send" : "backward send");
      drop_sends();
      Work work = group_.send(message.tensor, message.peer);
      sends_.push_back({message.tensor, std::move(work)});
      return;
    }
    InFlight& work = at(step.chunk, step.microbatch);
    (step.payload == Payload::activation ? work.activation_arrivals : work.gradient_arrivals)
        .push_back(group_.recv(message.tensor, message.peer));
  }

  RankContext& ctx_;
  const StepPlan& plan_;
  const PipelineShape& shape_;
  const PipelineWork& work_;
  const ProcessGroup& group_;
  int rank_;
  bool has_loss_ = false;
  std::map<std::pair<int, int>, InFlight> in_flight_;
  std::deque<Sending> sends_;
  Tensors losses_;
};

}  // namespace

std::vector<Tensor> run_pipeline(RankContext& ctx, const StepPlan& plan, const PipelineWork& work,
                                 const ProcessGroup& group) {
  return Executor(ctx, plan, work, group).run();
}

}  // namespace megatron
