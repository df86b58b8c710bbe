#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"

namespace megatron {

// Maximal update parametrisation: hyperparameters found at one width serve another. `width` is how many times
// wider this model is.
double mup_width(const ModelConfig& config);
// The same model with its initial deviations, scales of attention, embedding and logits written out; as it is
// without use_mup.
ModelConfig with_mup(const ModelConfig& config);
// Whether a parameter is a matrix between two widths that grow: not a vector, nor a table of the vocabulary.
bool is_hidden_matrix(const Parameter& parameter);

}  // namespace megatron
