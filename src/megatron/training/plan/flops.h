#pragma once

#include "megatron/config/schema/model_config.h"

namespace megatron {

// Arithmetic of one training step of a decoder (forward and backward, causal attention counted half), as
// Megatron counts it for its throughput: 3 · (GEMMs of the layers + attention + output layer). Of a layer
// with experts, those that a token goes to count; the router does not.
double model_flops_per_token(const ModelConfig& config, int64_t length);

// Parameters of the whole model, vocabulary padding left out.
int64_t parameter_count(const ModelConfig& config);

}  // namespace megatron
