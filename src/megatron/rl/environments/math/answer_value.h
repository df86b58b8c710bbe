#pragma once

#include <complex>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "megatron/rl/environments/math/answer_tree.h"

namespace megatron::rl {

using Complex = std::complex<long double>;

// The variables of a formula: names other than those of constants.
void collect_symbols(const Expression& e, std::set<std::string>& symbols);

// The value of a formula in the field of integers modulo 2^61 - 1, where names stand for elements that their
// hash chooses. Two rational formulas with one value are equal, whatever the size of their numbers. None
// where a formula is not rational, or divides by zero.
std::optional<uint64_t> field_value(const Expression& e);

// The value where variables stand for numbers that their names and `point` choose; NaN where there is none.
// The numbers of even points are positive, those of odd ones are not.
Complex numeric_value(const Expression& e, int point);

}  // namespace megatron::rl
