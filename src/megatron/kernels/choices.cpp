#include "megatron/kernels/choices.h"

#include "megatron/kernels/backends.h"
#include "megatron/kernels/cpu/isa_tables.h"

namespace megatron {

std::string cpu_instruction_set() { return cpu::has_v4() ? "AVX-512" : "AVX2"; }

AttentionChoice choose_attention(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  if (ctx.stream.runtime().device().is_cuda()) return choose_cuda_attention(ctx, args);
  const std::string own = "own tiles (" + cpu_instruction_set() + ")";
  return {own, own};
}

}  // namespace megatron
