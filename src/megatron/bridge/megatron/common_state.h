#pragma once

#include "megatron/bridge/megatron/checkpoint.h"
#include "megatron/checkpoint/torch/torch_archive.h"

namespace megatron {

// Takes what Megatron-LM keeps beside its tensors: iteration, samples, arguments, schedule; the state of
// random numbers is left out, since ours come from counters. `common`: the dict of common.pt or of a rank's
// file.
void take_common_state(const PickleValue& common, const TorchArchive& archive,
                       MegatronCheckpoint& checkpoint);

}  // namespace megatron
