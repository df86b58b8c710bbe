#pragma once

#include "megatron/kernels/kernel_table.h"

// The CPU kernels, compiled once per instruction set.
namespace megatron::cpu {

namespace v3 {
KernelTable make_table();  // AVX2
}
namespace v4 {
KernelTable make_table();  // AVX-512
}
bool has_v4();  // whether this machine can run v4

[[noreturn]] void reject_dtype(const char* kernel, DType dtype);

}  // namespace megatron::cpu
