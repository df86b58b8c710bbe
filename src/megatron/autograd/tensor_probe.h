#pragma once

#include <string_view>

#include "megatron/tensor/tensor.h"

namespace megatron {

struct RankContext;

// Looks at tensors of modules while a pass runs: dumps of single steps, traces of routers. `place` is
// "input0", "output0" or what else a module has, such as "tokens_per_expert". A pass that is run again for
// its gradients shows everything again, with a tape this time.
class TensorProbe {
 public:
  virtual ~TensorProbe() = default;
  // `parameter`: the name of the module's weight, "decoder.layers.0.mlp.linear_fc1.weight".
  virtual void see(RankContext& ctx, std::string_view parameter, std::string_view place,
                   const Tensor& value) = 0;
};

}  // namespace megatron
