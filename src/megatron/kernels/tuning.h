#pragma once

#include <string>
#include <string_view>

#include "megatron/device/kernel_context.h"

namespace megatron {

// A GEMM library proposes several kernels for each shape. Off (the default): its first
// proposal, the same on every run. Otherwise the first large GEMM of each shape, unless it is recorded,
// times them all, which waits for the device; the fastest serves at once, or only once it is among the
// choices of use_gemm_choices, so that ranks can agree first. Where there is nothing to choose (CPU, meta)
// these do nothing.
enum class Measuring { Off, UseAtOnce, UseLater };
void measure_gemms(const KernelContext& ctx, Measuring how);

// What was measured, as text to keep: a line that tells the kind of GPU and the version of the library, then
// one for each shape, which its first word tells. Using it again in a later run gives the same kernels
// without measuring; choices made on another kind of GPU or by another version are passed over.
std::string gemm_choices(const KernelContext& ctx);
void use_gemm_choices(const KernelContext& ctx, std::string_view choices);

}  // namespace megatron
