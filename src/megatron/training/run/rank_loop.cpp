#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/seconds_since.h"
#include "megatron/kernels/attention_dispatch.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/health/straggler_detector.h"
#include "megatron/training/health/suspects.h"
#include "megatron/training/log/profiling.h"
#include "megatron/training/log/tensor_dumps.h"
#include "megatron/training/log/timers.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/run/agreement.h"
#include "megatron/training/run/evaluation.h"
#include "megatron/training/run/recorded_predictions.h"
#include "megatron/training/run/recovery.h"
#include "megatron/training/run/rerun.h"
#include "megatron/training/run/restart_layout.h"
#include "megatron/training/run/section_timeouts.h"
#include "megatron/training/run/training_run.h"
#include "megatron/training/setup/run_settings.h"
#include "megatron/training/step/gemm_autotune_cache.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kRunGib = 1 << 30;
constexpr const char* kLiveData = "live_data";  // in TrainState::user

// The step that the phase of an iteration began behind; 0 in the first one. Batches have one size throughout.
int64_t last_transition(const TrainConfig& train, int64_t iteration) {
  int64_t last = 0;
  for (const int64_t step : train.phase_transition_iterations)
    if (step <= iteration) last = std::max(last, step);
  return last;
}

// Weights of --hf alone are whole: nothing of them is drawn. A checkpoint may lack tensors.
TrainerOptions trainer_options(const TrainingRun& run) {
  const CheckpointConfig& checkpoint = run.config.checkpoint;
  TrainerOptions options = run.trainer;
  options.weights_follow =
      run.hf && !options.prepare && checkpoint.load.empty() && checkpoint.pretrained_checkpoint.empty();
  return options;
}

// One rank's loop over iterations.
class RankLoop {
 public:
  RankLoop(RankContext& ctx, const ProcessGroup& world, const ParallelSizes& sizes, const TrainingRun& run)
      : ctx_(ctx),
        world_(world),
        run_(run),
        config_(run.config),
        parallel_(ParallelContext::from_sizes(world, sizes)),
        timers_(timer_level() > 0 ? std::make_unique<Timers>(ctx, timer_level()) : nullptr),
        setup_(std::in_place, ctx.tracer, "setup"),
        gemm_autotune_(ctx, world, config_.precision.deterministic_mode ? "" : run.cache),
        trainer_(ctx, config_, parallel_, model_dtype(config_), trainer_options(run)),
        schedule_(rate_schedule(config_, run.iterations)),
        batches_(config_, parallel_.replicas()),
        flops_per_token_(step_flops_per_token(config_, run.trainer.teacher.get())),
        profiling_(ctx, config_.profiling),
        view_{config_, ctx, world, trainer_, state_},
        announcer_(run.callbacks, view_),
        recovery_(ctx, world, run, announcer_),
        checkpoints_(ctx, world, config_, trainer_, schedule_, run.hf, recovery_.restarted(),
                     recovery_.memory().lock_holders, [this](const std::string& what) { tell(what); }),
        evaluation_(run, parallel_, announcer_),
        rerun_(config_.rerun_state_machine,
               {.finite = config_.ddp.check_for_nan_in_grad && !config_.precision.fp16,
                .large = config_.ddp.check_for_large_grads},
               static_cast<uint64_t>(config_.rng.seed), layout_name(config_, parallel_), world),
        timeouts_(config_, world, recovery_.memory().steps),
        dumps_(ctx, world, parallel_, config_, trainer_, recovery_.restarted(),
               [this](const std::string& what) { tell(what); }) {
    if (config_.distill.records()) recorder_.emplace(ctx, world, parallel_, config_);
    if (config_.distill.learns_from_recording())
      recording_.emplace(config_, accumulation_dtype(model_dtype(config_)));
    if (config_.logger.detect_stragglers) stragglers_.emplace(ctx, world, parallel_, config_.logger);
  }

  RunEnd run() {
    tell(gemm_autotune_.news());
    setup_.reset();
    if (Teacher* teacher = trainer_.teacher()) {
      const TraceRange range(ctx_.tracer, "load teacher");
      run_.teacher.load(ctx_, world_, *teacher, config_.checkpoint.verify_integrity);
      tell(fmt::format("teacher from {}", run_.teacher.path));
    }
    {
      const TraceRange range(ctx_.tracer, "load checkpoint");
      state_ = recovery_.load(checkpoints_, layout_name(config_, parallel_));
    }
    first_ = state_.iteration;
    recovery_.keep(checkpoints_, state_);
    tell(rerun_.restore(std::exchange(state_.rerun, {})));
    if (run_.live_data) {
      const Json* kept = state_.user.is_object() ? state_.user.find(kLiveData) : nullptr;
      live_ =
          run_.live_data(run_, view_, kept ? *kept : Json(), [this](const std::string& what) { tell(what); });
    }
    announce_with_timers(RunEvent::train_start, 1);
    RunEnd end;
    if (!config_.validation.skip_train) end = train();
    tell(rerun_.summary());
    timeouts_.begin(SectionTimeouts::Section::checkpointing);
    keep_live_data();
    checkpoints_.finish(state_);
    timeouts_.finish(first_ > 0 && !recovery_.from_memory());
    end.saved = !config_.checkpoint.save.empty();
    if (end.reason == RunEnd::Reason::finished) evaluation_.finish(live_.get());
    announcer_.announce(RunEvent::train_end);
    end.state = state_;
    const bool told_to = end.reason == RunEnd::Reason::duration || end.reason == RunEnd::Reason::preempted ||
                         (end.reason == RunEnd::Reason::signal && end.signal != SIGINT);
    end.goes_on = end.saved && told_to && (run_.started_again || end.reason == RunEnd::Reason::preempted);
    return end;
  }

 private:
  RunEnd train() {
    if (state_.iteration >= run_.iterations)
      tell(
          fmt::format("all {} iterations are done; a larger --train-iters goes on (with "
                      "--override-opt_param-scheduler where the learning rate decays over them)",
                      run_.iterations));
    int64_t batch = batches_.at(state_.consumed_samples);
    while (state_.iteration < run_.iterations) {
      if (const int64_t next = batches_.at(state_.consumed_samples); next != batch) {
        tell(fmt::format("batches have {} sequences from iteration {} on, {} before", next,
                         state_.iteration + 1, batch));
        batch = next;
        if (!config_.checkpoint.save.empty() && state_.iteration > first_) save();
      }
      if (skips_iteration()) {
        skip(batch);
        continue;
      }
      timeouts_.begin(SectionTimeouts::Section::step);
      if (const auto verdict = iterate(batch); verdict != RerunMachine::Verdict::go_on) {
        state_.rerun = rerun_.state();
        const bool leaves = verdict == RerunMachine::Verdict::save_and_leave;
        return {.reason = leaves ? RunEnd::Reason::ambiguous_result : RunEnd::Reason::wrong_result};
      }
      recovery_.tell_times(state_.iteration);
      log_attention_kernels();
      if (state_.iteration == first_ + 1) {
        gemm_autotune_.finish_first_step();
        tell(gemm_autotune_.news());
      }
      log_memory();
      evaluate_at_interval();
      if (iterations_here_ == 1 && state_.iteration < run_.iterations) ctx_.allocator->reset_peaks();
      const RunEnd end = decide_exit();
      if (end.reason != RunEnd::Reason::finished) return end;
      recovery_.keep(checkpoints_, state_);
      if (regroups_ && recovery_.has_kept(state_.iteration) && state_.iteration < run_.iterations) {
        world_.barrier();  // all have kept theirs: the first to leave stops the others
        throw ProcessReturned();
      }
    }
    return {};
  }

  void tell(const std::string& what) const { announcer_.tell(what); }

  // What is timed: as --timing-log-level asks, passes too where stragglers are looked for.
  int64_t timer_level() const { return config_.logger.log_straggler ? 2 : config_.logger.timing_log_level; }

  // All ranks' timers, which begin anew behind it.
  void announce_with_timers(RunEvent event, int64_t iterations) {
    std::optional<TimerTable> table;
    if (timers_ && iterations > 0) {
      timers_->finish_step();
      table = gather_timers(ctx_, world_, timers_->readings(), iterations);
      timers_->reset();
      view_.timers = &*table;
    }
    announcer_.announce(event);
    view_.timers = nullptr;
  }

  void keep_live_data() {
    if (live_ && !config_.checkpoint.save.empty()) state_.user[kLiveData] = live_->state();
  }

  // The checkpoint of this iteration is there, or on its way.
  void saved() {
    announcer_.announce(RunEvent::save);
    const bool on_its_way = config_.checkpoint.async_save;
    if (live_ && (!on_its_way || saved_ > 0)) live_->saved(on_its_way ? saved_ : state_.iteration);
    saved_ = state_.iteration;
  }

  void save() {
    keep_live_data();
    timeouts_.begin(SectionTimeouts::Section::checkpointing);
    if (checkpoints_.save(state_)) saved();
  }

  // Which kernels attention took, once per shape.
  void log_attention_kernels() {
    if (!view_.is_first_rank()) return;
    for (const AttentionDispatch& dispatch : attention_dispatches(ctx_.kernel_context(), attention_told_)) {
      tell(dispatch.line());
      ++attention_told_;
    }
  }

  // Counted from 0, as Megatron-LM does: 5 is the iteration that would be logged as the sixth.
  bool skips_iteration() const {
    const std::vector<int64_t>& skipped = config_.train.iterations_to_skip;
    return std::find(skipped.begin(), skipped.end(), state_.iteration) != skipped.end();
  }

  // The data of an iteration is consumed without learning from it.
  void skip(int64_t batch) {
    ++state_.iteration;
    state_.consumed_samples += batch;
    state_.skipped_samples += batch;
    tell(fmt::format("iteration {} is skipped, as --iterations-to-skip asks", state_.iteration));
  }

  // What ends or saves the run after this iteration, the same on every rank: a signal reaches ranks at
  // different times, and clocks differ.
  RunEnd decide_exit() {
    const double minutes = config_.train.exit_duration_in_mins;
    std::vector<double> own = {
        run_.interruption ? static_cast<double>(run_.interruption->signal()) : 0,
        minutes > 0 && seconds_since(run_.start) > 60 * minutes ? 1.0 : 0.0,
        view_.stop_requested ? 1.0 : 0.0,
        view_.save_requested ? 1.0 : 0.0,
        is_preempted() ? 1.0 : 0.0,
        checkpoints_.is_time_to_save() ? 1.0 : 0.0,
        stragglers_ && stragglers_->is_due() ? 1.0 : 0.0,
        recovery_.has_newcomer() ? 1.0 : 0.0,
    };
    own = all_reduce_max(ctx_, world_, std::move(own));
    regroups_ = own[7] > 0;
    const bool slow = own[6] > 0 && tell_about_stragglers() && config_.logger.stop_if_straggler;
    view_.save_requested = false;
    checkpoints_.poll();
    if (checkpoints_.saves_at(state_) || own[5] > 0) {
      keep_live_data();
      timeouts_.begin(SectionTimeouts::Section::checkpointing);
    }
    if (own[5] == 0 && checkpoints_.save_at_interval(state_))
      saved();
    else if (own[3] + own[5] > 0 && !config_.checkpoint.save.empty())
      save();
    const int64_t every = config_.train.exit_interval;
    RunEnd end;
    if (own[0] > 0)
      end = {RunEnd::Reason::signal, static_cast<int>(own[0]), false, {}};
    else if (own[4] > 0)
      end.reason = RunEnd::Reason::preempted;
    else if (own[1] > 0)
      end.reason = RunEnd::Reason::duration;
    else if (own[2] > 0)
      end.reason = RunEnd::Reason::requested;
    else if (slow)
      end.reason = RunEnd::Reason::straggler;
    else if (every > 0 && state_.iteration % every == 0)
      end.reason = RunEnd::Reason::interval;
    else if (last_transition(config_.train, state_.iteration) == state_.iteration)
      end.reason = RunEnd::Reason::phase;
    return end;
  }

  // Whether a rank is slow.
  bool tell_about_stragglers() {
    const auto [lines, slow] = stragglers_->report();
    tell(lines);
    return slow;
  }

  // Somebody has written the file of --preemption-file since the run began.
  bool is_preempted() const {
    const std::string& path = config_.ft.preemption_file;
    return !path.empty() && write_time(path) > run_.old_notice;
  }

  void evaluate_at_interval() {
    if (!evaluation_.is_due(state_.iteration)) return;
    timeouts_.begin(SectionTimeouts::Section::evaluation);
    evaluation_.validate(live_.get());
  }

  // Counts the towers' FLOPs of all replicas as if each had images like this one's.
  double image_flops(const std::vector<Batch>& batches) const {
    double flops = 0;
    for (const Batch& batch : batches) flops += tower_flops(config_.model, batch.image_grids());
    return flops * parallel_.replicas();
  }

  double frozen_loss(std::span<const Batch> batches, int64_t all) {
    return recorder_ ? recorder_->evaluate(trainer_, batches, state_.iteration, all)
                     : trainer_.evaluate(ctx_, batches, all);
  }

  // Where the run learns from recorded predictions, those of the micro-batches, on the ranks that have the
  // head. All do without where one cannot read them and that is allowed.
  void add_recording(std::shared_ptr<const std::vector<Batch>>& batches) {
    if (!recording_) return;
    const TraceRange range(ctx_.tracer, "read predictions");
    std::shared_ptr<const std::vector<Batch>> with = batches;
    std::string problem;
    try {
      if (trainer_.model().head())
        with = std::make_shared<const std::vector<Batch>>(recording_->added_to(*batches, state_.iteration));
    } catch (const Error& error) {
      if (!config_.distill.logits_load_ignore_errors) throw;
      problem = error.what();
    }
    if (config_.distill.logits_load_ignore_errors &&
        all_reduce_max(ctx_, world_, {problem.empty() ? 0.0 : 1.0})[0] > 0)
      tell(fmt::format("iteration {} learns from its labels alone{}{}", state_.iteration + 1,
                       problem.empty() ? "" : ": ", problem));
    else
      batches = std::move(with);
  }

  RerunMachine::Verdict iterate(int64_t batch) {
    profiling_.before_step(state_.iteration);
    const auto begun = Clock::now();
    if (stragglers_) stragglers_->start_step();
    announcer_.announce(RunEvent::step_start);
    const auto start = Clock::now();
    const Shares shares = batch_shares(config_, parallel_, batch);
    const std::vector<Share>& own = shares.of_replica[static_cast<size_t>(parallel_.replica())];
    std::shared_ptr<const std::vector<Batch>> batches = [&] {
      const TraceRange range(ctx_.tracer, "read batches");
      // A phase reads its data from the beginning.
      const int64_t consumed =
          config_.train.phase_transition_iterations.empty()
              ? state_.consumed_samples
              : (state_.iteration - last_transition(config_.train, state_.iteration)) * batch;
      const StepRequest request{state_.iteration, consumed, own, batch};
      if (live_) return std::make_shared<const std::vector<Batch>>(live_->step(request));
      return run_.data.train->shared_step(request);
    }();
    const int64_t all_batches = live_ ? 0 : shares.batches();
    const double waited = seconds_since(start);
    // The rate of an iteration is that of the samples learned from before it.
    const Rates rates = schedule_.at(state_.scheduled_samples());
    Gradients gradients;
    add_recording(batches);
    const auto compute = [&] {
      dumps_.before_passes(state_.iteration + 1);
      gradients = trainer_.gradients(ctx_, *batches, {.iteration = state_.iteration, .batches = all_batches});
    };
    const bool frozen = config_.train.freeze_all_layers;  // then there is nothing but the loss
    if (!frozen) compute();
    if (rerun_.active() && !frozen) {
      const auto result = [&] { return StepResult{ctx_.item(gradients.loss), ctx_.item(gradients.norm)}; };
      const auto again = [&] {
        compute();
        return result();
      };
      bool suspected = false;  // on every rank alike
      const auto verdict = rerun_.judge(state_.iteration, result(), again, [&](const std::string& what) {
        tell(what);
        suspected = true;
      });
      if (suspected) tell_suspects();
      if (verdict != RerunMachine::Verdict::go_on) return verdict;
    }
    if (!frozen) dumps_.after_gradients(state_.iteration + 1);
    const RankTrainer::BeforeChange before = before_change();
    if (frozen && before) before({});
    StepReport step = frozen ? StepReport{.loss = frozen_loss(*batches, all_batches), .terms = {}}
                             : trainer_.update(ctx_, gradients, rates, before);
    if (live_)
      for (LossTerm& term : live_->terms()) step.terms.push_back(std::move(term));
    ++state_.iteration;
    require_finite(ctx_, world_, trainer_, config_, state_.iteration, step);
    dumps_.after_update(state_.iteration);
    recovery_.finish_step(state_.iteration);
    state_.consumed_samples += batch;
    if (step.update != Update::taken) state_.without_update += batch;
    const double seconds = seconds_since(start);
    if (stragglers_) stragglers_->finish_step(seconds_since(begun));
    const auto rows = static_cast<double>(batch * config_.model.seq_length);
    const double flops = rows * flops_per_token_ + image_flops(*batches);
    const MemoryStatistics memory = ctx_.allocator->statistics();
    const IterationReport report{.iteration = state_.iteration,
                                 .iterations = run_.iterations,
                                 .consumed_samples = state_.consumed_samples,
                                 .skipped_samples = state_.skipped_samples,
                                 .global_batch_size = batch,
                                 .loss = step.loss,
                                 .grad_norm = step.grad_norm,
                                 .learning_rate = frozen ? 0 : rates.lr,
                                 .loss_scale = step.loss_scale,
                                 .num_zeros = step.num_zeros,
                                 .params_norm = step.params_norm,
                                 .skipped = step.update != Update::taken,
                                 .nans = std::isnan(step.loss),
                                 .terms = step.terms,
                                 .milliseconds = seconds * 1e3,
                                 .data_wait_ms = waited * 1e3,
                                 .tokens_per_second = rows / seconds,
                                 .model_tflops = flops / seconds / world_.size() * 1e-12,
                                 .memory_gib = static_cast<double>(memory.total.peak) / kRunGib,
                                 .reserved_gib = static_cast<double>(memory.peak_reserved) / kRunGib};
    view_.report = &report;
    if (timers_) timers_->finish_step();
    ++timed_;
    const bool logged = state_.iteration % config_.logger.log_interval == 0;
    announce_with_timers(RunEvent::step_end, logged ? std::exchange(timed_, 0) : 0);
    view_.report = nullptr;
    return RerunMachine::Verdict::go_on;
  }

  // What waits for copies of this state before it changes; empty where nothing is being copied.
  RankTrainer::BeforeChange before_change() {
    if (!checkpoints_.holds_back() && !recovery_.holds_back()) return {};
    return [this](std::optional<size_t> group) {
      checkpoints_.before_change(group);
      recovery_.before_change(group);
    };
  }

  void tell_suspects() {
    const std::string broken = find_not_finite(ctx_, world_, trainer_);
    tell(broken.empty() ? find_largest_gradient(ctx_, world_, trainer_) : "not finite: " + broken);
  }

  // Tells what the second step held beside what was planned. The first autotunes GEMMs, which takes memory
  // once. Data-parallel ranks are alike.
  void log_memory() {
    if (++iterations_here_ != 2 || run_.planned_bytes == 0 || recovery_.restarted())
      return;  // planned at the start
    const MemoryStatistics memory = ctx_.allocator->statistics();
    Tensor most = ctx_.full({1}, DType::F64, static_cast<double>(memory.total.peak));
    parallel_.group(Axis::mp).all_reduce(most, ReduceOp::Max).wait();
    const double held = ctx_.item(most);
    const bool small = held < kRunGib;
    const double unit = small ? kRunGib / 1024 : kRunGib;
    tell(fmt::format(
        "memory: a rank held {:.3f} {} at most, of {:.3f} planned ({:+.1f} %){}; rank 0 reserved {:.3f}",
        held / unit, small ? "MiB" : "GiB", run_.planned_bytes / unit, 100 * (held / run_.planned_bytes - 1),
        live_ ? " for training, answers aside" : "", static_cast<double>(memory.reserved) / unit));
  }

  RankContext& ctx_;
  const ProcessGroup& world_;
  const TrainingRun& run_;
  const Config& config_;
  ParallelContext parallel_;
  std::unique_ptr<Timers> timers_;   // null: nothing is timed
  std::optional<TraceRange> setup_;  // open until all members are made
  GemmAutotuneCache gemm_autotune_;
  RankTrainer trainer_;
  RateSchedule schedule_;
  BatchSchedule batches_;
  double flops_per_token_;
  Profiling profiling_;
  TrainState state_;
  RunView view_;
  Announcer announcer_;
  Recovery recovery_;
  RunCheckpoints checkpoints_;
  Evaluation evaluation_;
  RerunMachine rerun_;
  SectionTimeouts timeouts_;
  TensorDumps dumps_;
  std::unique_ptr<LiveData> live_;           // null: data is read
  int64_t first_ = 0, iterations_here_ = 0;  // where this process began; iterations it made
  int64_t saved_ = 0;                        // the iteration of the last checkpoint
  int64_t timed_ = 0;                        // iterations since timers were told
  std::optional<StragglerDetector> stragglers_;
  std::optional<PredictionRecorder> recorder_;    // none: nothing is recorded
  std::optional<RecordedPredictions> recording_;  // none: nothing is learned from one
  size_t attention_told_ = 0;
  bool regroups_ = false;  // at the next boundary whose state is kept
};

}  // namespace

RunEnd train_rank(RankContext& ctx, const ProcessGroup& world, const ParallelSizes& sizes,
                  const TrainingRun& run) {
  return RankLoop(ctx, world, sizes, run).run();
}

}  // namespace megatron
