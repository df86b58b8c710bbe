#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/optimizer/optimizer.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/qk_clip_target.h"

namespace megatron {

// MuonClip's bound on attention scores. Where the largest score of a step, over all ranks and the heads that
// share keys, is above the threshold, the weights of those queries and keys are scaled so that it would have
// been the threshold: by η^α and η^(1 − α), η = threshold / largest.
class QkClip {
 public:
  QkClip(RankContext& ctx, const ModelConfig& config, std::vector<QkClipTarget*> targets,
         const ParallelContext& parallel);

  // Behind the optimizer's update, before parameters are published; weights move where `gate` (bool [1]) is
  // true. What was tracked begins anew.
  void clip(RankContext& ctx, Optimizer& optimizer, const Tensor& gate);

 private:
  struct Clipped {
    QkClipTarget* target;
    std::vector<Tensor> rows;  // int64 [local rows] of each weight: which factor it has
  };
  Tensor largest(RankContext& ctx);
  Tensor factors(RankContext& ctx, const Tensor& largest, const Tensor& gate) const;

  double alpha_, threshold_;
  const ParallelContext& parallel_;
  std::vector<Clipped> layers_;
};

}  // namespace megatron
