#pragma once

#include <memory>
#include <string>

#include "megatron/training/run/training_run.h"

namespace megatron::rl {

// The policy that a run began with, which the KL term holds on to: a second model of the same ranks.
class Reference {
 public:
  // At the beginning of a run it is the model that learns. Later on its weights are read, or drawn, once more
  // from `origin`.
  Reference(const TrainingRun& run, RunView& view, const std::string* origin);

  Model& model() { return teacher_.model(); }
  // Where the weights that a run begins with come from: "hf", the path of a checkpoint, or "": they are
  // drawn.
  static std::string origin_of(const TrainingRun& run);

 private:
  void load(const TrainingRun& run, RunView& view, const std::string& origin);

  Teacher teacher_;
};

}  // namespace megatron::rl
