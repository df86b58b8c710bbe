#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

struct RankContext;
class Tape;

// One differentiable step of the forward pass. It knows where its outputs' gradients are found and its
// inputs' go.
class Node {
 public:
  virtual ~Node() = default;
  virtual const char* name() const = 0;

  // Reads the outputs' gradients (Tape::take_grad), adds the inputs' (Tape::add_grad), and cheap weight
  // gradients. What is kept afterwards is only what backward_weight needs.
  virtual void backward_data(RankContext& ctx, Tape& tape) = 0;
  // The expensive weight gradients, run at once or later (zero-bubble schedules).
  virtual void backward_weight(RankContext&) {}
  virtual bool has_weight_step() const { return false; }

  GradSlot output(int i = 0) const { return {tape_id_, first_output_ + static_cast<uint32_t>(i)}; }

 private:
  friend class Tape;
  uint32_t tape_id_ = 0, first_output_ = 0, outputs_ = 0;
};

}  // namespace megatron
