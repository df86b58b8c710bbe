#pragma once

#include <functional>
#include <span>
#include <vector>

#include "megatron/autograd/rank_context.h"

namespace megatron {

using RegionBody = std::function<std::vector<Tensor>(RankContext&, std::span<const Tensor> inputs)>;

// Runs `body` keeping only its inputs, and runs it again when its gradients are wanted. The body must be a
// function of its inputs and of parameters: random numbers come from explicit keys, so they are the same the
// second time.
std::vector<Tensor> recompute(RankContext& ctx, std::span<const Tensor> inputs, RegionBody body);

// The same for results that are larger than the inputs: `use` consumes them, and what it would keep of them
// is made again, once, when its gradients are wanted. So `use` itself is not computed twice.
Tensor recompute_for(RankContext& ctx, std::span<const Tensor> inputs, RegionBody body,
                     const std::function<Tensor(std::span<const Tensor> results)>& use);

}  // namespace megatron
