#include "megatron/nn/causal_mask.h"

#include <numeric>

#include "megatron/ops/elementwise.h"

namespace megatron {

Tensor causal_mask(RankContext& ctx, int64_t length) {
  std::vector<int64_t> positions(static_cast<size_t>(length));
  std::iota(positions.begin(), positions.end(), 0);
  const Tensor at = ctx.from_vector(positions, {length});
  return ops::compare(ctx, Comparison::LessEqual, at.view({1, length}), at.view({length, 1}));
}

}  // namespace megatron
