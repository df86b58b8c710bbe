#include "megatron/nn/quantize_parameter.h"

#include "megatron/kernels/narrow_weight.h"
#include "megatron/ops/quantized_weight.h"

namespace megatron {

bool quantize_parameter(RankContext& ctx, Parameter& parameter, DType dtype) {
  const bool grouped = parameter.value.rank() > 2;
  if (!parameter.quantizable || (grouped && ctx.device.type == DeviceType::Cuda)) return false;
  if (parameter.value.size(-1) % numbers_in_element(dtype)) return false;
  // The table's rows are looked up one at a time, also where it is the head.
  const bool by_row = parameter.name.ends_with("word_embeddings.weight");
  Weight small = ops::quantize_weight(ctx, parameter.value, dtype, by_row);
  parameter.wide = small.wide;
  parameter.value = std::move(small.value);
  parameter.scale = std::move(small.scale);
  parameter.trainable = false;
  return true;
}

}  // namespace megatron
