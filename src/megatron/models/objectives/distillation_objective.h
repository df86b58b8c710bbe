#pragma once

#include "megatron/comm/process_group.h"
#include "megatron/models/objectives/lm_objective.h"

namespace megatron {

struct DistillationOptions {
  bool skip_lm_loss = true;   // the teacher's predictions are all that is learned from
  double kd_loss_scale = 1;   // else: how much they count beside the language-model loss
  double temperature = 1;     // of both models' logits
  int64_t mtp_layers = 0;     // of the model that learns; their losses are those of their labels
  ProcessGroup context = {};  // the ranks that have the other tokens of a sequence
};

// Knowledge distillation: KL(teacher ‖ model) of every token's predictions, by itself or beside the
// language-model loss, where it is scaled to kd_loss_scale times that loss, micro-batch by micro-batch. The
// value of the loss is that of the language model in both cases, so that runs can be compared and evaluations
// go on as they are; what is minimised is reported as "total loss".
class DistillationObjective final : public Objective {
 public:
  // `teacher`: its head, on the ranks that have the model's; null on others.
  DistillationObjective(Head* teacher, DistillationOptions options)
      : teacher_(teacher), options_(std::move(options)), lm_(options_.mtp_layers) {}

  std::vector<std::string> terms() const override;
  size_t weighted_terms() const override { return 2; }
  // Of a micro-batch without `taught`, the language-model loss.
  Tensor loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
              std::span<Tensor> terms) override;

 private:
  Tensor divergence_factor(RankContext& ctx, const Tensor& sums) const;

  Head* teacher_;
  DistillationOptions options_;
  LmObjective lm_;
};

}  // namespace megatron
