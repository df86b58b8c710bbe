#pragma once

#include <string>

#include "megatron/device/kernel_context.h"
#include "megatron/kernels/attention.h"

namespace megatron {

// The kernels that a device takes for one attention, in words. They are run to find out: the arguments are
// those of a real call, and its outputs are written.
struct AttentionChoice {
  std::string forward, backward;
};
AttentionChoice choose_attention(const KernelContext& ctx, const AttentionBackwardArgs& args);

std::string cpu_instruction_set();  // that of the CPU's kernels: "AVX-512" or "AVX2"

}  // namespace megatron
