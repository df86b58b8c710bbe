#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megatron/optimizer/optimizer.h"
#include "megatron/parallel/data/data_parallel.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/training/run/micro_batches.h"
#include "megatron/training/setup/pipeline_setup.h"
#include "megatron/training/step/cuda_graph_step.h"
#include "megatron/training/step/fp8_setup.h"
#include "megatron/training/step/rank_model.h"

namespace megatron {

struct StepReport {
  double loss = 0, grad_norm = 0;
  std::vector<double> mtp_losses;  // the mean loss of each MTP layer
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

  RankModel& model() { return model_; }
  std::vector<Parameter*> parameters() { return model_.parameters(); }
  // What this rank updates, and with it the gradients of the last step, whatever is sharded: as they were
  // summed, so that they are yet to be multiplied by gradient_factor(). Undefined: by nothing.
  std::span<const ParameterSlice> slices() const { return data_parallel_->slices(); }
  const Tensor& gradient_factor() const { return gradient_factor_; }
  Optimizer& optimizer() { return *optimizer_; }
  // Values may be read directly afterwards, those of sharded parameters in slices() alone.
  void finish_parameters() { data_parallel_->finish_parameters(); }
  // `set` writes the values of parameters(), all of which have memory while it runs.
  void set_weights(RankContext& ctx, const std::function<void()>& set);
  GptModel& chunk(int i) { return *model_.chunks()[static_cast<size_t>(i)]; }
  int64_t steps_taken() const { return optimizer_->steps(); }
  Fp8History* fp8_history() { return fp8_history_.get(); }  // null but with delayed scaling

 private:
  MicroBatches micro_batches(std::span<const int64_t> tokens, std::span<const int64_t> lengths,
                             Documents documents) const;
  struct Outcome {
    Tensor loss;             // the mean, one fp64 element on the device
    Tensor gradient_factor;  // what the summed gradients must be multiplied by; undefined: nothing
    Tensor mtp;              // means as well, of the MTP layers; undefined without them
    Tensor gradient_norm;    // where gradients were made
  };
  std::vector<MtpTokens> mtp_tokens(RankContext& ctx, const MicroBatches& batch, int64_t microbatch,
                                    double share) const;
  Outcome run(RankContext& ctx, const MicroBatches& batch, bool forward_only,
              const StepTokens* fixed = nullptr);
  // Forward and backward of all micro-batches, with `fixed` in place of the batch's own tokens.
  Outcome make_gradients(RankContext& ctx, const MicroBatches& batch, const StepTokens* fixed = nullptr);
  const SeqInfo& sequences_of(RankContext& ctx, const TokenRows& rows);
  void values_changed();  // of parameters: their fp8 forms are made again at the next use

  const Config& config_;
  const ParallelContext& parallel_;
  RankModel model_;
  DType dtype_;
  int64_t microbatch_size_, length_;
  std::unique_ptr<DataParallel> data_parallel_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Fp8History> fp8_history_;
  Tensor gradient_factor_;
  std::optional<TokenRows> known_rows_;
  SeqInfo known_sequences_;  // of known_rows_
  std::unique_ptr<CudaGraphStep> captured_;
  Outcome captured_outcome_;    // what the CUDA graph leaves
  SeqInfo captured_sequences_;  // what it reads
};

}  // namespace megatron
