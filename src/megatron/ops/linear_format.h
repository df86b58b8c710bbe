#pragma once

#include <memory>

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// A matrix as the GEMMs of a linear read it: as it is, or in fp8. Those of fp8 read both operands along the
// dimension that they sum over, so that the transposed matrix is there too; one scale serves all of it, or
// one each block of block_rows × 128.
struct Operand {
  Tensor data, transposed;                 // [rows, columns], [columns, rows]
  Tensor inverse_scale, transposed_scale;  // as GemmArgs wants them; of one scale twice the same
  int64_t block_rows = 0;                  // 0: one scale; 1 or 128
  Tensor wide;                             // beside fp8, the matrix as it was, where wgrad() reads that

  // What wgrad() reads of it.
  Tensor Operand::*weight_form() const {
    return wide ? &Operand::wide : transposed ? &Operand::transposed : &Operand::data;
  }
  // Rows [begin, begin + count) of it, as forward() and dgrad() read them.
  Operand rows(RankContext& ctx, int64_t begin, int64_t count) const;
};

// How the three GEMMs of a linear are made: which numbers they read, and by which kernel. It is no node, and
// does not know where inputs come from and where results go.
class LinearFormat {
 public:
  enum class Side : uint8_t { Input, Gradient };

  virtual ~LinearFormat() = default;
  virtual const char* name() const = 0;  // as nodes and tracers call it
  virtual Operand quantize(RankContext& ctx, const Tensor& x, Side side) const = 0;
  // y = x · weightᵀ (+ bias)
  virtual void forward(RankContext& ctx, const Operand& x, const Weight& weight, const Tensor& bias,
                       const Tensor& y) const = 0;
  // dx = dy · weight
  virtual void dgrad(RankContext& ctx, const Operand& dy, const Weight& weight, const Tensor& dx) const = 0;
  // main_grad = beta · main_grad + dyᵀ · x. The caller tells the accumulator that it has contributed.
  virtual void wgrad(RankContext& ctx, const Operand& dy, const Operand& x,
                     GradAccumulator& accumulator) const = 0;
};

// Numbers as they are.
std::shared_ptr<const LinearFormat> plain_format();

}  // namespace megatron::ops
