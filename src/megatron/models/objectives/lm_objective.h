#pragma once

#include "megatron/models/objective.h"

namespace megatron {

// Cross entropy of the next tokens, or of masked ones; with MTP layers, theirs as well, as "mtp_1 loss", ….
class LmObjective final : public Objective {
 public:
  explicit LmObjective(int64_t mtp_layers = 0) : mtp_layers_(mtp_layers) {}

  std::vector<std::string> terms() const override;
  Tensor loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
              std::span<Tensor> terms) override;
  // The hidden states, with the losses of the MTP layers attached to them.
  Tensor attach_mtp_losses(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
                           std::span<Tensor> terms) const;

 private:
  int64_t mtp_layers_;
};

}  // namespace megatron
