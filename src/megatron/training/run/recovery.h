#pragma once

#include <string>

#include "megatron/training/run/announcer.h"
#include "megatron/training/run/restart.h"
#include "megatron/training/run/run_checkpoints.h"
#include "megatron/training/run/training_run.h"

namespace megatron {

// What a rank keeps in memory for a restart within the process, and where its state comes from after a
// fault. Without --inprocess-restart it keeps nothing and loads as ever. What is passed by reference outlives
// it, the tensors that are kept too.
class Recovery {
 public:
  Recovery(RankContext& ctx, const ProcessGroup& world, const TrainingRun& run, const Announcer& announcer);
  ~Recovery();
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  bool restarted() const { return run_.restart && run_.restart->number > 0; }
  RankMemory& memory() { return kept_; }
  bool from_memory() const;  // whether load() found everything there

  // After a fault from the nearest place: the ranks' memory, then a checkpoint. `layout` is for people.
  TrainState load(RunCheckpoints& checkpoints, const std::string& layout);
  // Where --inprocess-snapshot-interval asks for it, and of the state that load() gave.
  void keep(RunCheckpoints& checkpoints, const TrainState& state);
  bool has_newcomer() const { return keeps_snapshots() && run_.restart->has_newcomer(); }
  bool has_kept(int64_t iteration) const { return kept_.snapshot.newest() == iteration; }

  // Behind a step: the state of `iteration` is this rank's now.
  void finish_step(int64_t iteration);
  // How long the restart took, behind its first step.
  void tell_times(int64_t iteration) const;
  bool holds_back() const { return memory_ && memory_->holds_back(); }
  // See MemorySnapshot.
  void before_change(std::optional<size_t> group);

 private:
  bool keeps_snapshots() const { return memory_ && run_.config.inprocess_restart.snapshot_interval > 0; }
  TrainState load_again(RunCheckpoints& checkpoints);
  void tell_about_snapshots() const;

  RankContext& ctx_;
  const ProcessGroup& world_;
  const TrainingRun& run_;
  const Announcer& announcer_;
  RankMemory own_;  // of a run without restarts
  RankMemory& kept_;
  MemorySnapshot* memory_;                                  // null: nothing is kept for a restart
  int64_t first_ = 0;                                       // the iteration that load() gave
  std::string restored_from_;                               // after a fault
  RestartState::Moment set_up_{}, restored_{}, kept_at_{};  // when this rank was
};

}  // namespace megatron
