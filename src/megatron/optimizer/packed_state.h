#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// fp32 values that are kept in a narrower form: as the low halves of masters beside bf16 parameters, or
// scaled in fp16 or fp8. Checkpoints hold them as fp32, which is made of them block by block on the host, so
// that saving to files holds no wide copy of the model.
struct PackedValues {
  // Values from as many elements of each part, in host memory.
  using Unpack = void (*)(std::span<const std::byte* const> parts, float scale, std::span<float> values);

  std::vector<Tensor> parts;  // of the values' shape each
  Tensor scale = {};          // fp32, one element for all values; undefined: there is none
  Unpack unpack = nullptr;

  const Shape& shape() const { return parts.front().shape(); }
  // The same of views of the parts.
  PackedValues with_parts(std::vector<Tensor> views) const { return {std::move(views), scale, unpack}; }
};

// A tensor of an optimizer's state in such a form, where it is computed with.
struct PackedState {
  // Between the state and fp32 values, contiguous and where the parts are, from element `begin` on.
  using Move = std::function<void(RankContext& ctx, int64_t begin, const Tensor& wide)>;

  PackedValues values;
  Move read, write;
  bool whole = false;  // all values must be moved at once: their scale depends on all of them
};

// The low halves of masters beside the parameters, contiguous both (kernels/split_float.h).
PackedState split_state(const Tensor& high, const Tensor& low);

}  // namespace megatron
