#pragma once

#include "megatron/checkpoint/sharded_tensor.h"
#include "megatron/optimizer/adam.h"

namespace megatron {

// What of a rank's parameters goes into a checkpoint, under Megatron's names: the weights and, with an
// optimizer, its state as optimizer.{master,exp_avg,exp_avg_sq}.<name>. Both copies of a tied weight have one
// name: one is saved, both are filled by a load.
std::vector<ShardedTensor> checkpoint_tensors(std::span<Parameter* const> parameters,
                                              const Adam* optimizer = nullptr);

}  // namespace megatron
