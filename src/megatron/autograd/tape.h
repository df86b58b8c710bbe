#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "megatron/autograd/node.h"

namespace megatron {

// What a forward pass did, in order; walked in reverse for gradients. One per (model chunk, micro-batch), and
// several may be alive at once. A tape runs backward once.
class Tape {
 public:
  explicit Tape(RankContext& ctx);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // The tensor as an input whose gradient is wanted.
  Tensor watch(const Tensor& tensor);
  bool tracks(const Tensor& tensor) const { return tensor.grad_slot().tape == id_; }

  // Takes the node over and marks its outputs as its own; call with the tensors the op returns.
  void record(std::unique_ptr<Node> node, std::span<Tensor*> outputs);

  // Gradients of `outputs` are given; an undefined one stands for 1 and needs an output of one element. Runs
  // B of every node, and W too unless deferred.
  void backward(RankContext& ctx, const Tensor& output, const Tensor& grad = {});
  void backward_data(RankContext& ctx, std::span<const Tensor> outputs, std::span<const Tensor> grads);
  // The same where only the slots of the outputs were kept, and their memory has gone. is_one: the gradients
  // are known to be 1.
  void backward_data(RankContext& ctx, std::span<const GradSlot> outputs, std::span<const Tensor> grads,
                     bool is_one = false);
  void backward_weight(RankContext& ctx);

  // Of a watched tensor, after backward; undefined where no gradient reached it.
  Tensor grad(const Tensor& watched) const;
  // Called with the complete gradient of a tensor during backward; what it returns takes its place.
  void on_grad(const Tensor& tensor, std::function<Tensor(RankContext&, const Tensor&)> hook);
  // Called when the backward pass has come back to this point of the forward pass.
  void on_backward(std::function<void(RankContext&)> call);

  // For nodes.
  Tensor take_grad(GradSlot slot);  // moved out; undefined where none arrived
  void add_grad(RankContext& ctx, GradSlot slot,
                Tensor grad);  // a view is copied: what is taken is contiguous

  // Whether the gradient of this output is 1 because the backward pass starts there and nothing else uses it.
  bool starts_at(GradSlot slot) const;

  size_t size() const { return nodes_.size(); }

 private:
  struct Hook {
    uint32_t slot;
    std::function<Tensor(RankContext&, const Tensor&)> call;
  };
  void start_backward();
  void walk(RankContext& ctx);
  void run_hooks(RankContext& ctx, uint32_t first, uint32_t count);

  uint32_t id_;
  uint32_t slots_ = 0;
  bool ran_ = false;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Node>> waiting_for_weight_;
  std::vector<Tensor> grads_;  // by slot; filled during backward
  std::vector<uint32_t> starts_;
  std::vector<Hook> hooks_;
};

}  // namespace megatron
