#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/config/config.h"
#include "megatron/parallel/model_parallel.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {

// What a teacher's run predicts, in the folder of --logits-save-dir: of each iteration a folder, with a file
// of every data- and context-parallel rank that has `places` int64 [tokens] (a token's place in the global
// batch, sample · length + position), its `ids` int64 [tokens], and the likeliest next tokens `tokens` int32
// [tokens, k] (−1: no more) with ln p of each, `log_probs` [tokens, k].
class PredictionRecorder {
 public:
  PredictionRecorder(RankContext& ctx, const ProcessGroup& world, const ParallelContext& parallel,
                     const Config& config);

  // The loss of an iteration's micro-batches, as RankTrainer::evaluate() has it; every rank of the world
  // calls it. What an earlier run recorded of the iteration is gone.
  double evaluate(RankTrainer& trainer, std::span<const Batch> batches, int64_t iteration, int64_t all);

 private:
  struct Rows {
    std::vector<int64_t> places, ids, tokens;
    std::vector<double> log_probs;
    int64_t count() const { return static_cast<int64_t>(places.size()); }
  };
  void add(Rows& rows, Head& head, const Tensor& logits, const Batch& batch, const ContextParallel& context);
  void write(const std::string& folder, const Rows& rows) const;

  RankContext& ctx_;
  const ProcessGroup& world_;
  const ParallelContext& parallel_;
  const DistillConfig& options_;
  int64_t count_;  // of tokens that are kept at most
};

// The same folder as a run reads it that learns from it. Safe to keep over a run: it has no state.
class RecordedPredictions {
 public:
  RecordedPredictions(const Config& config, DType wide);

  // The micro-batches with what was recorded of their tokens. A ConfigError where something of it is missing,
  // or was recorded of other tokens.
  std::vector<Batch> added_to(std::span<const Batch> batches, int64_t iteration) const;

 private:
  std::string folder_;
  DType wide_;
};

}  // namespace megatron
