#include "megatron/training/checkpoint_tensors.h"

namespace megatron {
namespace {

void add(std::vector<ShardedTensor>& tensors, const std::string& name, const ParameterSlice& slice,
         const Tensor& tensor) {
  const ShardSpec& shard = slice.parameter->shard;
  if (tensor.shape() == shard.local_shape) {
    tensors.push_back({name, shard, tensor});
    return;
  }
  for (ShardedTensor& piece : flat_range(name, shard, tensor, slice.begin))
    tensors.push_back(std::move(piece));
}

}  // namespace

std::vector<ShardedTensor> checkpoint_tensors(std::span<Parameter* const> parameters) {
  std::vector<ShardedTensor> tensors;
  for (const Parameter* parameter : parameters)
    if (!parameter->sharded) tensors.push_back({parameter->name, parameter->shard, parameter->value});
  return tensors;
}

std::vector<ShardedTensor> checkpoint_tensors(RankTrainer& trainer, bool with_optimizer) {
  trainer.finish_parameters();
  std::vector<ShardedTensor> tensors = checkpoint_tensors(trainer.parameters());
  for (const ParameterSlice& slice : trainer.slices())
    if (slice.parameter->sharded) add(tensors, slice.parameter->name, slice, slice.value);
  if (!with_optimizer) return tensors;
  for (const OptimizerTensor& state : trainer.optimizer().state())
    add(tensors, fmt::format("optimizer.{}.{}", state.kind, state.slice->parameter->name), *state.slice,
        state.tensor);
  return tensors;
}

}  // namespace megatron
