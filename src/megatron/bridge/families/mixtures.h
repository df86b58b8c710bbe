#pragma once

#include "megatron/bridge/families/common.h"

// What families with experts share.
namespace megatron {

// decoder_config() with experts. Their balancing loss counts in training only where the file asks for it, as
// in the Hugging Face libraries.
ModelConfig mixture_config(const HfSource& source);
// Layers without experts are named one by one, or every so many have them.
void read_qwen_layers(const HfConfig& hf, ModelConfig& model);
// Scores by the sigmoid, chosen with a bias, weights that sum to the scaling factor.
void read_sigmoid_router(const HfConfig& hf, ModelConfig& model);

std::vector<WeightRule> usual_expert_rules();        // router, gate, up and down of each expert
std::vector<WeightRule> qwen_shared_expert_rules();  // one shared expert, with its gate

}  // namespace megatron
