#include "megatron/optimizer/packed_state.h"

#include <bit>

#include "megatron/base/error.h"
#include "megatron/kernels/split_float.h"

namespace megatron {
namespace {

void unpack_split(std::span<const std::byte* const> parts, float /*scale*/, std::span<float> values) {
  const auto* high = reinterpret_cast<const uint16_t*>(parts[0]);
  const auto* low = reinterpret_cast<const int16_t*>(parts[1]);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<float>(join_float({high[i], low[i]}));
}

Tensor elements(const Tensor& tensor, int64_t begin, int64_t count) {
  return tensor.detach().view({tensor.numel()}).slice(0, begin, begin + count);
}

}  // namespace

PackedState split_state(const Tensor& high, const Tensor& low) {
  require(high.is_contiguous() && low.is_contiguous(), "optimizer: {} and {} are not contiguous", high, low);
  const auto move = [high, low](bool join) {
    return [=](RankContext& ctx, int64_t begin, const Tensor& wide) {
      const int64_t count = wide.numel();
      ctx.kernels->split_float(ctx.kernel_context(),
                               {wide, elements(high, begin, count), elements(low, begin, count), join});
    };
  };
  return {{{high, low}, {}, unpack_split}, move(true), move(false)};
}

}  // namespace megatron
