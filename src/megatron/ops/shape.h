#pragma once

#include <span>
#include <vector>

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Views and rearrangements that gradients flow through. All but contiguous and concat share x's memory.
Tensor view(RankContext& ctx, const Tensor& x, const Shape& shape);
Tensor slice(RankContext& ctx, const Tensor& x, int dim, int64_t begin, int64_t end);
Tensor transpose(RankContext& ctx, const Tensor& x, int a, int b);
Tensor expand(RankContext& ctx, const Tensor& x, const Shape& shape);
std::vector<Tensor> split(RankContext& ctx, const Tensor& x, std::span<const int64_t> sizes, int dim);
std::vector<Tensor> chunk(RankContext& ctx, const Tensor& x, int64_t count, int dim);  // equal pieces

Tensor contiguous(RankContext& ctx, const Tensor& x);
Tensor concat(RankContext& ctx, std::span<const Tensor> tensors, int dim);

}  // namespace megatron::ops
