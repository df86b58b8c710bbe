#pragma once

#include "megatron/models/objectives/lm_objective.h"

namespace megatron {

// Knowledge distillation from predictions that a teacher's run recorded (MicroBatch::recorded_tokens):
// share · KL(teacher ‖ model) + (1 − share) · the language-model loss, where all tokens that were not
// recorded count as one. The value of the loss is the language model's; what is minimised is reported as
// "total loss".
class RecordedTeacherObjective final : public Objective {
 public:
  RecordedTeacherObjective(double share, int64_t mtp_layers) : share_(share), lm_(mtp_layers) {}

  std::vector<std::string> terms() const override;
  size_t weighted_terms() const override { return 2; }
  // A micro-batch without a recording gives the language-model loss.
  Tensor loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
              std::span<Tensor> terms) override;

 private:
  double share_;
  LmObjective lm_;
};

}  // namespace megatron
