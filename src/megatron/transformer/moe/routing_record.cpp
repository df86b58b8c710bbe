#include "megatron/transformer/moe/routing_record.h"

#include "megatron/transformer/layer_pattern.h"

namespace megatron {

RoutingRecord::RoutingRecord(RankContext& ctx, const ModelConfig& config, int64_t tokens)
    : experts_(ctx.zeros({tokens, expert_layers(config), config.moe_router_topk}, DType::F64)) {}

void RoutingRecord::put(RankContext& ctx, int64_t layer, int64_t begin, const Tensor& experts) {
  const Tensor rows = experts_.select(1, layer).slice(0, begin, begin + experts.size(0));
  ctx.kernels->copy(ctx.kernel_context(), {experts.detach(), rows});
}

// What a rank has not routed is 0 there, so sums put the parts together.
Tensor RoutingRecord::gather(const ProcessGroup& tensor, const ProcessGroup& stages) const {
  if (experts_.numel() == 0) return experts_;
  if (tensor.size() > 1) tensor.all_reduce(experts_).wait();
  if (stages.size() > 1) stages.all_reduce(experts_).wait();
  return experts_;
}

}  // namespace megatron
