#pragma once

#include <string>
#include <string_view>

#include "megatron/device/kernel_context.h"

namespace megatron {

// cuBLASLt proposes several algorithms for each shape. Off (the default) takes its first proposal, the same
// on every run. Otherwise the first large GEMM of each shape times them all, which waits for the device; a
// GEMM under graph capture is not timed. The fastest serves at once, or only after use_tuned_gemm_algos, so
// that ranks can agree first. On CPU and meta devices these functions do nothing.
enum class AutotuneMode { Off, UseAtOnce, UseLater };
void autotune_gemms(const KernelContext& ctx, AutotuneMode mode);

// The tuned algorithms as text: a header with the GPU's name and the version of cuBLASLt, then one line for
// each shape, whose first word is the shape's key. A later run that uses it gets the same algorithms untimed;
// text of another GPU or version is ignored.
std::string tuned_gemm_algos(const KernelContext& ctx);
void use_tuned_gemm_algos(const KernelContext& ctx, std::string_view tuned);

}  // namespace megatron
