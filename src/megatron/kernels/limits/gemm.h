#pragma once

#include "megatron/kernels/gemm.h"
#include "megatron/kernels/limits/refusal.h"
#include "megatron/kernels/quantize.h"

namespace megatron {

// fp8 operands; scales are those of cuBLASLt, and those of experts are wgmma's of sm_90a.
std::optional<Refusal> refuse(const GemmArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const GroupedGemmArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const GroupedGemmWeightArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const QuantizeArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const QuantizeBlocksArgs& args, const GpuFacts& gpu);

}  // namespace megatron
