#pragma once

#include <span>

#include "megatron/config/config.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// With --export-quant-cfg, marks the weights whose linears round what they multiply: those of attention, of
// recurrent layers, of the MLP and of experts. A scale of a whole matrix is that of all ranks that hold a
// part of it, so that no layout changes it; the inputs of experts, which are tokens of many micro-batches,
// are scaled token by token.
void choose_fake_quantizers(const Config& config, std::span<Parameter* const> parameters,
                            const ParallelContext& parallel);

}  // namespace megatron
