#include "megatron/training/setup/checkpoint_tensors.h"

#include "megatron/training/setup/load_check.h"

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

std::vector<ShardedTensor> with_state(RankTrainer& trainer, std::span<const OptimizerTensor> states) {
  trainer.finish_parameters();
  std::vector<ShardedTensor> tensors = checkpoint_tensors(trainer.parameters());
  for (const ParameterSlice& slice : trainer.slices())
    if (slice.parameter->sharded) add(tensors, slice.parameter->name, slice, slice.value);
  for (const OptimizerTensor& state : states)
    add(tensors, fmt::format("optimizer.{}.{}", state.kind, state.slice->parameter->name), *state.slice,
        state.tensor);
  return tensors;
}

// Of delayed scaling.
std::vector<ShardedTensor> fp8_tensors(RankTrainer& trainer) {
  std::vector<ShardedTensor> tensors;
  if (Fp8History* fp8 = trainer.fp8_history())
    for (const Fp8History::State& state : fp8->state())
      tensors.push_back({fmt::format("fp8.history.{}", state.weight->name),
                         ShardSpec::whole(state.history.shape()), state.history});
  return tensors;
}

}  // namespace

std::vector<ShardedTensor> checkpoint_tensors(std::span<Parameter* const> parameters) {
  std::vector<ShardedTensor> tensors;
  for (const Parameter* parameter : parameters)
    if (!parameter->sharded) tensors.push_back({parameter->name, parameter->shard, parameter->value});
  return tensors;
}

std::vector<ShardedTensor> checkpoint_tensors(RankContext& ctx, RankTrainer& trainer, bool with_optimizer) {
  if (!with_optimizer) return with_state(trainer, {});
  std::vector<ShardedTensor> tensors = with_state(trainer, trainer.optimizer().state(ctx));
  for (ShardedTensor& tensor : fp8_tensors(trainer)) tensors.push_back(std::move(tensor));
  return tensors;
}

std::vector<ShardedTensor> gradient_tensors(RankContext& ctx, RankTrainer& trainer) {
  std::vector<ShardedTensor> tensors;
  for (const ParameterSlice& slice : trainer.slices()) {
    if (!slice.gradient) continue;
    const DType dtype = slice.gradient.dtype() == DType::F64 ? DType::F64 : DType::F32;
    Tensor gradient = ctx.empty(slice.gradient.shape(), dtype, MemoryTag::Workspace);
    ctx.kernels->copy(ctx.kernel_context(), {slice.gradient.detach(), gradient});
    if (trainer.gradient_factor()) {
      const Tensor flat = gradient.view({gradient.numel()}), factor = ctx.empty({1}, dtype);
      ctx.kernels->copy(ctx.kernel_context(), {trainer.gradient_factor().view({1}), factor});
      ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, flat, factor.expand(flat.shape()), flat});
    }
    add(tensors, slice.parameter->name, slice, gradient);
  }
  return tensors;
}

LoadReport load_run(RankContext& ctx, const TensorSource& source, RankTrainer& trainer,
                    const LoadOptions& options) {
  Optimizer& optimizer = trainer.optimizer();
  std::vector<OptimizerTensor> state;
  if (options.optimizer || options.masters) state = optimizer.state(ctx);
  if (!options.optimizer)
    std::erase_if(state, [](const OptimizerTensor& tensor) { return tensor.kind != "master"; });
  std::vector<ShardedTensor> tensors = with_state(trainer, state);
  // A run that was not in fp8 so far begins its history now.
  std::vector<ShardedTensor> fp8 = options.optimizer ? fp8_tensors(trainer) : std::vector<ShardedTensor>();
  const bool known = !fp8.empty() && source.find(fp8.front().name) != nullptr;
  if (known) tensors.insert(tensors.end(), fp8.begin(), fp8.end());
  const LoadReport report = LoadCheck(source, options).fit(tensors);
  for (const ShardedTensor& tensor : tensors) source.read(ctx, tensor);
  trainer.values_written(ctx);
  if (known) trainer.fp8_history()->use(ctx);
  if (!state.empty())
    optimizer.take_state(ctx, state);
  else
    optimizer.read_parameters(ctx);
  return report;
}

}  // namespace megatron
