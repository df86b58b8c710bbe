#pragma once

#include <map>

#include "megatron/bridge/auto_bridge.h"
#include "megatron/checkpoint/host_tensor.h"

namespace megatron::testing {

// The gradients of whole parameters, in host memory, under Hugging Face's names.
inline std::map<std::string, Tensor> hf_gradients(RankContext& ctx, const AutoBridge& bridge,
                                                  const std::vector<Parameter*>& parameters) {
  std::map<std::string, Tensor> theirs;
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable) continue;
    require(parameter->accumulator.has_value(), "{} has no gradient", parameter->name);
    const Shape& shape = parameter->shard.global_shape;
    const Tensor ours = host_tensor(shape, parameter->accumulator.main_grad.dtype());
    ctx.to_host(parameter->accumulator.main_grad.slice(0, 0, shape[0]), ours.raw());
    const ShardSpec whole = ShardSpec::whole(shape);
    for (const HfPart& part : bridge.parts(parameter->name, shape)) {
      Tensor& tensor = theirs[part.name];
      if (!tensor) tensor = host_tensor(stored_shape(part.shard.local_shape, part.view), ours.dtype());
      const Tensor view = view_of(tensor, part.view);
      for (const Transfer& t : plan_transfers({&whole, 1}, {&part.shard, 1}).transfers)
        copy_host(box_of(ours, {t.source_offset, t.extent}), box_of(view, {t.target_offset, t.extent}));
    }
  }
  return theirs;
}

}  // namespace megatron::testing
