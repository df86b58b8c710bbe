#pragma once

#include "megatron/models/objective.h"

namespace megatron {

// BERT with its binary head: cross entropy of the masked tokens, and of whether a row's parts were swapped,
// which is reported as "sop loss" and counts as much in the gradients.
class BertObjective final : public Objective {
 public:
  std::vector<std::string> terms() const override { return {"sop loss"}; }
  Tensor loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
              std::span<Tensor> terms) override;
};

}  // namespace megatron
