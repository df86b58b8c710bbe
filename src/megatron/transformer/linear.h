#pragma once

#include "megatron/autograd/rematerialize.h"
#include "megatron/nn/parameter.h"
#include "megatron/ops/activated_linear.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

struct LinearOptions {
  Initializer initializer;
  bool bias = false;
  std::vector<int64_t> parts = {};  // of the output, each split over TP on its own; empty: one part
  int64_t units = 0;                // of which a rank has whole ones, such as query groups; 0: any
  std::function<SplitShard(const Shape&)> split = {};  // of the output, in place of parts and units
  bool takes_int8 = true;                              // nothing but the linear reads its weight
  bool overlap = true;  // may run beside its communication, where the layout asks for that
};

// The output is split over the TP group: each rank has out/tp rows of the weight [out, in].
class ColumnParallelLinear final : public Module {
 public:
  ColumnParallelLinear(const std::string& name, int64_t in, int64_t out, const TensorParallel& tp,
                       const LinearOptions& options);
  // recompute_input: makes x again, where it is not saved for the weight's gradient.
  Tensor forward(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input = {});
  // The same and, where one kernel may make both, its activation.
  ops::ActivatedLinear forward_activated(RankContext& ctx, const ops::ActivationOptions& options,
                                         const Tensor& x, const RecomputeFn& recompute_input = {});
  Weight weight(RankContext& ctx) { return weight_.get(ctx); }  // this rank's rows
  Parameter& parameter() { return weight_; }
  void visit(const ParameterVisitor& visitor) override;

 private:
  template <class F>
  auto with_input(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input, F&& f);

  TensorParallel tp_;
  bool overlap_;
  Parameter weight_;
  std::unique_ptr<Parameter> bias_;
};

// The input is split over the TP group: each rank has in/tp columns of the weight; partial results are
// summed. The bias is held whole and added once, after the sum.
class RowParallelLinear final : public Module {
 public:
  RowParallelLinear(const std::string& name, int64_t in, int64_t out, const TensorParallel& tp,
                    const LinearOptions& options);
  Tensor forward(RankContext& ctx, const Tensor& x);
  // forward(activation of x.y) as one op, where it can be: in fp8 the activation is kept for the weight's
  // gradient at half the bytes, and beside its communication a GEMM is cut to pieces.
  bool fp8() const { return weight_.fp8 != nullptr; }
  bool takes_activation() const { return !fp8() && (tp_.size() == 1 || !overlap_); }
  Tensor forward_activated(RankContext& ctx, const ops::ActivatedLinearOptions& options,
                           ops::ActivatedLinear x);
  void visit(const ParameterVisitor& visitor) override;

 private:
  Tensor biased(RankContext& ctx, const Tensor& sum);

  TensorParallel tp_;
  bool overlap_;
  Parameter weight_;
  std::unique_ptr<Parameter> bias_;
};

}  // namespace megatron
