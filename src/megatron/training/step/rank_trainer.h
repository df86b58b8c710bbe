#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/models/model.h"
#include "megatron/models/objective.h"
#include "megatron/models/pipeline_setup.h"
#include "megatron/optimizer/loss_scale.h"
#include "megatron/optimizer/optimizer.h"
#include "megatron/parallel/data/data_parallel.h"
#include "megatron/parallel/micro_batch.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/training/step/aux_loss_log.h"
#include "megatron/training/step/cuda_graph_step.h"
#include "megatron/training/step/fp8_setup.h"
#include "megatron/training/step/qk_clip.h"
#include "megatron/training/step/step_report.h"
#include "megatron/training/step/teacher.h"

namespace megatron {

// Which step of the run gradients are made for.
struct StepKey {
  int64_t iteration = 0;  // from 0; dropout draws other numbers in every one
  int64_t batches = 0;    // micro-batches of all replicas; 0: all have as many as this one
};

// What a step's passes left: its gradients, summed over all ranks, lie in the slices of the trainer.
struct Gradients {
  Tensor loss;      // the mean, one fp64 element on the device
  Tensor terms;     // what the objective reports further, fp64; undefined: none
  Tensor aux;       // those of the routers' losses, fp64; undefined: none
  Tensor norm;      // of the gradients, fp64 [1]
  Tensor zeros;     // elements of the gradients that are zero, fp64 [1]; undefined: not counted
  Tensor mtp_norm;  // of detached MTP layers, which `norm` leaves out; undefined: there are none
  Tensor factor;    // what the summed gradients are yet to be multiplied by; undefined: nothing
};

// What a program adds to training.
struct TrainerOptions {
  std::function<void(Model&)> prepare = {};  // adapters, freezing: before buffers exist
  bool weights_follow = false;  // all values are set before the first step, so that none need be drawn
  std::function<std::unique_ptr<Objective>(const Config&)> objective = {};  // empty: the language-model loss
  // The model from whose predictions the run learns, as `distill` asks for; null: there is none. Its weights
  // are set before the first step.
  std::shared_ptr<const ModelConfig> teacher = {};
};

// One rank of a training run: its chunks of the model, its optimizer, and the step that they take together
// with the other ranks.
class RankTrainer {
 public:
  using Documents = std::span<const std::vector<int64_t>>;

  RankTrainer(RankContext& ctx, const Config& config, const ParallelContext& parallel, DType dtype,
              const TrainerOptions& options = {});

  // The two halves of a step on this replica's micro-batches. gradients() may be called again instead of
  // update(): nothing else has changed. update() changes nothing where loss or gradients are not finite. It
  // calls `before` with each of the optimizer's change_groups() before that changes, and with none before
  // anything else does.
  using BeforeChange = std::function<void(std::optional<size_t> group)>;
  Gradients gradients(RankContext& ctx, std::span<const Batch> batches, const StepKey& key);
  StepReport update(RankContext& ctx, const Gradients& gradients, const Rates& rates,
                    const BeforeChange& before = {});
  // Both, of the iteration after the optimizer's last step.
  StepReport step(RankContext& ctx, std::span<const Batch> batches, const Rates& rates);
  // The mean loss of micro-batches, without learning from them. `all`: micro-batches of all replicas; 0: all
  // have as many as this one.
  // `observer` sees the logits of each, on the ranks that have them.
  using LogitObserver = std::function<void(Head& head, const Tensor& logits, const MicroBatch& micro)>;
  double evaluate(RankContext& ctx, std::span<const Batch> batches, int64_t all = 0,
                  const LogitObserver& observer = {});

  // The same of rows of tokens, [micro-batches, micro-batch size, length + 1]: see batches_of_tokens().
  StepReport step(RankContext& ctx, std::span<const int64_t> tokens, const Rates& rates,
                  std::span<const int64_t> lengths = {}, Documents documents = {});
  double evaluate(RankContext& ctx, std::span<const int64_t> tokens, std::span<const int64_t> lengths = {},
                  Documents documents = {});

  Model& model() { return model_; }
  const ParallelContext& parallel() const { return parallel_; }
  const Objective& objective() const { return *objective_; }
  Teacher* teacher() { return teacher_.get(); }  // null: there is none
  std::vector<Parameter*> parameters() { return model_.parameters(); }
  // What this rank updates, and with it the gradients of the last step, whatever is sharded: as they were
  // summed, so that they are yet to be multiplied by gradient_factor(). Undefined: by nothing.
  std::span<const ParameterSlice> slices() const { return data_parallel_->slices(); }
  const Tensor& gradient_factor() const { return gradient_factor_; }
  Optimizer& optimizer() { return *optimizer_; }
  LossScale& loss_scale() { return loss_scale_; }  // 1 but in fp16; part of a checkpoint's TrainingState
  // Values may be read directly afterwards, those of sharded parameters in slices() alone.
  void finish_parameters() { data_parallel_->finish_parameters(); }
  // The values of parameters() were written one by one, as a checkpoint is read.
  void values_written(RankContext& ctx) { data_parallel_->values_written(ctx); }
  // `set` writes the values of parameters(), all of which have memory while it runs.
  void set_weights(RankContext& ctx, const std::function<void()>& set);
  GptModel& chunk(int i) { return model_.decoder(i); }
  int64_t steps_taken() const { return optimizer_->steps(); }
  Fp8History* fp8_history() { return fp8_history_.get(); }  // null but with delayed scaling

 private:
  struct Passes;  // forward and backward of all micro-batches of a step
  std::vector<Batch> batches_of(std::span<const int64_t> tokens, std::span<const int64_t> lengths,
                                Documents documents) const;
  Gradients make_gradients(RankContext& ctx, const Passes& passes);
  void unscale(RankContext& ctx, Gradients& gradients, double labels);
  std::unique_ptr<Objective> make_objective(const TrainerOptions& options);
  int64_t weighted_terms() const { return static_cast<int64_t>(objective_->weighted_terms()); }
  void clip_mtp_layers(RankContext& ctx, const Gradients& gradients, const Tensor& coefficient);
  void finish_report(StepReport& report);
  SeqInfo sequences_of(RankContext& ctx, const TokenRows& rows);
  bool tower_learns();
  void values_changed();  // of parameters: their fp8 forms are made again at the next use

  const Config& config_;
  const ParallelContext& parallel_;
  Model model_;
  DType dtype_;
  Stream copies_;                     // of micro-batches from the host
  std::unique_ptr<Teacher> teacher_;  // null: there is none
  std::unique_ptr<Objective> objective_;
  std::vector<std::string> terms_;  // names of what it reports
  AuxLossLog aux_losses_;           // reported behind them
  std::unique_ptr<DataParallel> data_parallel_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<QkClip> qk_clip_;
  LossScale loss_scale_;
  std::unique_ptr<Fp8History> fp8_history_;
  Tensor gradient_factor_;
  std::optional<TokenRows> known_rows_;
  SeqInfo known_sequences_;  // of known_rows_
  std::unique_ptr<CudaGraphStep> graph_;
  Gradients captured_;  // what the graph leaves
};

}  // namespace megatron
