#pragma once

#include <functional>
#include <string_view>

#include "megatron/nn/parameter_slice.h"

namespace megatron {

// A tensor of an optimizer's state, for checkpoints: "master", "exp_avg", … of a slice.
struct OptimizerTensor {
  std::string_view kind;
  const ParameterSlice* slice;
  Tensor tensor;
};

// A factor of the learning rate of one parameter; empty: 1 for all.
using LearningRateScale = std::function<double(const Parameter&)>;

// How the fp32 values of narrower parameters are kept.
enum class Masters {
  Whole,  // copies
  Split,  // only the low halves of them beside bf16 parameters, which are the high ones: 2 bytes less each
};

// Updates the slices of parameters that a rank owns, each with an fp32 master copy where the model is
// narrower.
class Optimizer {
 public:
  Optimizer(RankContext& ctx, std::vector<ParameterSlice> slices, Masters masters = Masters::Whole);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;  // the tensors of its state point at its slices
  Optimizer& operator=(const Optimizer&) = delete;

  // One update with the slices' gradients times `gradient_scale` (one element, optional). Where `gate` (bool
  // [1], optional) is false, nothing changes but steps(), which the caller sets back.
  virtual void step(RankContext& ctx, double lr, const Tensor& gradient_scale = {},
                    const Tensor& gate = {}) = 0;
  // For checkpoints. Split masters come as whole copies, which take_masters() splits again after a load.
  virtual std::vector<OptimizerTensor> state(RankContext& ctx) const = 0;
  void take_masters(RankContext& ctx, std::span<const OptimizerTensor> state);
  void read_parameters(RankContext& ctx);  // after values were set from elsewhere: the masters follow

  std::span<const ParameterSlice> slices() const { return slices_; }
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 protected:
  // Biases and norms (one dimension) are not decayed.
  static bool decayed(const ParameterSlice& slice) { return slice.parameter->decayed(); }
  // One for each slice, in the masters' dtype, or in this one where that is fp32.
  std::vector<Tensor> zeros(RankContext& ctx, DType narrow = DType::F32) const;
  void append_masters(RankContext& ctx, std::vector<OptimizerTensor>& list) const;
  void append(std::vector<OptimizerTensor>& list, std::string_view kind,
              std::span<const Tensor> tensors) const;  // those that are defined

  std::vector<ParameterSlice> slices_;
  std::vector<Tensor> masters_;     // undefined where the parameter itself is wide enough
  std::vector<Tensor> remainders_;  // defined where a master is split
  int64_t steps_ = 0;
};

}  // namespace megatron
