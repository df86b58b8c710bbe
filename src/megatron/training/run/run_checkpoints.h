#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "megatron/autograd/rank_context.h"
#include "megatron/checkpoint/folder_lock.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"
#include "megatron/training/run/checkpoint_loader.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/run/local_checkpoints.h"
#include "megatron/training/run/memory_snapshot.h"
#include "megatron/training/run/old_checkpoints.h"
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
  // becomes the checkpoint's where --use-checkpoint-opt_param-scheduler asks for that. `restarted`: after a
  // fault of this run, of which a process that was left out may still have the lock; `lock_holders` are those
  // that had it or may have it, to which this one is added before it locks.
  RunCheckpoints(RankContext& ctx, const ProcessGroup& world, const Config& config, RankTrainer& trainer,
                 RateSchedule& schedule, std::shared_ptr<const AutoBridge> hf, bool restarted,
                 std::set<std::string>& lock_holders, Tell tell);

  // Fills the trainer from --load, else --pretrained-checkpoint, else the Hugging Face model, and gives the
  // place to go on from. After a restart from what --save has, where it has something.
  TrainState load();
  // Fills the trainer from ranks' memory; none where it does not hold everything.
  std::optional<TrainState> restore(MemorySnapshot& memory);
  // Copies what a checkpoint of this moment would hold.
  void keep(MemorySnapshot& memory, const TrainState& progress);
  // Whether an interval asks for a save after this iteration.
  bool saves_at(const TrainState& progress) const;
  // Whether --save-interval-in-mins have passed since the last save here. Clocks differ: ranks ask each
  // other.
  bool is_time_to_save() const;
  // Saves where one does; whether it did.
  bool save_at_interval(const TrainState& progress);
  // Saves to --save, in the background where --async-save asks for that; whether it did, or began to. A save
  // under way is finished first.
  bool save(const TrainState& progress);
  // Once an iteration: publishes what was written in the background by all ranks.
  void poll();
  // Whether what is being saved is yet to be copied, on a GPU, before the next update may change it.
  bool holds_back() const;
  // Before an update changes anything, or a group of what the optimizer changes: its copies come first.
  void before_change(std::optional<size_t> group);
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
  using LocalSets = std::vector<LocalCheckpoints::Candidate>;

  void tell(const std::string& line) const;
  bool load_from(const std::vector<LoadPlace>& places, const LocalSets& local, TrainState& progress);
  std::vector<LoadPlace> places_to_load(const LocalSets& local) const;
  std::optional<TensorSource> open_local(const LoadPlace& place, const LocalSets& local);
  void keep_files(std::vector<CheckpointAsset> files);
  void keep_files_of(const std::vector<LoadPlace>& places);
  void recall_files();
  const std::string& root_of(bool persistent) const;
  TrainingState training_state(const TrainState& progress);
  SaveRequest request(bool persistent, const TrainState& progress);
  bool save_to(bool persistent, const TrainState& progress);
  bool save_locally(const TrainState& progress);
  void attempt_local(const std::function<std::optional<int64_t>()>& save);
  BaseCheckpoint base() const;
  ChangeGroups change_order() const;
  void finish_saver();
  void attempt(Begun begun, const std::function<void()>& save);
  void published(const std::string& path);

  RankContext& ctx_;
  const ProcessGroup& world_;
  const Config& config_;
  RankTrainer& trainer_;
  RateSchedule& schedule_;
  std::shared_ptr<const AutoBridge> hf_;
  bool restarted_;
  Tell tell_;
  CheckpointLoader loader_;
  std::string non_persistent_;             // the folder of non-persistent checkpoints; empty: there are none
  FolderLock lock_, non_persistent_lock_;  // the first rank's
  std::vector<CheckpointAsset> assets_;    // the first rank's: a model's own files, and its tokenizer
  SavePlanCache plans_;
  AsyncSaver saver_;
  std::optional<LocalCheckpoints> local_;
  std::optional<ReplicaPlaces> memory_places_;  // where copies in memory are kept by others, too
  Begun begun_;
  OldCheckpoints old_{[this](const std::string& line) { tell(line); }};  // the first rank's
  int64_t saved_ = -1;                         // the iteration of the newest checkpoint in --save
  std::optional<BaseCheckpoint> loaded_base_;  // what the run went on from, where --save has nothing yet
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
  bool loaded_rerun_ = false;  // that checkpoint holds a result that waits for another machine
};

}  // namespace megatron
