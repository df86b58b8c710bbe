#include "megatron/base/error.h"
#include "megatron/kernels/cpu/isa_tables.h"

namespace megatron {

bool cpu::has_v4() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}

void cpu::reject_dtype(const char* kernel, DType dtype) {
  fail("{}: {} is not supported by the CPU kernel; use fp32, bf16, fp16 or fp64", kernel, dtype);
}

const KernelTable& cpu_kernels() {
  static const KernelTable table = cpu::has_v4() ? cpu::v4::make_table() : cpu::v3::make_table();
  return table;
}

}  // namespace megatron
