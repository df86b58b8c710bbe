#include "megatron/kernels/cpu/isa/dispatch.h"

namespace megatron::cpu::MEGATRON_ISA {

void add_cross_entropy_kernels(KernelTable&) {}

}  // namespace megatron::cpu::MEGATRON_ISA
