#pragma once

#include <cmath>

#include "megatron/nn/parameter.h"
#include "megatron/ops/quantize.h"

// What the rounding of weights costs.
namespace megatron::testing {

inline double relative_error(const std::vector<float>& found, const std::vector<float>& exact) {
  double error = 0, size = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(found[i] - exact[i], 2);
    size += std::pow(exact[i], 2);
  }
  return std::sqrt(error / size);
}

// The values that a quantised parameter stands for.
inline Tensor stored_values(RankContext& ctx, const Parameter& parameter, DType dtype) {
  const DType narrow = parameter.value.dtype();
  Shape shape = parameter.value.shape();
  const int64_t rows = parameter.value.numel() / shape[-1];
  shape[-1] *= numbers_in_element(narrow);
  return ops::dequantize(
             ctx,
             {parameter.value.view({rows, -1}), parameter.scale.view({rows, -1}), 1, scale_columns(narrow)},
             dtype)
      .view(shape);
}

// The step between the values that each number of a quantised parameter can have.
inline std::vector<float> steps_of(RankContext& ctx, const Parameter& parameter, size_t numbers) {
  Tensor wide = ctx.empty(parameter.scale.shape(), DType::F32);
  ctx.kernels->copy(ctx.kernel_context(), {parameter.scale, wide});
  const std::vector<float> scales = ctx.to_vector<float>(wide);
  const auto groups = static_cast<size_t>(parameter.scale.size(-1)),
             group = static_cast<size_t>(scale_columns(parameter.value.dtype()));
  const size_t columns = numbers * groups / scales.size();
  std::vector<float> steps(numbers);
  for (size_t i = 0; i < numbers; ++i)
    steps[i] = std::abs(scales[i / columns * groups + i % columns / group]);
  return steps;
}

}  // namespace megatron::testing
