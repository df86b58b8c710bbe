#include "megatron/training/setup/checkpoint_tensors.h"

#include <algorithm>
#include <map>

#include "megatron/checkpoint/host_tensor.h"
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

std::string name_of(const OptimizerTensor& state) {
  return fmt::format("optimizer.{}.{}", state.kind, state.slice->parameter->name);
}

void add(std::vector<ShardedTensor>& tensors, const OptimizerTensor& state) {
  if (state.shard) {
    tensors.push_back({name_of(state), *state.shard, state.tensor});
    return;
  }
  if (!state.packed) return add(tensors, name_of(state), *state.slice, state.tensor);
  const ShardSpec& shard = state.slice->parameter->shard;
  const PackedValues& values = state.packed->values;
  if (values.shape() == shard.local_shape) {
    tensors.push_back({name_of(state), shard, {}, values});
    return;
  }
  for (ShardedTensor& piece : flat_range(name_of(state), shard, values, state.slice->begin))
    tensors.push_back(std::move(piece));
}

std::vector<ShardedTensor> parameter_tensors(RankTrainer& trainer) {
  trainer.finish_parameters();
  std::vector<ShardedTensor> tensors = checkpoint_tensors(trainer.parameters());
  for (const ParameterSlice& slice : trainer.slices())
    if (slice.parameter->sharded) add(tensors, slice.parameter->name, slice, slice.value);
  return tensors;
}

// Packed states are filled range by range: the fp32 values of one are on the device at a time.
void add_packed(RankContext& ctx, std::vector<LoadPart>& parts, const OptimizerTensor& state,
                const Shape& global_shape, int64_t at_once) {
  const PackedState& packed = *state.packed;
  const Tensor& first = packed.values.parts.front();
  const int64_t elements = first.numel(), step = packed.whole ? elements : at_once;
  ShardSpec shard = state.slice->parameter->shard;
  shard.global_shape = global_shape;
  for (int64_t begin = 0; begin < elements; begin += step) {
    const int64_t count = std::min(step, elements - begin);
    const Tensor place = first.detach().view({elements}).slice(0, begin, begin + count);
    const auto wide = std::make_shared<Tensor>();
    std::vector<ShardedTensor> pieces = flat_range(name_of(state), shard, place, state.slice->begin + begin);
    for (size_t i = 0; i < pieces.size(); ++i) {
      // Where the piece lies in the range, in elements.
      const int64_t at =
          (static_cast<const char*>(pieces[i].tensor.raw()) - static_cast<const char*>(place.raw())) /
          static_cast<int64_t>(size_of(place.dtype()));
      const Shape extent = pieces[i].tensor.shape();
      const bool on_device = first.device() == ctx.device;
      pieces[i].tensor = {};
      LoadPart part{pieces[i], DType::F32};
      part.begin = [&ctx, read = packed.read, wide, begin, count, at, extent, on_device] {
        if (!*wide) {
          *wide = on_device ? ctx.empty({count}, DType::F32, MemoryTag::Workspace)
                            : host_tensor({count}, DType::F32);
          read(ctx, begin, *wide);  // what the checkpoint does not hold, such as padding, stays
        }
        return wide->slice(0, at, at + extent.numel()).view(extent);
      };
      if (i + 1 == pieces.size())
        part.end = [&ctx, write = packed.write, wide, begin] {
          write(ctx, begin, *wide);
          *wide = {};
        };
      parts.push_back(std::move(part));
    }
  }
}

// Of delayed scaling.
std::vector<ShardedTensor> fp8_tensors(RankTrainer& trainer) {
  std::vector<ShardedTensor> tensors;
  if (Fp8History* fp8 = trainer.fp8_history())
    for (const Fp8History::State& state : fp8->state())
      tensors.push_back({fmt::format("fp8.history.{}", state.weight->name), state.shard, state.history});
  return tensors;
}

}  // namespace

std::vector<ShardedTensor> checkpoint_tensors(std::span<Parameter* const> parameters) {
  std::vector<ShardedTensor> tensors;
  for (const Parameter* parameter : parameters)
    if (!parameter->sharded) tensors.push_back({parameter->name, parameter->shard, parameter->value});
  return tensors;
}

std::vector<ShardedTensor> checkpoint_tensors(RankTrainer& trainer, bool with_optimizer) {
  std::vector<ShardedTensor> tensors = parameter_tensors(trainer);
  if (!with_optimizer) return tensors;
  for (const OptimizerTensor& state : trainer.optimizer().state()) add(tensors, state);
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
  if (options.optimizer || options.masters) state = optimizer.state();
  if (!options.optimizer)
    std::erase_if(state, [](const OptimizerTensor& tensor) { return tensor.kind != "master"; });
  std::vector<ShardedTensor> tensors = parameter_tensors(trainer);
  std::multimap<std::string, const OptimizerTensor*> packed;
  for (const OptimizerTensor& tensor : state) {
    add(tensors, tensor);
    if (tensor.packed) packed.emplace(name_of(tensor), &tensor);
  }
  // A run of which not all that is in fp8 now was so far begins its history now.
  std::vector<ShardedTensor> fp8 = options.optimizer ? fp8_tensors(trainer) : std::vector<ShardedTensor>();
  const bool known = !fp8.empty() && std::ranges::all_of(fp8, [&](const ShardedTensor& tensor) {
    return source.find(tensor.name) != nullptr;
  });
  if (known) tensors.insert(tensors.end(), fp8.begin(), fp8.end());
  const LoadReport report = LoadCheck(source, options).fit(tensors);
  // In the order of files, which disks like, as far as what is packed allows: it may lean on the parameters,
  // which come first therefore.
  std::ranges::stable_sort(tensors, {}, &ShardedTensor::name);
  std::vector<LoadPart> parameters, states;
  for (ShardedTensor& tensor : tensors) {
    const bool of_run = tensor.name.starts_with("optimizer.") || tensor.name.starts_with("fp8.history.");
    if (!tensor.packed) (of_run ? states : parameters).push_back({tensor, tensor.dtype()});
  }
  source.load(ctx, parameters);
  trainer.values_written(ctx);
  if (state.empty())
    optimizer.read_parameters(ctx);
  else
    optimizer.begin_load(ctx);
  const auto known_as_packed = [&](const ShardedTensor& tensor) {
    return source.read_packed && source.read_packed(ctx, tensor);
  };
  for (ShardedTensor& tensor : tensors) {
    if (!tensor.packed || known_as_packed(tensor)) continue;
    // All of its name, with the first of the pieces that are not held as they are.
    const auto [first, last] = packed.equal_range(tensor.name);
    for (auto found = first; found != last; ++found)
      add_packed(ctx, states, *found->second, tensor.shard.global_shape, options.packed_at_once);
    packed.erase(first, last);
  }
  source.load(ctx, states);
  if (known) trainer.fp8_history()->use(ctx);
  return report;
}

void load_parameters(RankContext& ctx, const TensorSource& source, std::span<Parameter* const> parameters) {
  std::vector<ShardedTensor> tensors = checkpoint_tensors(parameters);
  const LoadOptions options{.optimizer = false};
  LoadCheck(source, options).fit(tensors);
  std::ranges::stable_sort(tensors, {}, &ShardedTensor::name);  // in the order of files
  std::vector<LoadPart> parts;
  for (const ShardedTensor& tensor : tensors) parts.push_back({tensor, tensor.dtype()});
  source.load(ctx, parts);
}

}  // namespace megatron
