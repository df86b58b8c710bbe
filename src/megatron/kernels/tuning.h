#pragma once

#include <string>
#include <string_view>

#include "megatron/device/kernel_context.h"

namespace megatron {

// A library of matrix products proposes several kernels for each shape. Off (the default): its first
// proposal, the same on every run. On: the first large product of each shape times them all and keeps the
// fastest, which waits for the device once. Where there is nothing to choose (CPU, meta) these do nothing.
void measure_gemms(const KernelContext& ctx, bool on);

// What was measured, as text to keep: using it again in a later run gives the same kernels without measuring.
// Choices made on another kind of GPU or by another version of the library are passed over.
std::string gemm_choices(const KernelContext& ctx);
void use_gemm_choices(const KernelContext& ctx, std::string_view choices);

}  // namespace megatron
