#pragma once

#include <memory>

#include "megatron/checkpoint/plan_exchange.h"
#include "megatron/checkpoint/snapshot.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// A file that a checkpoint keeps beside its tensors: a tokenizer, the configuration of the model it came
// from.
struct CheckpointAsset {
  std::string name;  // relative to the checkpoint
  std::string contents;
};

struct SaveRequest {
  std::string root;  // what --save names
  TrainingState state;
  std::vector<ShardedTensor> tensors;                  // this rank's
  std::vector<CheckpointAsset> assets;                 // rank 0's are written
  std::vector<std::vector<Tensor>> change_order;       // of the next update, for saves in the background
  std::vector<std::string> being_removed;              // rank 0's: what a thread of its own deletes there
  std::function<void(std::string_view step)> on_step;  // told, on every rank, what is about to begin
};

// Saves what the ranks of `world` hold; all of them call it. Returns the checkpoint's path. Where one rank
// fails, all throw the same Error, and what was saved before is as it was. One save at a time: what else is
// being written under the root counts as the rest of a killed one, so an AsyncSaver is finished first.
std::string save_checkpoint(RankContext& ctx, const ProcessGroup& world, const SaveRequest& request,
                            SavePlanCache* plans = nullptr);

// Saves in the background: start() returns as soon as the rank's share is copied to host memory, or on a GPU
// as soon as the copies are queued. The files appear under their name once all ranks are done, which poll()
// finds out; all ranks call both alike.
class AsyncSaver {
 public:
  AsyncSaver();
  ~AsyncSaver();  // waits for the writing thread; what was not published is given up
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // A save that is still under way is finished first.
  void start(RankContext& ctx, const ProcessGroup& world, const SaveRequest& request);
  bool busy() const { return job_ != nullptr; }
  // To be called before the tensors of the request change: the rank's stream waits for their copies.
  void before_change(RankContext& ctx) { snapshot_.hold_back(ctx); }
  // Only before those of a group of the request's change_order do.
  void before_change(RankContext& ctx, size_t group) { snapshot_.hold_back(ctx, group); }
  bool holds_back() const { return snapshot_.holds_back(); }
  // The path of the checkpoint that was finished in this call; none while ranks are still writing, or nothing
  // is under way.
  std::optional<std::string> poll(const ProcessGroup& world);
  std::optional<std::string> finish(const ProcessGroup& world);  // waits

 private:
  struct Job;
  Snapshot snapshot_;
  SavePlanCache plans_;
  std::unique_ptr<Job> job_;
};

}  // namespace megatron
