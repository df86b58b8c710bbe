#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megatron/base/json.h"

namespace megatron {

enum class Split : uint8_t { train, valid, test };
inline constexpr std::array kSplits = {Split::train, Split::valid, Split::test};

constexpr std::string_view name_of(Split split) {
  constexpr std::string_view names[] = {"train", "valid", "test"};
  return names[static_cast<size_t>(split)];
}

// A run of elements [begin, end).
struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

using SplitVector = std::array<double, 3>;
// The book-ends of each split as shares of the data; absent where a split is empty.
using SplitMatrix = std::array<std::optional<std::array<double, 2>>, 3>;

// "969,30,1" as shares that sum to one. A ConfigError refuses more than three numbers and nothing but zeros.
SplitVector parse_split(std::string_view text);
SplitMatrix split_matrix(const SplitVector& vector);
// Where both of two ways to split the data agree.
SplitMatrix split_matrix(const SplitVector& a, const SplitVector& b);
// As upstream's cache descriptions hold it.
Json split_matrix_json(const SplitMatrix& matrix);
// The elements of a split of `count`, rounded half to even.
IndexRange split_range(const std::array<double, 2>& ends, int64_t count);

}  // namespace megatron
