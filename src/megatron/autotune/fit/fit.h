#pragma once

#include <span>
#include <vector>

#include "megatron/autotune/fit/table.h"

namespace megatron::autotune {

// Constants that explain these rows best, held near their priors. Errors count in the logarithm; large ones
// count less, so that one odd row does not decide. With `layers`, shapes of layers that occur in the rows get
// a factor of their own, held near 1.
Calibration fit_constants(std::span<const TableRow* const> rows, const CostConstants& prior,
                          std::span<const FittedConstant> free, bool layers);

}  // namespace megatron::autotune
