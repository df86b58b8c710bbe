#pragma once

#include <memory>
#include <span>
#include <vector>

#include "megatron/models/gpt.h"
#include "megatron/optimizer/adam.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/training/micro_batches.h"
#include "megatron/training/pipeline_setup.h"

namespace megatron {

struct StepReport {
  double loss = 0, grad_norm = 0;
};

// One rank of a training run: its chunks of the model, its optimizer, and the step that they take together
// with the other ranks.
class RankTrainer {
 public:
  using Documents = std::span<const std::vector<int64_t>>;

  RankTrainer(RankContext& ctx, const Config& config, const ParallelContext& parallel, DType dtype);

  // One optimizer step. `tokens` are the sequences of this data-parallel rank, [micro-batches, micro-batch
  // size, length + 1]: each is its own input and, shifted by one, its labels. `lengths`: of each
  // micro-batch's sequences where they differ (variable_seq_lengths). `documents`: the lengths of what is
  // packed into each row, which attends to itself alone; none: every row is one sequence.
  StepReport step(RankContext& ctx, std::span<const int64_t> tokens, double lr,
                  std::span<const int64_t> lengths = {}, Documents documents = {});
  // The mean loss of the same kind of batch, without learning from it.
  double evaluate(RankContext& ctx, std::span<const int64_t> tokens, std::span<const int64_t> lengths = {},
                  Documents documents = {});

  std::vector<Parameter*> parameters();
  Adam& optimizer() { return *optimizer_; }
  GptModel& chunk(int i) { return *chunks_[static_cast<size_t>(i)]; }
  int64_t steps_taken() const { return optimizer_->steps(); }

 private:
  MicroBatches micro_batches(std::span<const int64_t> tokens, std::span<const int64_t> lengths,
                             Documents documents) const;
  // The mean loss, one fp64 element on the device.
  Tensor run(RankContext& ctx, const MicroBatches& batch, bool forward_only);
  void finish_gradients(RankContext& ctx);

  const Config& config_;
  const ParallelContext& parallel_;
  ModelParallel model_parallel_;
  DType dtype_;
  int64_t microbatch_size_, length_;
  std::vector<std::unique_ptr<GptModel>> chunks_;
  std::unique_ptr<Adam> optimizer_;
};

}  // namespace megatron
