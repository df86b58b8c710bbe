#pragma once

#include "megatron/config/config.h"
#include "megatron/models/model.h"

namespace megatron {

// --qad-train-target: of MTP layers and the rest of the model, one side does not learn, nor do the biases of
// its experts move.
void freeze_other_side(TrainTarget target, Model& model);

}  // namespace megatron
