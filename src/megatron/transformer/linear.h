#pragma once

#include "megatron/autograd/rederive.h"
#include "megatron/nn/parameter.h"
#include "megatron/ops/gated_linear.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

struct LinearOptions {
  Initializer initializer;
  bool bias = false;
  std::vector<int64_t> parts;  // of the output, each split over TP on its own; empty: one part
  bool overlap = true;         // may run beside its communication, where the layout asks for that
};

// The output is split over the TP group: each rank has out/tp rows of the weight [out, in].
class ColumnParallelLinear final : public Module {
 public:
  ColumnParallelLinear(const std::string& name, int64_t in, int64_t out, const TensorParallel& tp,
                       const LinearOptions& options);
  // `again`: how x is made again, where it shall not be kept for the weight's gradient.
  Tensor forward(RankContext& ctx, const Tensor& x, const Recipe& again = {});
  void visit(const ParameterVisitor& visitor) override;

 private:
  TensorParallel tp_;
  bool overlap_;
  Parameter weight_;
  std::unique_ptr<Parameter> bias_;
};

// The input is split over the TP group: each rank has in/tp columns of the weight; partial products are
// summed. The bias is held whole and added once, after the sum.
class RowParallelLinear final : public Module {
 public:
  RowParallelLinear(const std::string& name, int64_t in, int64_t out, const TensorParallel& tp,
                    const LinearOptions& options);
  Tensor forward(RankContext& ctx, const Tensor& x);
  // forward(gated_activation(x)), which keeps x alone for the backward pass.
  Tensor forward_gated(RankContext& ctx, const ops::GatedOptions& options, const Tensor& x);
  void visit(const ParameterVisitor& visitor) override;

 private:
  Tensor biased(RankContext& ctx, const Tensor& sum);

  TensorParallel tp_;
  bool overlap_;
  Parameter weight_;
  std::unique_ptr<Parameter> bias_;
};

}  // namespace megatron
