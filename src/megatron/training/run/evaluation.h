#pragma once

#include "megatron/parallel/parallel_context.h"
#include "megatron/training/run/announcer.h"
#include "megatron/training/run/training_run.h"

namespace megatron {

// A rank's evaluations: of the validation sets at intervals and at the end of the run, of the test set at
// the end. What is passed by reference outlives it.
class Evaluation {
 public:
  Evaluation(const TrainingRun& run, const ParallelContext& parallel, const Announcer& announcer)
      : run_(run), parallel_(parallel), announcer_(announcer) {}

  // Whether --eval-interval asks for one after this iteration.
  bool is_due(int64_t iteration) const;
  // Each validation goes on where the last one ended; a full one, and one for which too few samples are left,
  // begins anew. A signal gives it up.
  // Live data evaluates itself, and has no sets.
  void validate(LiveData* live = nullptr);
  // At the end of the run: what was not validated yet, and the test set.
  void finish(LiveData* live = nullptr);

 private:
  bool evaluate(const NamedSource& set, int64_t rounds, int64_t begin, RunEvent start, RunEvent end);
  bool interrupted() const;

  const TrainingRun& run_;
  const ParallelContext& parallel_;
  const Announcer& announcer_;
  int64_t validated_ = -1;  // the iteration of the last validation
};

}  // namespace megatron
