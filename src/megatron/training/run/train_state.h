#pragma once

#include <cstdint>

#include "megatron/base/json.h"

namespace megatron {

// How far a run has come: what a checkpoint keeps beside tensors, and what a run goes on from.
struct TrainState {
  int64_t iteration = 0;          // that are done
  int64_t consumed_samples = 0;   // of training data, in all iterations
  int64_t skipped_samples = 0;    // of iterations that --iterations-to-skip named
  int64_t without_update = 0;     // samples of iterations whose update was not taken, such as fp16 overflows
  int64_t validated_samples = 0;  // of each validation set
  Json rerun;                     // a result that another machine shall compute; null: none
  Json user;                      // what callbacks keep, the same on every rank; null: nothing

  // What the schedules of learning rate and weight decay count.
  int64_t scheduled_samples() const { return consumed_samples - skipped_samples - without_update; }
};

}  // namespace megatron
