#pragma once

#include <vector>

#include "megatron/config/config.h"
#include "megatron/nn/batch.h"

namespace megatron {

// `count` micro-batches of the shapes that the configuration trains on, whatever stands in them: what a plan
// is made of.
std::vector<Batch> blank_batches(const Config& config, int64_t count);

}  // namespace megatron
