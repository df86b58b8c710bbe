#pragma once

#include <array>
#include <initializer_list>
#include <string>

#include "megatron/autograd/tracer.h"

namespace megatron {

// An op as far as its time depends on it: name, phase, and dtype and shape of the tensors that it reads and
// writes, in the order in which the op names them. A GEMM's are those of A, B and C.
struct OpKey {
  struct Operand {
    DType dtype = DType::F32;
    Shape shape;
    friend bool operator==(const Operand&, const Operand&) = default;
  };
  static constexpr size_t kMost = 4;

  const char* name = "";
  Phase phase = Phase::Other;
  size_t count = 0;  // of operands; further ones are left out
  std::array<Operand, kMost> operands;

  OpKey(const char* op, Phase when, std::initializer_list<const Tensor*> touched = {})
      : name(op), phase(when) {
    for (const Tensor* tensor : touched)
      if (tensor->defined() && count < kMost) operands[count++] = {tensor->dtype(), tensor->shape()};
  }
  friend bool operator==(const OpKey& a, const OpKey& b) {
    return std::string_view(a.name) == b.name && a.phase == b.phase && a.count == b.count &&
           a.operands == b.operands;
  }
};

// "linear forward bf16[4096,1024] bf16[3072,1024] bf16[4096,3072]"
std::string to_string(const OpKey& key);
std::string_view phase_name(Phase phase);  // "forward", "backward", "weight gradient", "other"

// A tracer that receives shapes and dtypes, too.
class OpListener : public Tracer {
 public:
  virtual void op(const OpKey& key, const Cost& cost) = 0;
  void op(const char* name, Phase phase, const Cost& cost) final { op(OpKey(name, phase), cost); }
};

// Tells a tracer of an op and, where it listens for them, of its operands.
inline void trace_op(Tracer* tracer, const char* name, Phase phase, const Cost& cost,
                     std::initializer_list<const Tensor*> touched) {
  if (!tracer) return;
  if (auto* listener = dynamic_cast<OpListener*>(tracer))
    listener->op(OpKey(name, phase, touched), cost);
  else
    tracer->op(name, phase, cost);
}

}  // namespace megatron
