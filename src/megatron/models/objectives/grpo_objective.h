#pragma once

#include <optional>

#include "megatron/models/objective.h"

namespace megatron {

// The rows of Batch::values that GRPO reads; 0 where a label is not predicted.
struct GrpoValues {
  enum Row { advantage, old_log_prob, reference_log_prob, sampling_weight, count };
};

struct GrpoOptions {
  double clamp_lower = 0.01, clamp_upper = 0.01;  // how far the ratio to the old policy counts
  double kl_beta = 0;                             // 0: there is no reference
  double entropy_weight = 0;
};

// Group relative policy optimisation. With l the log-probability of a token, r = exp(l − old), advantage A
// and sampling weight w, a token's loss is
//   −w · min(r · A, clamp(r, 1 − lower, 1 + upper) · A) + beta · (exp(ref − l) − (ref − l) − 1)
//   − entropy_weight · (−exp(l) · l).
// The terms are those of Megatron-LM: KL, ratio, entropy, and the share of tokens whose ratio was clamped.
class GrpoObjective final : public Objective {
 public:
  explicit GrpoObjective(GrpoOptions options) : options_(options) {}

  std::vector<std::string> terms() const override;
  size_t weighted_terms() const override { return terms().size(); }
  Tensor loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
              std::span<Tensor> terms) override;

 private:
  GrpoOptions options_;
};

// Returns Σ weights · losses, one element, where the GRPO losses follow from the cross entropies −l [tokens]
// and the rows of `values`. `terms` get the sums that GrpoObjective reports; none: nothing is reported.
Tensor grpo_loss(RankContext& ctx, const Tensor& token_losses, const Tensor& labels, const Tensor& values,
                 const Tensor& weights, const GrpoOptions& options, std::span<Tensor> terms = {});

}  // namespace megatron
