#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "megatron/checkpoint/local_share.h"
#include "megatron/checkpoint/plan_exchange.h"
#include "megatron/checkpoint/snapshot.h"
#include "megatron/training/run/held_state.h"
#include "megatron/training/run/replica_exchange.h"

namespace megatron {

// Checkpoints on disks of the ranks' own machines (--non-persistent-ckpt-type local): every rank writes what
// it holds, and what other ranks have sent it to keep. Nothing is shared, so a save takes as long as one disk
// needs for one rank's share, however many ranks there are. All ranks of `world` call each function alike.
class LocalCheckpoints {
 public:
  struct Options {
    std::string folder;          // of this run; the same path on every machine, or another
    bool fully_parallel = true;  // replicas share what they hold alike; else each writes all of its own
    int64_t factor = 1;          // copies of each share, the rank's own included
    int64_t jump = 0;            // ranks to the next copy; 0: as many as share a machine
  };

  LocalCheckpoints(RankContext& ctx, const ProcessGroup& world, Options options);
  ~LocalCheckpoints();  // waits for the writing thread; what was not published is given up
  LocalCheckpoints(const LocalCheckpoints&) = delete;

  // What should be known about where copies go; empty: nothing.
  const std::string& note() const { return note_; }

  // Copies the tensors to host memory, sends copies to others, and writes, in the background where `async`. A
  // save under way is finished first. An Error on all ranks where one of them fails.
  // `order`: see Snapshot.
  void save(const TrainingState& state, std::span<const ShardedTensor> tensors, bool async,
            std::span<const std::vector<Tensor>> order = {});
  bool busy() const { return job_ != nullptr; }
  bool holds_back() const { return snapshot_.holds_back(); }
  // To be called before the tensors change, or those of a group do.
  void before_change(std::optional<size_t> group = {}) {
    group ? snapshot_.hold_back(ctx_, *group) : snapshot_.hold_back(ctx_);
  }
  // The iteration whose save was finished in this call; older sets are deleted then.
  std::optional<int64_t> poll();
  std::optional<int64_t> finish();  // waits

  // A set that some rank has a share of.
  struct Candidate {
    int64_t iteration = 0;
    std::string set;
    std::optional<BaseCheckpoint> base;
  };
  std::vector<Candidate> candidates() const;  // newest first
  // The state of a set, where the ranks have all of it together; else none. Every rank reads and checks what
  // it offers; `damages` takes what it found, of all ranks.
  std::optional<TensorSource> restore(const Candidate& candidate, std::span<const ShardDescription> wanted,
                                      std::vector<std::string>& damages) const;

 private:
  struct Job;
  struct Share {
    int owner;
    TrainingState state;
    std::vector<StoredTensor> plan;
    std::vector<OwnChunk> chunks;
  };
  std::vector<Share> exchange(Share own);
  std::string list_sets() const;
  HeldState read_shares(const std::string& set, const std::vector<int>& here,
                        std::vector<std::string>& damages) const;
  std::vector<int> ranks_here() const;

  RankContext& ctx_;
  const ProcessGroup& world_;
  Options options_;
  std::string note_;
  ReplicaPlaces places_;
  SavePlanCache plans_;
  Snapshot snapshot_;
  std::unique_ptr<Job> job_;
};

}  // namespace megatron
