#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "megatron/nn/parameter_slice.h"
#include "megatron/optimizer/packed_state.h"
#include "megatron/optimizer/scaled_state.h"

namespace megatron {

// A tensor of an optimizer's state, for checkpoints: "master", "exp_avg", … of a slice.
struct OptimizerTensor {
  std::string_view kind;
  const ParameterSlice* slice;
  Tensor tensor;                           // undefined where it is packed
  std::optional<PackedState> packed = {};  // what is kept in another form, as fp32
  std::optional<ShardSpec> shard = {};     // where the tensor has not the slice's shape: its own
};

// The rates of one step.
struct Rates {
  Rates(double rate) : lr(rate) {}
  Rates(double rate, std::optional<double> decoupled, std::optional<double> decay)
      : lr(rate), decoupled_lr(decoupled), weight_decay(decay) {}

  double lr;
  std::optional<double> decoupled_lr = {};  // of parameters that have a rate of their own; empty: lr
  std::optional<double> weight_decay = {};  // empty: the optimizer's own
};

// Tensors that an update changes one group after the other.
using ChangeGroups = std::vector<std::vector<Tensor>>;

// How parameters differ in their rates. An empty function: all are alike.
struct ParameterGroups {
  std::function<double(const Parameter&)> lr_scale = {};  // a factor of the learning rate
  std::function<bool(const Parameter&)> decoupled = {};   // whether Rates::decoupled_lr is its rate
  std::function<bool(const Parameter&)> decayed = {};     // empty: Parameter::decayed()
};

// How the fp32 values of narrower parameters are kept.
enum class Masters {
  Whole,  // copies
  Split,  // only the low halves of them beside bf16 parameters, which are the high ones: 2 bytes less each
  Half,   // copies in fp16 with a scale
  None,   // not at all: parameters are updated as they are
};

// Updates the slices of parameters that a rank owns, each with an fp32 master copy where the model is
// narrower.
class Optimizer {
 public:
  Optimizer(RankContext& ctx, std::vector<ParameterSlice> slices, ParameterGroups groups = {},
            Masters masters = Masters::Whole);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;  // the tensors of its state point at its slices
  Optimizer& operator=(const Optimizer&) = delete;

  // One update with the slices' gradients times `gradient_scale` (one element, optional). Where `gate` (bool
  // [1], optional) is false, nothing changes but steps(), which the caller sets back.
  virtual void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale = {},
                    const Tensor& gate = {}) = 0;
  // For checkpoints, in place: what is written into a tensor is the state from then on.
  virtual std::vector<OptimizerTensor> state() const = 0;
  // The tensors that step_by_groups() changes, in groups in the order in which it does: values and state.
  virtual ChangeGroups change_groups() const;
  // step(), which calls `before` with the number of a group before it changes anything of that: where
  // something else still reads these tensors, it waits there.
  virtual void step_by_groups(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale,
                              const Tensor& gate, const std::function<void(size_t group)>& before);
  // Before state() is filled by a load that has set the parameters.
  virtual void begin_load(RankContext& /*ctx*/) {}
  // Scales the rows of a parameter by factors [local rows, 1], before its new values are published; passes
  // over those of other optimizers.
  virtual void multiply(RankContext& ctx, const Parameter& parameter, const Tensor& factors);
  virtual void read_parameters(RankContext& ctx);  // after values were set from elsewhere: the masters follow

  std::span<const ParameterSlice> slices() const { return slices_; }
  // The same with the fp32 masters as values, where they are kept whole.
  virtual std::vector<ParameterSlice> master_slices() const;
  int64_t steps() const { return steps_; }
  virtual void set_steps(int64_t steps) { steps_ = steps; }

 protected:
  double lr_scale(const ParameterSlice& slice) const;
  double lr_of(const ParameterSlice& slice, const Rates& rates) const;
  // 0 where a parameter does not decay; `usual` where the step's rates say nothing.
  double decay_of(const ParameterSlice& slice, const Rates& rates, double usual) const;
  // The gradient of slice i times `gradient_scale` (optional), a copy in the masters' dtype.
  Tensor scaled_gradient(RankContext& ctx, size_t i, const Tensor& gradient_scale) const;
  // target = fresh where the gate (optional) is open.
  static void store(RankContext& ctx, const Tensor& fresh, const Tensor& target, const Tensor& gate);
  // One for each slice, in the masters' dtype, or in this one where that is fp32; undefined where that needs
  // a scale.
  std::vector<Tensor> zeros(RankContext& ctx, DType narrow = DType::F32) const;
  // Those that zeros() leaves undefined.
  std::vector<ScaledState> scaled_zeros(RankContext& ctx, DType narrow) const;
  void append_masters(std::vector<OptimizerTensor>& list) const;
  void append(std::vector<OptimizerTensor>& list, std::string_view kind, std::span<const Tensor> tensors,
              std::span<const ScaledState> scaled = {}) const;  // those that are defined
  static void append_changed(std::vector<Tensor>& list, const OptimizerTensor& entry);
  // The value that is updated, in the masters' dtype: itself, or a copy that set_wide() takes back.
  Tensor wide_value(RankContext& ctx, size_t i) const;
  void set_wide(RankContext& ctx, size_t i, const Tensor& wide);

  std::vector<ParameterSlice> slices_;
  ParameterGroups groups_;
  std::vector<Tensor> masters_;     // undefined where the parameter itself is wide enough
  std::vector<Tensor> remainders_;  // defined where a master is split
  std::vector<ScaledState> half_masters_;
  int64_t steps_ = 0;
};

}  // namespace megatron
