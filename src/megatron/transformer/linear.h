#pragma once

#include "megatron/autograd/rematerialize.h"
#include "megatron/nn/linear.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

struct LinearOptions {
  Initializer initializer;
  bool bias = false;
  std::vector<int64_t> parts = {};  // of the output, each split over TP on its own; empty: one part
  int64_t units = 0;                // of which a rank has whole ones, such as query groups; 0: any
  std::function<SplitShard(const Shape&)> split = {};  // of the output, in place of parts and units
  bool quantizable = true;                             // nothing but the linear reads its weight
  std::optional<TensorOverlap> overlap = {};           // none: as all layers have it
};

// The output is split over the TP group: each rank has out/tp rows of the weight [out, in].
class ColumnParallelLinear final : public Module {
 public:
  ColumnParallelLinear(const std::string& name, int64_t in, int64_t out, const TensorParallel& tp,
                       const LinearOptions& options);
  // recompute_input: makes x again, where it is not saved for the weight's gradient.
  Tensor forward(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input = {});
  // The same and its activation.
  ops::LinearResult forward_activated(RankContext& ctx, const ops::ActivationOptions& options,
                                      const Tensor& x, const RecomputeFn& recompute_input = {});
  Weight weight(RankContext& ctx) { return weight_.get(ctx); }  // this rank's rows
  Parameter& parameter() { return weight_; }
  void visit(const ParameterVisitor& visitor) override;

 private:
  ops::LinearResult run(RankContext& ctx, const Tensor& x,
                        const std::optional<ops::ActivationOptions>& activation,
                        const RecomputeFn& recompute_input);

  TensorParallel tp_;
  std::shared_ptr<const ops::LinearRoute> route_;  // null: tokens are gathered before
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
  // forward(activation of x.y) as one op. The activation is kept for the weight's gradient, or made again; in
  // fp8 it is kept at half the bytes in any case.
  Tensor forward_activated(RankContext& ctx, const ops::ActivationOptions& options, bool keep_active,
                           ops::LinearResult x);
  void visit(const ParameterVisitor& visitor) override;

  bool fp8() const { return weight_.fp8 != nullptr; }

 private:
  ops::LinearCall call(RankContext& ctx) const;
  Tensor summed(RankContext& ctx, const Tensor& part) const;  // over ranks, with the bias

  TensorParallel tp_;
  std::shared_ptr<const ops::LinearRoute> route_;  // null: sums are made behind the GEMM
  Parameter weight_;
  std::unique_ptr<Parameter> bias_;
};

}  // namespace megatron
