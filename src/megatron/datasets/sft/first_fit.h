#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron {

// Puts each length, in the order given, into the first bin with room for it, in O(n log n). The bins hold
// indices into `lengths`; what is longer than `capacity` is in none. Shuffle the lengths for
// first-fit-shuffle.
std::vector<std::vector<int64_t>> first_fit(std::span<const int64_t> lengths, int64_t capacity);

// The same, longest first; equal lengths keep their order.
std::vector<std::vector<int64_t>> first_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace megatron
