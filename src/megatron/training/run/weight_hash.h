#pragma once

#include <memory>

#include "megatron/training/run/callback.h"

namespace megatron {

// Every so many iterations compares the weights of all data-parallel replicas, which should be equal to the
// bit: an Error names the rank and the tensor that differ. Sharded weights, of which there is one copy, are
// left out.
std::shared_ptr<Callback> weight_hash_check(int64_t interval);

}  // namespace megatron
