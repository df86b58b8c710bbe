#include "megatron/nn/parameter_slice.h"

#include <algorithm>

namespace megatron {

std::vector<ParameterSlice::Piece> ParameterSlice::pieces() const {
  const int64_t numel = parameter->shard.local_shape.numel();
  if (part == 0) return {{0, 0, numel}};
  std::vector<Piece> result;
  for (int64_t rank = bucket_offset / part; rank * part < bucket_offset + numel; ++rank)
    result.push_back({static_cast<int>(rank), std::max<int64_t>(0, rank * part - bucket_offset),
                      std::min(numel, (rank + 1) * part - bucket_offset)});
  return result;
}

std::vector<ParameterSlice> whole_slices(std::span<Parameter* const> parameters) {
  std::vector<ParameterSlice> slices;
  for (Parameter* parameter : parameters)
    if (parameter->trainable)
      slices.push_back({parameter, 0, parameter->value, parameter->accumulator.main_grad});
  return slices;
}

}  // namespace megatron
