#include "megatron/kernels/choices.h"

#include "megatron/kernels/backends.h"
#include "megatron/kernels/cpu/isa_tables.h"

namespace megatron {

std::string cpu_instruction_set() { return cpu::has_v4() ? "AVX-512" : "AVX2"; }

std::vector<AttentionNote> attention_notes(const KernelContext& ctx, size_t after) {
  if (!ctx.stream.runtime().device().is_cuda()) return {};
  return cuda_attention_notes(ctx).since(after);
}

AttentionChoice choose_attention(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  if (ctx.stream.runtime().device().is_cuda()) {
    cuda_kernels().attention(ctx, args.forward);
    cuda_kernels().attention_backward(ctx, args);
    const AttentionNotes& notes = cuda_attention_notes(ctx);
    return {notes.last(false), notes.last(true)};
  }
  const std::string own = "own tiles (" + cpu_instruction_set() + ")",
                    shape = describe_attention(args.forward);
  return {{shape, false, own, ""}, {shape, true, own, ""}};
}

}  // namespace megatron
