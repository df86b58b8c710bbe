#pragma once

#include <functional>
#include <memory>
#include <string>

#include "megatron/autograd/rank_context.h"
#include "megatron/checkpoint/folder_lock.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/run/train_state.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {

class AutoBridge;

// A rank's saving and loading, as the settings of `checkpoint.*` ask for. All ranks of `world` make one and
// call each function alike. Everything that is passed by reference outlives it.
//
// A save that fails is told, and the run goes on: what was saved before is as it was, and the next interval
// tries again. Only at the end, in finish(), does it become an error.
class RunCheckpoints {
 public:
  // Told on the first rank: a line for people.
  using Tell = std::function<void(const std::string& line)>;

  // Locks the folder of --save for this run: a ConfigError where another one has it. `schedule` is saved, and
  // becomes the checkpoint's where --use-checkpoint-opt_param-scheduler asks for that.
  RunCheckpoints(RankContext& ctx, const ProcessGroup& world, const Config& config, RankTrainer& trainer,
                 RateSchedule& schedule, std::shared_ptr<const AutoBridge> hf, Tell tell);

  // Fills the trainer from --load, else --pretrained-checkpoint, else the Hugging Face model, and gives the
  // place to go on from.
  TrainState load();
  // Saves where an interval asks for it after this iteration; whether it did.
  bool save_at_interval(const TrainState& progress);
  // Saves to --save, in the background where --async-save asks for that; whether it did, or began to. A save
  // under way is finished first.
  bool save(const TrainState& progress);
  // Once an iteration: publishes what was written in the background by all ranks.
  void poll();
  // Before each update of parameters: on a GPU, what is being saved is copied first.
  void before_update() { saver_.before_change(ctx_); }
  // Waits for what is being written and saves what --save does not have yet: the run ends. An Error where
  // that fails.
  void finish(const TrainState& progress);

 private:
  // A save that was begun.
  struct Begun {
    bool persistent = true;  // to --save, not to the folder of non-persistent ones
    int64_t iteration = 0;
    bool failed = false;
  };
  // What a checkpoint gave.
  struct Taken {
    TrainState progress;
    LoadReport report;
    std::vector<std::string> notes;
  };

  void tell(const std::string& line) const;
  bool load_from(const std::vector<LoadPlace>& places, TrainState& progress);
  Taken take(const LoadPlace& place, bool weights_only);
  void tell_report(const Taken& taken);
  void check_schedule(const TensorSource& source);
  const std::string& root_of(bool persistent) const;
  SaveRequest request(bool persistent, const TrainState& progress);
  bool save_to(bool persistent, const TrainState& progress);
  void finish_saver();
  void attempt(Begun begun, const std::function<void()>& save);
  void published(const std::string& path);

  RankContext& ctx_;
  const ProcessGroup& world_;
  const Config& config_;
  RankTrainer& trainer_;
  RateSchedule& schedule_;
  std::shared_ptr<const AutoBridge> hf_;
  Tell tell_;
  std::string non_persistent_;             // the folder of non-persistent checkpoints; empty: there are none
  FolderLock lock_, non_persistent_lock_;  // the first rank's
  std::vector<CheckpointAsset> assets_;    // the first rank's: what a checkpoint keeps of the folder of --hf
  SavePlanCache plans_;
  AsyncSaver saver_;
  Begun begun_;
  int64_t saved_ = -1;         // the iteration of the newest checkpoint in --save
  bool loaded_rerun_ = false;  // that checkpoint holds a result that waits for another machine
};

}  // namespace megatron
