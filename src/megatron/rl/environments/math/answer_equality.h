#pragma once

#include <string_view>

namespace megatron::rl {

// Whether an answer means the same as the expected one. Rational formulas, also with variables, are compared
// exactly; others (roots, trigonometry, logarithms) by their values at several points to twelve digits.
// Spacing, units that one of the two lacks, currency and separators of thousands do not count; 50% is 1/2 or
// 50. A decimal with six or more places stands for the number that it rounds. What cannot be read is equal
// to its own text alone.
bool answers_equal(std::string_view expected, std::string_view answer);

}  // namespace megatron::rl
