#pragma once

#include <span>

#include "megatron/config/config.h"
#include "megatron/nn/parameter.h"

namespace megatron {

// Marks the weights whose products are made in fp8: those of attention's and the MLP's linears, without the
// layers that shall stay as they are. Norms, the attention core, embeddings, the output layer and experts do
// too.
void choose_fp8(const Config& config, std::span<Parameter* const> parameters);

}  // namespace megatron
