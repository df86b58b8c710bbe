#pragma once

#include "megatron/checkpoint/tensor_source.h"
#include "megatron/config/schema/checkpoint_config.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

// What of a rank's parameters goes into a checkpoint, under Megatron's names. Both copies of a tied weight
// have one name: one is saved, both are filled by a load.
std::vector<ShardedTensor> checkpoint_tensors(std::span<Parameter* const> parameters);

// The same of a run, with the state of its optimizer as optimizer.{master,exp_avg,exp_avg_sq}.<name> and that
// of delayed scaling as fp8.history.<name>. What is sharded over data-parallel ranks comes in slices, which a
// checkpoint puts together.
std::vector<ShardedTensor> checkpoint_tensors(RankTrainer& trainer, bool with_optimizer = true);

// The gradients of the last step, of all ranks and multiplied by all that they are yet to be multiplied by,
// in fp32 (fp64 where they are) under the names of their parameters.
std::vector<ShardedTensor> gradient_tensors(RankContext& ctx, RankTrainer& trainer);

// What of a checkpoint a run takes.
struct LoadOptions {
  bool optimizer = true;  // its state, and that of delayed scaling
  bool masters = false;   // without that, the fp32 copies of the weights
  Strictness strictness = Strictness::assume_ok_unexpected;
  bool allow_missing_vision_projection = false;  // the layers behind a vision tower keep their values
  int64_t packed_at_once = int64_t{2} << 20;     // elements of packed states that are fp32 on the device
};

// Tensors that only one side has, where the strictness asks for a list of them, as one rank sees it.
struct LoadReport {
  std::vector<std::string> missing;     // the checkpoint has none of them: they keep their values
  std::vector<std::string> unexpected;  // this rank has none of them; others may
};

// Fills a run's parameters and, where asked to, the state of its optimizer and of delayed scaling. A
// ConfigError lists all that does not fit, before anything is changed.
LoadReport load_run(RankContext& ctx, const TensorSource& source, RankTrainer& trainer,
                    const LoadOptions& options = {});

// Fills the parameters of a model that is not trained. A ConfigError lists all that does not fit.
void load_parameters(RankContext& ctx, const TensorSource& source, std::span<Parameter* const> parameters);

}  // namespace megatron
