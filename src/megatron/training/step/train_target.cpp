#include "megatron/training/step/train_target.h"

namespace megatron {

void freeze_other_side(TrainTarget target, Model& model) {
  if (target == TrainTarget::none || target == TrainTarget::both) return;
  const bool mtp_learns = target == TrainTarget::mtp;
  for (Parameter* parameter : model.parameters())
    if (parameter->name.starts_with("mtp.") != mtp_learns) parameter->trainable = false;
  for (const std::unique_ptr<GptModel>& chunk : model.decoders())
    chunk->hold_expert_biases(mtp_learns, !mtp_learns);
}

}  // namespace megatron
