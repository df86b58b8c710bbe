#pragma once

#include <memory>

#include "megatron/inference/engine.h"
#include "megatron/parallel/refit.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron::rl {

// How a run lays its model out while it answers, where that differs from training: no tokens are split then
// (sequence and context parallelism), and --rl-inference-* give sizes of their own.
Config inference_layout(const Config& config);

// The engine that answers, on the weights that are trained: on the trainer's own model where that can decode
// as it is laid out, else on a copy with a layout of its own, which refresh() brings the present weights.
// Ranks of one group answer together, each group other prompts.
class InferenceModel {
 public:
  InferenceModel(RankContext& ctx, const Config& config, RankTrainer& trainer);

  // The weights are others now.
  void refresh();
  // Frees the cache until the next answer.
  void release();

  Engine& engine();  // made when first needed
  int groups() const { return groups_; }
  int group() const { return group_; }
  bool is_first() const { return ranks_.rank() == 0; }  // of its group: who gives the engine requests
  bool is_copy() const { return copy_ != nullptr; }

 private:
  // A model of its own with its groups.
  struct Copy {
    Copy(Config layout, const ProcessGroup& world, DType dtype);
    Config config;
    ParallelContext parallel;
    Model model;
    std::unique_ptr<Refit> refit;
  };
  Model& model() { return copy_ ? copy_->model : trainer_.model(); }

  RankContext& ctx_;
  const Config& config_;
  RankTrainer& trainer_;
  std::unique_ptr<Copy> copy_;  // null: the trainer's model answers
  ProcessGroup ranks_;          // that answer together
  int groups_ = 1, group_ = 0;
  std::unique_ptr<Engine> engine_;
};

}  // namespace megatron::rl
