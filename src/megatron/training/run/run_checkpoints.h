#pragma once

#include <functional>
#include <memory>
#include <string>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"
#include "megatron/training/run/train_state.h"

namespace megatron {

class AutoBridge;
class RankTrainer;

// A rank's saving and loading, as the settings of `checkpoint.*` ask for. All ranks of `world` call each
// function alike. Everything passed to the constructor outlives the object.
class RunCheckpoints {
 public:
  // Told on the first rank: a line for people.
  using Tell = std::function<void(const std::string& line)>;

  RunCheckpoints(RankContext& ctx, const ProcessGroup& world, const Config& config, RankTrainer& trainer,
                 std::shared_ptr<const AutoBridge> hf, Tell tell);

  // Fills the trainer from --load, or else from the Hugging Face model, and gives the place to go on from.
  TrainState load();
  // Saves to --save where --save-interval asks for it after this iteration; whether it did.
  bool save_at_interval(const TrainState& progress);
  // Saves to --save, unless this iteration is there already.
  void save(const TrainState& progress);
  // Saves what --save does not have yet; the run ends.
  void finish(const TrainState& progress);

 private:
  void tell(const std::string& line) const;

  RankContext& ctx_;
  const ProcessGroup& world_;
  const Config& config_;
  RankTrainer& trainer_;
  std::shared_ptr<const AutoBridge> hf_;
  Tell tell_;
  int64_t saved_ = -1;  // the iteration of the newest checkpoint
};

}  // namespace megatron
