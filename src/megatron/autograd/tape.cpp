#include "megatron/autograd/tape.h"

#include <algorithm>

#include "megatron/autograd/rank_context.h"

namespace megatron {
namespace {

// Has no outputs, so nothing reaches it but the walk itself.
class MarkNode final : public Node {
 public:
  explicit MarkNode(std::function<void(RankContext&)> call) : call_(std::move(call)) {}
  const char* name() const override { return "mark"; }
  void backward_data(RankContext& ctx, Tape&) override { call_(ctx); }

 private:
  std::function<void(RankContext&)> call_;
};

}  // namespace

Tape::Tape(RankContext& ctx) : id_(++ctx.tapes_made) {}
Tape::~Tape() = default;

Tensor Tape::watch(const Tensor& tensor) {
  require(is_floating(tensor.dtype()), "watch: {} has no gradient", tensor);
  return tensor.with_grad_slot({id_, slots_++});
}

void Tape::record(std::unique_ptr<Node> node, std::span<Tensor*> outputs) {
  node->tape_id_ = id_;
  node->first_output_ = slots_;
  node->outputs_ = static_cast<uint32_t>(outputs.size());
  for (Tensor* output : outputs) *output = output->with_grad_slot({id_, slots_++});
  nodes_.push_back(std::move(node));
}

void Tape::backward(RankContext& ctx, const Tensor& output, const Tensor& grad) {
  require(grad || output.numel() == 1, "backward: {} has {} elements, so its gradient must be given", output,
          output.numel());
  backward_data(ctx, {&output, 1}, {&grad, 1});
  if (!ctx.defer_weight_grads) backward_weight(ctx);
}

void Tape::backward_data(RankContext& ctx, std::span<const Tensor> outputs, std::span<const Tensor> grads) {
  start_backward();
  require(outputs.size() == grads.size(), "backward: {} outputs but {} gradients", outputs.size(),
          grads.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    require(tracks(outputs[i]), "backward: {} does not depend on anything this tape recorded", outputs[i]);
    if (!grads[i]) {
      require(outputs[i].numel() == 1, "backward: the gradient of {}, which is not one element, is missing",
              outputs[i]);
      add_grad(ctx, outputs[i].grad_slot(), ctx.full(outputs[i].shape(), outputs[i].dtype(), 1));
      starts_.push_back(outputs[i].grad_slot().index);
      continue;
    }
    require(outputs[i].shape() == grads[i].shape(), "backward: the gradient {} does not fit the output {}",
            grads[i], outputs[i]);
    add_grad(ctx, outputs[i].grad_slot(), grads[i].detach());
  }
  walk(ctx);
}

void Tape::backward_data(RankContext& ctx, std::span<const GradSlot> outputs, std::span<const Tensor> grads,
                         bool is_one) {
  require(outputs.size() == grads.size(), "backward: {} outputs but {} gradients", outputs.size(),
          grads.size());
  start_backward();
  for (size_t i = 0; i < outputs.size(); ++i) {
    require(outputs[i].tape == id_, "backward: the output is not of this tape");
    add_grad(ctx, outputs[i], grads[i].detach());
    if (is_one) starts_.push_back(outputs[i].index);
  }
  walk(ctx);
}

void Tape::start_backward() {
  require(!ran_,
          "backward: this tape ran backward already, and what its nodes had saved is gone; record the "
          "forward pass again");
  ran_ = true;
  grads_.resize(slots_);
}

void Tape::walk(RankContext& ctx) {
  NoGrad no_grad(ctx);
  while (!nodes_.empty()) {
    std::unique_ptr<Node> node = std::move(nodes_.back());
    nodes_.pop_back();
    auto first = grads_.begin() + node->first_output_;
    bool reached = node->outputs_ == 0 ||
                   std::any_of(first, first + node->outputs_, [](const Tensor& g) { return g.defined(); });
    if (!reached) continue;
    if (!hooks_.empty()) run_hooks(ctx, node->first_output_, node->outputs_);
    const TraceRange range(ctx.tracer, node->name());
    node->backward_data(ctx, *this);
    for (uint32_t i = 0; i < node->outputs_; ++i) grads_[node->first_output_ + i] = {};
    if (node->has_weight_step()) {
      if (ctx.defer_weight_grads)
        waiting_for_weight_.push_back(std::move(node));
      else
        node->backward_weight(ctx);
    }
  }
  if (!hooks_.empty()) run_hooks(ctx, 0, slots_);
}

void Tape::backward_weight(RankContext& ctx) {
  NoGrad no_grad(ctx);
  for (auto& node : waiting_for_weight_) {
    const TraceRange range(ctx.tracer, node->name());
    node->backward_weight(ctx);
    node.reset();
  }
  waiting_for_weight_.clear();
}

Tensor Tape::grad(const Tensor& watched) const {
  require(tracks(watched), "grad: {} is not on this tape", watched);
  require(ran_, "grad: this tape has not run backward yet");
  return grads_[watched.grad_slot().index];
}

void Tape::on_grad(const Tensor& tensor, std::function<Tensor(RankContext&, const Tensor&)> hook) {
  require(tracks(tensor), "on_grad: {} is not on this tape", tensor);
  hooks_.push_back({tensor.grad_slot().index, std::move(hook)});
}

void Tape::on_backward(std::function<void(RankContext&)> call) {
  record(std::make_unique<MarkNode>(std::move(call)), {});
}

void Tape::run_hooks(RankContext& ctx, uint32_t first, uint32_t count) {
  for (auto& hook : hooks_) {
    if (hook.slot - first >= count || !hook.call || !grads_[hook.slot].defined()) continue;
    if (Tensor replaced = hook.call(ctx, grads_[hook.slot])) {
      grads_[hook.slot] = replaced;
      std::erase(starts_, hook.slot);
    }
    hook.call = nullptr;
  }
}

bool Tape::starts_at(GradSlot slot) const {
  return std::find(starts_.begin(), starts_.end(), slot.index) != starts_.end();
}

Tensor Tape::take_grad(GradSlot slot) { return std::move(grads_[slot.index]); }

void Tape::add_grad(RankContext& ctx, GradSlot slot, Tensor grad) {
  if (!slot || !grad) return;
  if (!grad.is_contiguous()) {
    Tensor dense = ctx.empty_like(grad);
    ctx.kernels->copy(ctx.kernel_context(), {grad, dense});
    ctx.trace("add_grad", Phase::BackwardData, 0, 2.0 * static_cast<double>(dense.bytes()));
    grad = std::move(dense);
  }
  Tensor& sum = grads_[slot.index];
  if (!sum) {
    sum = std::move(grad);
    return;
  }
  require(sum.shape() == grad.shape(), "backward: gradients {} and {} of one tensor differ in shape", sum,
          grad);
  std::erase(starts_, slot.index);
  // A gradient that someone else still holds must not change under them.
  bool in_place = sum.storage().unique() && sum.is_contiguous();
  Tensor out = in_place ? sum : ctx.empty_like(sum);
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, sum, grad, out});
  ctx.trace("add_grad", Phase::BackwardData, static_cast<double>(out.numel()),
            3.0 * static_cast<double>(out.bytes()));
  sum = std::move(out);
}

}  // namespace megatron
