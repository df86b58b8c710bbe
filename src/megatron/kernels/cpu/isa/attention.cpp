#include "megatron/kernels/cpu/isa/dispatch.h"

namespace megatron::cpu::MEGATRON_ISA {

void add_attention_kernels(KernelTable&) {}

}  // namespace megatron::cpu::MEGATRON_ISA
