#include <algorithm>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/config/resolve/batch_steps.h"
#include "megatron/config/resolve/inactive_slots.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

void micro_batch_is_given(ConfigBuilder& builder) {
  if (builder.purpose == Purpose::training && builder.config.train.micro_batch_size == 0)
    builder.reject("train.micro_batch_size", "training needs it", "give --micro-batch-size N");
}

void batch_divides(ConfigBuilder& builder) {
  const TrainConfig& train = builder.config.train;
  if (!builder.data_parallel_size || train.micro_batch_size == 0 || train.global_batch_size == 0) return;
  if (!train.step_batch_size_schedule.empty()) return;  // batches_grow looks at all its sizes
  const int64_t dp = *builder.data_parallel_size, step = train.micro_batch_size * dp;
  if (train.decrease_batch_size_if_needed && train.global_batch_size >= step) return;
  // Unequal replicas get different numbers of micro-batches; interleaved schedules want rounds of them.
  const ParallelConfig& parallel = builder.config.parallel;
  if (has_inactive_slots(parallel) && parallel.virtual_pipeline_model_parallel_size <= 1 &&
      train.global_batch_size >= step && train.global_batch_size % train.micro_batch_size == 0)
    return;
  if (train.global_batch_size % step != 0)
    builder.reject("train.global_batch_size",
                   fmt::format("is not a multiple of micro_batch_size {} x data-parallel size {} = {}",
                               train.micro_batch_size, dp, step),
                   fmt::format("use {}{}",
                               train.global_batch_size > step
                                   ? fmt::format("{} or ", train.global_batch_size / step * step)
                                   : "",
                               (train.global_batch_size / step + 1) * step));
}

// Every size of a growing batch is a whole number of micro-batches.
void batches_grow(ConfigBuilder& builder) {
  const TrainConfig& train = builder.config.train;
  const bool steps = !train.step_batch_size_schedule.empty(), ramp = !train.rampup_batch_size.empty();
  if (!steps && !ramp) return;
  const char* key = steps ? "train.step_batch_size_schedule" : "train.rampup_batch_size";
  if (steps && (ramp || train.decrease_batch_size_if_needed))
    return builder.reject(key, "the batch size is given twice", "leave it out");
  try {
    // Scripts name the batch that the steps lead to as well.
    if (steps && builder.given("train.global_batch_size") &&
        parse_batch_steps(train.step_batch_size_schedule, builder.config.model.seq_length).back().size !=
            train.global_batch_size)
      return builder.reject(key, "the batch size is given twice", "leave it out");
    const int64_t step = train.micro_batch_size * builder.data_parallel_size.value_or(1);
    for (const BatchSize& size : batch_sizes({train.step_batch_size_schedule, train.rampup_batch_size,
                                              train.global_batch_size, builder.config.model.seq_length}))
      if (step > 0 && (train.decrease_batch_size_if_needed ? size.size < step : size.size % step != 0))
        return builder.reject(
            key,
            fmt::format("a batch of {} is {} micro_batch_size x data-parallel size = {}", size.size,
                        size.size < step ? "less than" : "not a multiple of", step),
            "leave it out");
  } catch (const ConfigError& error) {
    builder.reject(key, error.what(), "leave it out");
  }
}

// Where a phase begins is counted in batches.
void phases_have_one_batch_size(ConfigBuilder& builder) {
  const TrainConfig& train = builder.config.train;
  if (train.phase_transition_iterations.empty()) return;
  if (!train.step_batch_size_schedule.empty() || !train.rampup_batch_size.empty())
    builder.reject("train.phase_transition_iterations", "phases need batches of one size",
                   "leave out --step-batch-size-schedule and --rampup-batch-size");
}

void one_duration(ConfigBuilder& builder) {
  const TrainConfig& train = builder.config.train;
  const int ways = (train.train_iters > 0) + (train.train_samples > 0);
  if (ways > 1)
    builder.reject("train.train_samples", "the length of the run is given twice",
                   "keep one of --train-iters and --train-samples");
  const bool replayed = !builder.config.dataset.replay.empty();
  const bool zero = builder.given("train.train_iters") || builder.given("train.train_samples");
  if (builder.purpose == Purpose::training && ways == 0 && !zero && !replayed)
    builder.reject("train.train_iters", "the length of the run is not given",
                   "give --train-iters N or --train-samples N");
}

void units_agree(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const SchedulerConfig& s = config.scheduler;
  const auto mixed = [&](const char* name, const char* other, const char* flag) {
    if (builder.given(name) && !(builder.value(name) == Json(0)))
      builder.reject(name, fmt::format("the run is counted in {}", other),
                     fmt::format("give {} N instead", flag));
  };
  if (config.train.train_iters > 0)
    for (auto [name, flag] : {std::pair{"scheduler.lr_decay_samples", "--lr-decay-iters"},
                              {"scheduler.lr_warmup_samples", "--lr-warmup-iters"},
                              {"scheduler.lr_wsd_decay_samples", "--lr-wsd-decay-iters"}})
      mixed(name, "iterations", flag);
  if (config.train.train_samples > 0)
    for (auto [name, flag] : {std::pair{"scheduler.lr_decay_iters", "--lr-decay-samples"},
                              {"scheduler.lr_warmup_iters", "--lr-warmup-samples"},
                              {"scheduler.lr_wsd_decay_iters", "--lr-wsd-decay-samples"}})
      mixed(name, "samples", flag);
  if (s.lr_warmup_fraction && (s.lr_warmup_iters > 0 || s.lr_warmup_samples > 0))
    builder.reject("scheduler.lr_warmup_fraction", "the warm-up is given twice", "leave it out");
}

void learning_rate(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const OptimizerConfig& o = config.optimizer;
  if (builder.purpose == Purpose::training && !o.lr)
    builder.reject("optimizer.lr", "training needs a learning rate", "give --lr X (3e-4 is common)");
  if (o.lr && o.min_lr > *o.lr)
    builder.reject("optimizer.min_lr", fmt::format("is above lr = {}", *o.lr),
                   fmt::format("use at most {}", *o.lr));
  if (o.lr && config.scheduler.lr_warmup_init > *o.lr)
    builder.reject("scheduler.lr_warmup_init", fmt::format("is above lr = {}", *o.lr),
                   fmt::format("use at most {}", *o.lr));
}

void warmup_fits(ConfigBuilder& builder) {
  const SchedulerConfig& s = builder.config.scheduler;
  if (s.lr_decay_style == LrDecay::wsd && s.lr_wsd_decay_iters == 0 && s.lr_wsd_decay_samples == 0)
    builder.note(fmt::format(
        "lr_decay_style WSD without {}: the learning rate stays until the end",
        builder.config.train.train_samples > 0 ? "--lr-wsd-decay-samples" : "--lr-wsd-decay-iters"));
  if ((s.lr_decay_iters > 0 && s.lr_wsd_decay_iters > s.lr_decay_iters) ||
      (s.lr_decay_samples > 0 && s.lr_wsd_decay_samples > s.lr_decay_samples))
    builder.note("the last part of WSD is longer than the whole decay: the learning rate begins within it");
  if ((s.lr_decay_iters > 0 && s.lr_warmup_iters >= s.lr_decay_iters) ||
      (s.lr_decay_samples > 0 && s.lr_warmup_samples >= s.lr_decay_samples))
    builder.note("the warm-up is as long as the whole decay: it is cut short by one step");
}

void one_data_source(ConfigBuilder& builder) {
  const DatasetConfig& d = builder.config.dataset;
  const std::tuple<const char*, const char*, bool> sources[] = {
      {"dataset.mock_data", "--mock-data", d.mock_data},
      {"dataset.replay", "--replay", !d.replay.empty()},
      {"dataset.data_path", "--data-path", !d.data_path.empty()},
      {"dataset.data_args_path", "--data-args-path", !d.data_args_path.empty()},
      {"dataset.train_data_path", "--train-data-path", !d.train_data_path.empty()},
      {"dataset.per_split_data_args_path", "--per-split-data-args-path", !d.per_split_data_args_path.empty()},
      {"dataset.dataset_root", "--dataset-root", !d.dataset_root.empty()}};
  std::vector<std::string> flags;
  const char* first = nullptr;
  for (const auto& [key, flag, given] : sources) {
    if (!given) continue;
    if (!first) first = key;
    flags.emplace_back(flag);
  }
  if (flags.empty() && builder.purpose == Purpose::training && !builder.config.rl.perform_rl_step)
    builder.reject("dataset.data_path", "there is nothing to train on",
                   "give --data-path PREFIX or --mock-data or --replay FILE:KEY");
  if (flags.size() > 1)
    builder.reject(first, "the data are given in more than one way", "keep one of " + joined(flags, " and "));
}

constexpr Rule kBatchRules[] = {
    {"micro_batch_is_given", "train.micro_batch_size", "training needs a micro-batch size",
     micro_batch_is_given},
    {"batch_divides", "train.global_batch_size train.micro_batch_size",
     "the global batch is a multiple of micro-batch x data-parallel size", batch_divides},
    {"batches_grow", "train.step_batch_size_schedule train.rampup_batch_size train.global_batch_size",
     "every size of a growing batch is whole micro-batches", batches_grow},
    {"phases_have_one_batch_size",
     "train.phase_transition_iterations train.step_batch_size_schedule train.rampup_batch_size",
     "phases have batches of one size", phases_have_one_batch_size},
    {"one_duration", "train.train_iters train.train_samples dataset.replay",
     "the length of the run is given once", one_duration},
    {"units_agree", "train.train_iters train.train_samples scheduler.lr_*",
     "run and schedule count the same: iterations or samples", units_agree},
    {"learning_rate", "optimizer.lr optimizer.min_lr scheduler.lr_warmup_init",
     "the learning rate is given and the highest", learning_rate},
    {"warmup_fits", "scheduler.lr_*", "parts of the schedule fit into it", warmup_fits},
    {"one_data_source",
     "dataset.mock_data dataset.replay dataset.data_* dataset.train_data_path "
     "dataset.per_split_data_args_path dataset.dataset_root rl.perform_rl_step",
     "training data come from one source", one_data_source},
};

}  // namespace

std::span<const Rule> batch_rules() { return kBatchRules; }

}  // namespace megatron
