#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "megatron/base/gpu_facts.h"

namespace megatron {

// What a launch may ask too much of. In the order in which problems are told.
enum class LaunchLimit : uint8_t {
  GpuGeneration,
  Fp8Generation,
  Fp8Blocks,
  Fp8Experts,
  HeadDim,
  AttentionMemory,
  ConvolutionWidth,
  DeltaKeys,
  ScanChunk,
  ScanState,
  DecodedState,
  NormRow,
  GatedNormRow,
  Experts,
  AttentionHeads,
  ScanHeads,
  DeltaHeads,
  Sequences,
  ExpertColumns,
  Fp8Rows,
  Logits,
  Tokens,
  SharingRanks,
};

// Why a GPU does not take a launch.
struct Refusal {
  LaunchLimit limit;
  int64_t got;         // what was asked for, in the unit of the limit
  std::string reason;  // with the limit, as a sentence that goes behind "model.hidden_size = 7: "
};

// Each family of CUDA kernels states what it does not take, in a file of this folder:
//   std::optional<Refusal> refuse(const Args&, const GpuFacts&);
// Shapes, strides, dtypes and the alignment of addresses decide, so that it can be asked of tensors of the
// meta device. A fact of a GPU that is 0 is not known, and nothing is refused for it.

}  // namespace megatron
