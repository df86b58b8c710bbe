#include "megatron/autograd/recompute.h"

namespace megatron {
namespace {

class RecomputeNode final : public Node {
 public:
  RecomputeNode(RankContext& ctx, std::span<const Tensor> inputs, size_t outputs, RegionBody body)
      : outputs_(outputs), body_(std::move(body)) {
    for (const Tensor& input : inputs) {
      inputs_.emplace_back(ctx, input);
      slots_.push_back(input.grad_slot());
    }
  }
  const char* name() const override { return "recompute"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    inner_ = std::make_unique<Tape>(ctx);
    std::vector<Tensor> inputs, results;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      Tensor input = inputs_[i].get(ctx);
      inputs.push_back(slots_[i] ? inner_->watch(input) : input);
    }
    inputs_.clear();
    {
      TapeScope scope(ctx, inner_.get());
      results = body_(ctx, inputs);
    }
    std::vector<Tensor> reached, grads;
    for (size_t i = 0; i < outputs_; ++i) {
      Tensor grad = tape.take_grad(output(static_cast<int>(i)));
      if (!grad || !inner_->tracks(results[i])) continue;
      reached.push_back(std::move(results[i]));
      grads.push_back(std::move(grad));
    }
    results.clear();
    inner_->backward_data(ctx, reached, grads);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (slots_[i]) tape.add_grad(ctx, slots_[i], inner_->take_grad(inputs[i].grad_slot()));
    body_ = nullptr;
  }
  void backward_weight(RankContext& ctx) override { inner_->backward_weight(ctx); }
  bool has_weight_step() const override { return true; }

 private:
  std::vector<Saved> inputs_;
  std::vector<GradSlot> slots_;
  size_t outputs_;
  RegionBody body_;
  std::unique_ptr<Tape> inner_;
};

}  // namespace

std::vector<Tensor> recompute(RankContext& ctx, std::span<const Tensor> inputs, RegionBody body) {
  if (!ctx.tape) return body(ctx, inputs);
  for (const Tensor& input : inputs) ctx.tracks(input);
  Tape* tape = ctx.tape;
  std::vector<Tensor> detached(inputs.size()), results;
  for (size_t i = 0; i < inputs.size(); ++i) detached[i] = inputs[i].detach();
  {
    NoGrad no_grad(ctx);
    results = body(ctx, detached);
  }
  auto node = std::make_unique<RecomputeNode>(ctx, inputs, results.size(), std::move(body));
  std::vector<Tensor*> outputs;
  for (Tensor& result : results) outputs.push_back(&result);
  tape->record(std::move(node), outputs);
  return results;
}

}  // namespace megatron
