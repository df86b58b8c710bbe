#pragma once

#include <string>
#include <vector>

#include "megatron/device/kernel_context.h"
#include "megatron/kernels/attention_notes.h"

namespace megatron {

// Which kernels a GPU took for attention so far, without the first `after`. Others have no choice, and none
// to tell.
std::vector<AttentionNote> attention_notes(const KernelContext& ctx, size_t after = 0);

// The kernels that a device takes for one attention. They are run to find out: the arguments are those of a
// real call, and its outputs are written.
struct AttentionChoice {
  AttentionNote forward, backward;
};
AttentionChoice choose_attention(const KernelContext& ctx, const AttentionBackwardArgs& args);

std::string cpu_instruction_set();  // that of the CPU's kernels: "AVX-512" or "AVX2"

}  // namespace megatron
