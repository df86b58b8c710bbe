#include "megatron/training/checkpoint_tensors.h"

namespace megatron {

std::vector<ShardedTensor> checkpoint_tensors(std::span<Parameter* const> parameters, const Adam* optimizer) {
  std::vector<ShardedTensor> tensors;
  for (const Parameter* parameter : parameters)
    tensors.push_back({parameter->name, parameter->shard, parameter->value});
  if (!optimizer) return tensors;
  for (const Adam::State& state : optimizer->states()) {
    const Parameter& p = *state.parameter;
    if (state.master) tensors.push_back({"optimizer.master." + p.name, p.shard, state.master});
    tensors.push_back({"optimizer.exp_avg." + p.name, p.shard, state.first});
    tensors.push_back({"optimizer.exp_avg_sq." + p.name, p.shard, state.second});
  }
  return tensors;
}

}  // namespace megatron
