#include "megatron/nn/parameter_slice.h"

namespace megatron {

std::vector<ParameterSlice> whole_slices(std::span<Parameter* const> parameters) {
  std::vector<ParameterSlice> slices;
  for (Parameter* parameter : parameters)
    if (parameter->trainable)
      slices.push_back({parameter, 0, parameter->value, parameter->accumulator.main_grad});
  return slices;
}

}  // namespace megatron
