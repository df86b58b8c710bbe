#pragma once

#include "megatron/training/run/run_data.h"

namespace megatron {

// --model-type bert and t5: masked samples from sentences in .bin/.idx files, as Megatron-LM makes them, or
// of made-up sentences.
RunData masked_data(const Config& config);

}  // namespace megatron
