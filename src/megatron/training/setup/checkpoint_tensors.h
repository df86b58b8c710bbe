#pragma once

#include "megatron/checkpoint/load.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

// What of a rank's parameters goes into a checkpoint, under Megatron's names. Both copies of a tied weight
// have one name: one is saved, both are filled by a load.
std::vector<ShardedTensor> checkpoint_tensors(std::span<Parameter* const> parameters);

// The same of a run, with the state of its optimizer as optimizer.{master,exp_avg,exp_avg_sq}.<name> and that
// of delayed scaling as fp8.history.<name>. What is sharded over data-parallel ranks comes in slices, which a
// checkpoint puts together.
std::vector<ShardedTensor> checkpoint_tensors(RankContext& ctx, RankTrainer& trainer,
                                              bool with_optimizer = true);

// Fills a run's parameters and, where asked to, the state of its optimizer and of
// delayed scaling.
void load_run(RankContext& ctx, CheckpointReader& reader, RankTrainer& trainer, bool with_optimizer = true);

}  // namespace megatron
