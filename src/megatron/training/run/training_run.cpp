#include "megatron/training/run/training_run.h"

#include <chrono>
#include <cmath>
#include <optional>

#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/source_files.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/kernels/attention_dispatch.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/run/profiling.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/setup/parallel_setup.h"
#include "megatron/training/setup/run_settings.h"
#include "megatron/training/step/gemm_autotune_cache.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

constexpr double kRunGib = 1 << 30;

struct Counters {
  int64_t iteration = 0, consumed_samples = 0;
};

class RankRun {
 public:
  RankRun(RankContext& ctx, const ProcessGroup& world, const TrainingRun& run)
      : ctx_(ctx),
        world_(world),
        run_(run),
        config_(run.config),
        parallel_(ParallelContext::from_sizes(world, parallel_sizes(config_, world.size()))),
        gemm_autotune_(ctx, world, config_.precision.deterministic_mode ? "" : run.cache),
        trainer_(ctx, config_, parallel_, model_dtype(config_)),
        schedule_(rate_schedule(config_, run.iterations)),
        flops_per_token_(model_flops_per_token(config_.model, config_.model.seq_length)),
        profiling_(ctx, config_.profiling) {}

  void run() {
    tell(gemm_autotune_.news());
    load();
    if (at_.iteration >= run_.iterations)
      tell(fmt::format("all {} iterations are done; a larger --train-iters goes on", run_.iterations));
    const int64_t first = at_.iteration;
    while (at_.iteration < run_.iterations) {
      iterate();
      tell_attention();
      if (at_.iteration == first + 1) {
        gemm_autotune_.finish_first_step();
        tell(gemm_autotune_.news());
      }
      follow_memory();
      const int64_t eval_every = config_.validation.eval_interval;
      if (eval_every > 0 && at_.iteration % eval_every == 0) evaluate();
      const int64_t every = config_.checkpoint.save_interval;
      if (!config_.checkpoint.save.empty() && every > 0 && at_.iteration % every == 0) save();
      if (iterations_here_ == 1) ctx_.allocator->reset_peaks();
    }
    if (!config_.checkpoint.save.empty() && saved_ != at_.iteration) save();
  }

 private:
  void tell(const std::string& what) const {
    if (world_.rank() == 0 && run_.on_event && !what.empty()) run_.on_event(what);
  }

  // Which kernels attention took, once per shape.
  void tell_attention() {
    if (world_.rank() != 0) return;
    for (const AttentionDispatch& dispatch : attention_dispatches(ctx_.kernel_context(), attention_told_)) {
      tell(dispatch.line());
      ++attention_told_;
    }
  }

  void load() {
    const std::string& root = config_.checkpoint.load;
    if (!root.empty() && has_checkpoint(root)) {
      CheckpointReader reader(root);
      const bool resume = !config_.checkpoint.finetune;
      const bool optimizer = resume && config_.checkpoint.load_optim;
      load_run(ctx_, reader, trainer_, optimizer);
      if (resume) {
        at_ = {reader.state().iteration, reader.state().consumed_samples};
        saved_ = at_.iteration;
        trainer_.optimizer().set_steps(optimizer ? reader.state().optimizer_steps : 0);
      }
      return tell(fmt::format("loaded {}", reader.path()));
    }
    if (!root.empty() && config_.checkpoint.exit_on_missing_checkpoint)
      throw ConfigError(fmt::format("--load {}: there is no checkpoint", root));
    if (!root.empty()) tell(fmt::format("no checkpoint in {} yet: training begins at iteration 0", root));
    if (!run_.hf) return;
    trainer_.set_weights(ctx_, [&] { run_.hf->load(ctx_, trainer_.parameters()); });
    tell(fmt::format("weights from {}", run_.hf->directory()));
  }

  void save() {
    SaveRequest request{.root = config_.checkpoint.save,
                        .tensors = checkpoint_tensors(ctx_, trainer_, config_.checkpoint.save_optim)};
    request.state.iteration = at_.iteration;
    request.state.consumed_samples = at_.consumed_samples;
    request.state.optimizer_steps = trainer_.steps_taken();
    request.state.seed = static_cast<uint64_t>(config_.rng.seed);
    request.state.config = config_.to_json();
    if (run_.hf && world_.rank() == 0)
      request.assets = source_files(run_.hf->directory(), run_.hf->weights().files());
    const std::string path = save_checkpoint(ctx_, world_, request);
    saved_ = at_.iteration;
    tell(fmt::format("saved {}", path));
  }

  void evaluate() {
    if (!run_.data.validation) return;
    const int64_t rounds = config_.validation.eval_iters;
    const Shares shares = shares_of_batch();
    // Each evaluation goes on where the last one ended.
    const int64_t before = (at_.iteration / config_.validation.eval_interval - 1) * rounds;
    double loss = 0;
    for (int64_t i = 0; i < rounds; ++i)
      loss += trainer_.evaluate(
          ctx_, run_.data.validation->step({i, (before + i) * shares.samples(), own_of(shares)}));
    if (rounds == 0) return;
    loss /= static_cast<double>(rounds);
    tell(fmt::format("validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} |",
                     at_.iteration, loss, std::exp(std::min(20.0, loss))));
  }

  Shares shares_of_batch() const {
    return Shares::even(config_.train.global_batch_size, config_.train.micro_batch_size,
                        parallel_.size(Axis::dp));
  }
  std::span<const Share> own_of(const Shares& shares) const {
    return shares.of_replica[static_cast<size_t>(parallel_.rank(Axis::dp))];
  }

  void iterate() {
    profiling_.before_step(at_.iteration);
    const auto start = std::chrono::steady_clock::now();
    const Shares shares = shares_of_batch();
    const int64_t batch = shares.samples();
    const std::vector<Batch> batches =
        run_.data.train->step({at_.iteration, at_.consumed_samples, own_of(shares)});
    // The rate of an iteration is that of the samples consumed before it.
    const Rates rates = schedule_.at(at_.consumed_samples);
    const Gradients gradients =
        trainer_.gradients(ctx_, batches, {.iteration = at_.iteration, .batches = shares.batches()});
    const StepReport step = trainer_.update(ctx_, gradients, rates);
    ++at_.iteration;
    if (config_.rerun_state_machine.check_for_nan_in_loss && !std::isfinite(step.loss))
      fail(
          "iteration {}: the loss is not finite ({}); a lower learning rate may help, "
          "--no-check-for-nan-in-loss-and-grad skips such updates",
          at_.iteration, step.loss);
    if (config_.ddp.check_for_nan_in_grad && !std::isfinite(step.grad_norm))
      fail(
          "iteration {}: the gradient is not finite (norm {}, loss {}); a lower learning rate or --clip-grad "
          "may "
          "help, ddp.check_for_nan_in_grad=false skips such updates",
          at_.iteration, step.grad_norm, step.loss);
    at_.consumed_samples += batch;
    if (world_.rank() != 0 || !run_.on_iteration) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double rows = static_cast<double>(batch * config_.model.seq_length);
    const MemoryStatistics memory = ctx_.allocator->statistics();
    run_.on_iteration({.iteration = at_.iteration,
                       .iterations = run_.iterations,
                       .consumed_samples = at_.consumed_samples,
                       .global_batch_size = batch,
                       .loss = step.loss,
                       .grad_norm = step.grad_norm,
                       .learning_rate = rates.lr,
                       .skipped = step.update != Update::taken,
                       .nans = std::isnan(step.loss),
                       .terms = step.terms,
                       .milliseconds = seconds * 1e3,
                       .tokens_per_second = rows / seconds,
                       .model_tflops = rows * flops_per_token_ / seconds / world_.size() * 1e-12,
                       .memory_gib = static_cast<double>(memory.total.peak) / kRunGib,
                       .reserved_gib = static_cast<double>(memory.peak_reserved) / kRunGib});
  }

  // Tells what the second step held beside what was planned. The first autotunes GEMMs, which takes memory
  // once. Data-parallel ranks are alike.
  void follow_memory() {
    if (++iterations_here_ != 2 || run_.planned_bytes == 0) return;
    const MemoryStatistics memory = ctx_.allocator->statistics();
    Tensor most = ctx_.full({1}, DType::F64, static_cast<double>(memory.total.peak));
    parallel_.group(Axis::mp).all_reduce(most, ReduceOp::Max).wait();
    const double held = ctx_.item(most);
    const bool small = held < kRunGib;
    const double unit = small ? kRunGib / 1024 : kRunGib;
    tell(fmt::format(
        "memory: a rank held {:.3f} {} at most, of {:.3f} planned ({:+.1f} %); rank 0 reserved {:.3f}",
        held / unit, small ? "MiB" : "GiB", run_.planned_bytes / unit, 100 * (held / run_.planned_bytes - 1),
        static_cast<double>(memory.reserved) / unit));
  }

  RankContext& ctx_;
  const ProcessGroup& world_;
  const TrainingRun& run_;
  const Config& config_;
  ParallelContext parallel_;
  GemmAutotuneCache gemm_autotune_;
  RankTrainer trainer_;
  RateSchedule schedule_;
  double flops_per_token_;
  Profiling profiling_;
  Counters at_;
  int64_t saved_ = -1, iterations_here_ = 0;
  size_t attention_told_ = 0;
};

}  // namespace

namespace {

// Data that ends before the run does is refused before anything is allocated.
void check_enough(const Config& config, const TrainingRun& run) {
  const int64_t batch = config.train.global_batch_size;
  const auto check = [&](const char* what, const std::shared_ptr<const BatchSource>& source, int64_t needed) {
    if (source && source->samples() >= 0 && needed > source->samples())
      throw ConfigError(
          fmt::format("the {} data has {} samples and the run needs {}; give each prefix of --data-path a "
                      "weight (1 A 1 B), "
                      "which reads it as often as it takes, or less iterations",
                      what, source->samples(), needed));
  };
  check("training", run.data.train, run.iterations * batch);
  const int64_t every = config.validation.eval_interval;
  if (every > 0)
    check("validation", run.data.validation, run.iterations / every * config.validation.eval_iters * batch);
}

}  // namespace

TrainingRun training_run(Config config) {
  TrainingRun run;
  run.data = run_data(config);
  config.model.seq_length = run.data.train->length();
  run.iterations = config.train.train_iters;
  if (run.iterations == 0 && config.train.train_samples > 0)
    run.iterations = config.train.train_samples / config.train.global_batch_size;
  if (run.iterations == 0) run.iterations = std::max<int64_t>(run.data.iterations, 0);
  check_enough(config, run);
  run.config = std::move(config);
  return run;
}

void train_rank(RankContext& ctx, const ProcessGroup& world, const TrainingRun& run) {
  RankRun(ctx, world, run).run();
}

}  // namespace megatron
