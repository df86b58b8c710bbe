#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"
#include "megatron/nn/seq_info.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// How one part of a layer is tied to several residual streams (manifold-constrained hyper-connections): with
// n streams X [n, hidden] of a token, X ← H_res X + h_postᵀ F(h_pre X). Each token makes its own h_pre =
// σ(·), h_post = 2 σ(·) and H_res, doubly stochastic by Sinkhorn's iteration, from all its streams.
class HyperConnection final : public Module {
 public:
  HyperConnection(const std::string& name, const ModelConfig& config, const TensorParallel& tp);

  struct Mapping {
    Tensor input;  // [tokens, hidden]: what the part reads
    Tensor post;   // [tokens, n, 1]
    Tensor mixed;  // [tokens, n, n]: H_res
  };
  // `streams` [tokens, n · hidden]. With `recompute` only that is kept of the way.
  Mapping read(RankContext& ctx, const Tensor& streams, bool recompute);
  // The streams behind the part, which made y [tokens, hidden]. `drop` is dropout of [tokens, n · hidden].
  using Dropout = std::function<Tensor(RankContext&, const Tensor&)>;
  Tensor write(RankContext& ctx, const Tensor& streams, const Mapping& mapping, const Tensor& y,
               const Dropout& drop, bool recompute) const;
  void visit(const ParameterVisitor& visitor) override;

 private:
  std::vector<Tensor> map(RankContext& ctx, const Tensor& streams);

  int64_t streams_, hidden_, iterations_;
  Parameter projection_, pre_scale_, post_scale_, mixing_scale_, bias_;
};

// All streams begin as the embedding, and end as their mean.
Tensor expand_streams(RankContext& ctx, const Tensor& x, int64_t streams);
Tensor contract_streams(RankContext& ctx, const Tensor& x, int64_t streams);

}  // namespace megatron
