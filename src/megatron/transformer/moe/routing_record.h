#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/config/schema/model_config.h"
#include "megatron/parallel/model_parallel.h"

namespace megatron {

// The experts that the routers of a decoder choose in one forward pass, [tokens, layers with experts, k].
// They are fp64 here, which ranks sum and exchange like activations. A rank fills in the tokens and layers
// that it routes; MTP layers are left out.
class RoutingRecord {
 public:
  // `tokens`: of this rank's TP group.
  RoutingRecord(RankContext& ctx, const ModelConfig& config, int64_t tokens);

  // `experts` [rows, k]: what tokens from `begin` on chose in a layer, counted among those with experts.
  void put(RankContext& ctx, int64_t layer, int64_t begin, const Tensor& experts);
  // All that ranks of the TP group and of the stages have filled in, the same on each of them.
  Tensor gather(const ProcessGroup& tensor, const ProcessGroup& stages) const;

 private:
  Tensor experts_;
};

}  // namespace megatron
