#pragma once

#include <optional>
#include <span>
#include <vector>

#include "megatron/models/model.h"

namespace megatron {

// The configuration of a model that is run beside the one that a run trains: `model` under the same groups of
// ranks. Its layers are dealt out evenly, in one chunk a stage where the head stays on the same rank.
Config teacher_config(const Config& student, const ModelConfig& model);

// A second model, from whose predictions a run learns (--export-kd-teacher-load): a rank's part of it, which
// is passed forward alone, has no optimizer and is not saved. Data-parallel ranks hold it whole.
class Teacher {
 public:
  // With memory, not yet with values. `config`: teacher_config().
  Teacher(RankContext& ctx, const Config& config, const ParallelContext& parallel, DType dtype);

  std::vector<Parameter*> parameters() { return model_.parameters(); }
  void initialize(RankContext& ctx, uint64_t seed);
  Model& model() { return model_; }
  Head* head() { return model_.head(); }  // null: another rank's

  // What the last layer makes of each micro-batch, where this rank has the head; of all of them before the
  // model that learns begins, so that each runs the schedule of its own pipeline.
  std::vector<Tensor> hidden_states(RankContext& ctx, std::span<const Batch> batches);

 private:
  SeqInfo sequences(RankContext& ctx, const Batch& batch);

  Model model_;
  std::optional<TokenRows> known_rows_;
  SeqInfo known_sequences_;  // of known_rows_
};

}  // namespace megatron
