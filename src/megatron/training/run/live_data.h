#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megatron/datasets/batch_source.h"
#include "megatron/training/run/callback.h"

namespace megatron {

struct TrainingRun;

// Training data that a run makes by the model that learns, such as its rewarded answers: a rank's part of it.
// All ranks call everything alike.
class LiveData {
 public:
  virtual ~LiveData() = default;
  // The micro-batches of this rank's replica, equally many for each; once for every iteration.
  virtual std::vector<Batch> step(const StepRequest& request) = 0;
  // What is told of them beside losses, under the same names in every iteration.
  virtual std::vector<LossTerm> terms() const = 0;
  // In place of the loss of validation sets.
  virtual std::vector<LossTerm> evaluate() = 0;
  // What a checkpoint keeps, so that a run goes on from it bit for bit; the same on every rank.
  virtual Json state() const = 0;
  // A checkpoint of this iteration is complete.
  virtual void saved(int64_t iteration) = 0;
};

// Makes it once the trainer has its weights; `state`: what a checkpoint kept, or null. `tell` takes lines for
// people.
using LiveDataMaker = std::function<std::unique_ptr<LiveData>(
    const TrainingRun& run, RunView& view, const Json& state, std::function<void(const std::string&)> tell)>;

}  // namespace megatron
