#include "megatron/optimizer/adam.h"

namespace megatron {

Adam::Adam(RankContext& ctx, std::vector<Parameter*> parameters, const AdamOptions& options)
    : options_(options) {
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable) continue;
    const Tensor& value = parameter->value;
    DType wide = accumulation_dtype(value.dtype());
    State state{parameter,
                {},
                ctx.zeros(value.shape(), wide, MemoryTag::Optimizer),
                ctx.zeros(value.shape(), wide, MemoryTag::Optimizer)};
    if (value.dtype() != wide) {
      state.master = ctx.empty(value.shape(), wide, MemoryTag::Optimizer);
      ctx.kernels->copy(ctx.kernel_context(), {value, state.master});
    }
    states_.push_back(std::move(state));
  }
}

void Adam::step(RankContext& ctx, double lr, const Tensor& gradient_scale) {
  std::vector<AdamTensor> tensors;
  tensors.reserve(states_.size());
  for (State& state : states_) {
    Parameter& p = *state.parameter;
    if (!p.sink.has_value()) continue;
    tensors.push_back({.parameter = p.value,
                       .master = state.master,
                       .gradient = p.sink.main_grad,
                       .first = state.first,
                       .second = state.second,
                       .weight_decay = p.decayed() ? options_.weight_decay : 0.0});
  }
  ctx.kernels->adam(ctx.kernel_context(), {.tensors = tensors,
                                           .lr = lr,
                                           .beta1 = options_.beta1,
                                           .beta2 = options_.beta2,
                                           .epsilon = options_.epsilon,
                                           .step = ++steps_,
                                           .decoupled = options_.decoupled,
                                           .gradient_scale = gradient_scale});
  if (!ctx.tracer) return;
  double elements = 0, bytes = 0;
  for (const AdamTensor& t : tensors) {
    elements += static_cast<double>(t.first.numel());
    bytes += static_cast<double>(t.gradient.bytes() + 2 * (t.first.bytes() + t.second.bytes()));
    // The copy that is updated is read and written; where there is a master, the parameter is written alone.
    bytes += static_cast<double>(t.master.defined() ? 2 * t.master.bytes() + t.parameter.bytes()
                                                    : 2 * t.parameter.bytes());
  }
  ctx.trace("adam", Phase::Other, 14 * elements, bytes);
}

}  // namespace megatron
