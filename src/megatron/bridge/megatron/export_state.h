#pragma once

#include <string>

#include "megatron/checkpoint/index.h"
#include "megatron/config/schema/model_config.h"

namespace megatron {

// What Megatron-LM keeps beside its tensors, as a pickle of a list with one dict: arguments, iteration,
// schedule and, `with_optimizer`, the groups of parameters.
std::string common_state_pickle(const TrainingState& state, const ModelConfig& model, bool with_optimizer);

}  // namespace megatron
