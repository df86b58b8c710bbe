#include <algorithm>
#include <array>

#include "megatron/config/resolve/batch_schedule.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

void micro_batch_is_given(ConfigBuilder& builder) {
  if (builder.purpose == Purpose::training && builder.config.train.micro_batch_size == 0)
    builder.reject("train.micro_batch_size", "training needs it", "give --micro-batch-size N");
}

void batch_divides(ConfigBuilder& builder) {
  const TrainConfig& train = builder.config.train;
  if (!builder.data_parallel_size || train.micro_batch_size == 0 || train.global_batch_size == 0 ||
      train.decrease_batch_size_if_needed)
    return;
  const int64_t dp = *builder.data_parallel_size, step = train.micro_batch_size * dp;
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

void batch_is_not_empty(ConfigBuilder& builder) {
  const TrainConfig& train = builder.config.train;
  if (!builder.data_parallel_size || !train.decrease_batch_size_if_needed || train.global_batch_size == 0)
    return;
  const int64_t step = train.micro_batch_size * *builder.data_parallel_size;
  if (train.global_batch_size < step)
    builder.reject("train.global_batch_size",
                   fmt::format("is less than one micro-batch on each replica, {}", step),
                   fmt::format("use at least {}", step));
}

void eval_batch_divides(ConfigBuilder& builder) {
  const ValidationConfig& eval = builder.config.validation;
  const bool own =
      builder.given("validation.eval_global_batch_size") || builder.given("validation.eval_micro_batch_size");
  if (!builder.data_parallel_size || !own || eval.eval_micro_batch_size == 0 ||
      eval.eval_global_batch_size == 0)
    return;
  const int64_t step = eval.eval_micro_batch_size * *builder.data_parallel_size;
  if (eval.eval_global_batch_size % step != 0)
    builder.reject("validation.eval_global_batch_size",
                   fmt::format("is not a multiple of eval_micro_batch_size x data-parallel size = {}", step),
                   fmt::format("use a multiple of {}", step));
}

void batch_schedule_is_right(ConfigBuilder& builder) {
  const TrainConfig& train = builder.config.train;
  const char* key = "train.step_batch_size_schedule";
  if (train.step_batch_size_schedule.empty()) return;
  if (builder.given("train.global_batch_size"))
    builder.reject(key, "global_batch_size is given too", "leave out --global-batch-size");
  if (train.decrease_batch_size_if_needed)
    builder.reject(key, "decrease_batch_size_if_needed is given too", "leave one of them out");
  try {
    const int64_t length = std::max<int64_t>(1, builder.config.model.seq_length);
    for (const BatchStep& step : parse_batch_schedule(train.step_batch_size_schedule, length)) {
      const int64_t part = train.micro_batch_size * builder.data_parallel_size.value_or(1);
      if (part > 0 && step.batch_size % part != 0)
        builder.reject(key,
                       fmt::format("batch {} is not a multiple of micro_batch_size x data-parallel size = {}",
                                   step.batch_size, part),
                       fmt::format("use multiples of {}", part));
    }
  } catch (const Error& error) {
    builder.reject(key, reason_of(error), "write for example \"0:512 10B:1024\"");
  }
}

void one_duration(ConfigBuilder& builder) {
  const TrainConfig& train = builder.config.train;
  const int ways = (train.train_iters > 0) + (train.train_samples > 0) + (train.num_epochs > 0);
  if (ways > 1)
    builder.reject(train.train_samples > 0 ? "train.train_samples" : "train.num_epochs",
                   "the length of the run is given twice",
                   "keep one of --train-iters, --train-samples and --num-epochs");
  const bool replayed = !builder.config.dataset.replay.empty();
  const bool zero = builder.given("train.train_iters") || builder.given("train.train_samples");
  if (builder.purpose == Purpose::training && ways == 0 && !zero && !replayed &&
      !builder.config.validation.skip_train)
    builder.reject("train.train_iters", "the length of the run is not given",
                   "give --train-iters N or --train-samples N");
}

void units_agree(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const SchedulerConfig& s = config.scheduler;
  const auto mixed = [&](const char* name, const char* other) {
    if (builder.given(name) && !(builder.value(name) == Json(0)))
      builder.reject(name, fmt::format("the run is counted in {}", other),
                     fmt::format("give it in {}", other));
  };
  if (config.train.train_iters > 0)
    for (const char* name :
         {"scheduler.lr_decay_samples", "scheduler.lr_warmup_samples", "scheduler.lr_wsd_decay_samples"})
      mixed(name, "iterations");
  if (config.train.train_samples > 0)
    for (const char* name :
         {"scheduler.lr_decay_iters", "scheduler.lr_warmup_iters", "scheduler.lr_wsd_decay_iters"})
      mixed(name, "samples");
  if (s.lr_warmup_fraction && (s.lr_warmup_iters > 0 || s.lr_warmup_samples > 0))
    builder.reject("scheduler.lr_warmup_fraction", "the warm-up is given twice",
                   "keep the fraction or the number");
}

void learning_rate(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const OptimizerConfig& o = config.optimizer;
  if (builder.purpose == Purpose::training && !o.lr && !config.validation.skip_train)
    builder.reject("optimizer.lr", "training needs a learning rate", "give --lr, 3e-4 for example");
  if (o.lr && o.min_lr > *o.lr)
    builder.reject("optimizer.min_lr", fmt::format("is above lr = {}", *o.lr), "use at most lr");
  if (o.lr && config.scheduler.lr_warmup_init > *o.lr)
    builder.reject("scheduler.lr_warmup_init", fmt::format("is above lr = {}", *o.lr), "use at most lr");
  if (o.decoupled_min_lr && !o.decoupled_lr)
    builder.reject("optimizer.decoupled_min_lr", "there is no decoupled_lr", "give --decoupled-lr");
}

void warmup_fits(ConfigBuilder& builder) {
  const SchedulerConfig& s = builder.config.scheduler;
  if (s.lr_decay_style == LrDecay::wsd && s.lr_wsd_decay_iters == 0 && s.lr_wsd_decay_samples == 0)
    builder.reject("scheduler.lr_decay_style", "WSD needs the length of its last part",
                   "give --lr-wsd-decay-iters N or --lr-wsd-decay-samples N");
  if (s.lr_decay_iters > 0 && s.lr_wsd_decay_iters > s.lr_decay_iters)
    builder.reject("scheduler.lr_wsd_decay_iters",
                   fmt::format("is longer than the whole decay, {}", s.lr_decay_iters), "make it shorter");
  if ((s.lr_decay_iters > 0 && s.lr_warmup_iters >= s.lr_decay_iters) ||
      (s.lr_decay_samples > 0 && s.lr_warmup_samples >= s.lr_decay_samples))
    builder.note("the warm-up is as long as the whole decay: it is cut short by one step");
}

void weight_decay(ConfigBuilder& builder) {
  const SchedulerConfig& s = builder.config.scheduler;
  const bool constant = s.weight_decay_incr_style == WeightDecayGrowth::constant;
  if (constant && s.start_weight_decay != s.end_weight_decay)
    builder.reject("scheduler.end_weight_decay", "weight_decay_incr_style is constant",
                   "use --weight-decay, or --weight-decay-incr-style linear");
  if (!constant && (!s.start_weight_decay || !s.end_weight_decay))
    builder.reject("scheduler.weight_decay_incr_style", "a growing weight decay needs both ends",
                   "give --start-weight-decay and --end-weight-decay");
  if (s.override_opt_param_scheduler && s.use_checkpoint_opt_param_scheduler)
    builder.reject("scheduler.use_checkpoint_opt_param_scheduler",
                   "override_opt_param_scheduler says the opposite", "keep one of them");
}

void packing(ConfigBuilder& builder) {
  const Config& config = builder.config;
  if (config.dataset.enable_offline_packing && config.dataset.enable_in_batch_packing)
    builder.reject("dataset.enable_in_batch_packing", "samples are packed beforehand already",
                   "keep one of the two");
  if (config.dataset.enable_offline_packing && config.train.micro_batch_size > 1)
    builder.reject("train.micro_batch_size", "packed samples go one by one", "use --micro-batch-size 1");
  if (config.dataset.enable_in_batch_packing && config.train.micro_batch_size == 1)
    builder.reject("dataset.enable_in_batch_packing", "a micro-batch of one has nothing to pack",
                   "use --micro-batch-size > 1");
}

void one_data_source(ConfigBuilder& builder) {
  const DatasetConfig& d = builder.config.dataset;
  const bool split_paths =
      !d.train_data_path.empty() || !d.valid_data_path.empty() || !d.test_data_path.empty();
  const int ways = d.mock_data + !d.replay.empty() + !d.data_path.empty() + !d.data_args_path.empty() +
                   split_paths + !d.per_split_data_args_path.empty() + !d.dataset_root.empty();
  if (ways == 0 && builder.purpose == Purpose::training && !builder.config.validation.skip_train)
    builder.reject("dataset.data_path", "there is nothing to train on",
                   "give --mock-data or --replay FILE:KEY");
  if (ways <= 1) return;
  builder.reject(
      d.mock_data            ? "dataset.mock_data"
      : !d.replay.empty()    ? "dataset.replay"
      : !d.data_path.empty() ? "dataset.data_path"
                             : "dataset.data_args_path",
      "the data are given in more than one way",
      "keep one of --mock-data, --replay, --data-path, --data-args-path, --train-data-path and its "
      "kin, --per-split-data-args-path");
}

void fine_tuning_data(ConfigBuilder& builder) {
  const DatasetConfig& d = builder.config.dataset;
  if (!d.sft) return;
  if (d.reset_position_ids || d.reset_attention_mask)
    builder.reject("dataset.sft", "conversations are kept apart already",
                   "leave out --reset-position-ids and --reset-attention-mask");
}

constexpr Rule kBatchRules[] = {
    {"micro_batch_is_given", "train.micro_batch_size", "training needs a micro-batch size",
     micro_batch_is_given},
    {"batch_divides", "train.global_batch_size train.micro_batch_size train.decrease_batch_size_if_needed",
     "the global batch is a multiple of micro-batch x data-parallel size", batch_divides},
    {"batch_is_not_empty",
     "train.global_batch_size train.micro_batch_size train.decrease_batch_size_if_needed",
     "a batch that may shrink keeps a micro-batch per replica", batch_is_not_empty},
    {"eval_batch_divides", "validation.eval_global_batch_size validation.eval_micro_batch_size",
     "the evaluation batch divides likewise", eval_batch_divides},
    {"batch_schedule_is_right",
     "train.step_batch_size_schedule train.global_batch_size train.micro_batch_size "
     "train.decrease_batch_size_if_needed model.seq_length",
     "a batch schedule begins at 0 and its batches divide", batch_schedule_is_right},
    {"one_duration",
     "train.train_iters train.train_samples train.num_epochs dataset.replay validation.skip_train",
     "the length of the run is given once", one_duration},
    {"units_agree",
     "train.train_iters train.train_samples scheduler.lr_decay_iters scheduler.lr_decay_samples "
     "scheduler.lr_warmup_iters scheduler.lr_warmup_samples scheduler.lr_warmup_fraction "
     "scheduler.lr_wsd_decay_iters scheduler.lr_wsd_decay_samples",
     "run and schedule count the same: iterations or samples", units_agree},
    {"learning_rate",
     "optimizer.lr optimizer.min_lr optimizer.decoupled_lr optimizer.decoupled_min_lr "
     "scheduler.lr_warmup_init validation.skip_train",
     "the learning rate is given and the highest", learning_rate},
    {"warmup_fits",
     "scheduler.lr_decay_style scheduler.lr_wsd_decay_iters scheduler.lr_wsd_decay_samples "
     "scheduler.lr_decay_iters scheduler.lr_warmup_iters scheduler.lr_decay_samples "
     "scheduler.lr_warmup_samples",
     "parts of the schedule fit into it", warmup_fits},
    {"weight_decay",
     "scheduler.start_weight_decay scheduler.end_weight_decay scheduler.weight_decay_incr_style "
     "scheduler.override_opt_param_scheduler scheduler.use_checkpoint_opt_param_scheduler "
     "optimizer.weight_decay",
     "a growing weight decay has two ends, a constant one has one value", weight_decay},
    {"packing", "dataset.enable_offline_packing dataset.enable_in_batch_packing train.micro_batch_size",
     "packing suits the micro-batch", packing},
    {"one_data_source",
     "dataset.mock_data dataset.replay dataset.data_path dataset.data_args_path dataset.train_data_path "
     "dataset.valid_data_path dataset.test_data_path dataset.per_split_data_args_path dataset.dataset_root "
     "validation.skip_train",
     "training data come from one source", one_data_source},
    {"fine_tuning_data", "dataset.sft dataset.reset_position_ids dataset.reset_attention_mask",
     "conversations need no reset flags", fine_tuning_data},
};

}  // namespace

std::span<const Rule> batch_rules() { return kBatchRules; }

}  // namespace megatron
