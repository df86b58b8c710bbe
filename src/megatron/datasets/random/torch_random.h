#pragma once

#include <cstdint>
#include <vector>

namespace megatron {

// torch.randperm(n) on the CPU with a generator of this seed. n is below 2^32 / 20: larger ones are drawn
// by another algorithm in torch, and are refused.
std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed);

}  // namespace megatron
