#pragma once

#include <functional>
#include <string>

#include "megatron/checkpoint/sharded_tensor.h"
#include "megatron/comm/process_group.h"
#include "megatron/training/log/step_probe.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

// Tensors of single steps, for whoever looks into a run: --save-wgrads-interval and --save-params-interval,
// and what StepProbe sees. What all ranks hold lies in DIR/wgrads/iter_0000123 and DIR/params/iter_0000123 of
// --save, under the names and in the files of a checkpoint, whatever the layout. All ranks call each function
// alike.
class TensorDumps {
 public:
  TensorDumps(RankContext& ctx, const ProcessGroup& world, const ParallelContext& parallel,
              const Config& config, RankTrainer& trainer, bool restarted,
              std::function<void(const std::string& line)> tell);

  void before_passes(int64_t iteration) { probe_.begin(ctx_, iteration); }

  // `iteration`, from 1, has its gradients, of all ranks and as the optimizer reads them before clipping.
  void after_gradients(int64_t iteration);
  void after_update(int64_t iteration);

 private:
  void save(const char* what, int64_t iteration, std::vector<ShardedTensor> tensors);

  RankContext& ctx_;
  const ProcessGroup& world_;
  const CheckpointConfig& config_;
  RankTrainer& trainer_;
  std::function<void(const std::string&)> tell_;
  StepProbe probe_;
};

}  // namespace megatron
