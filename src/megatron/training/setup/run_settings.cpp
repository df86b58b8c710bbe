#include "megatron/training/setup/run_settings.h"

namespace megatron {

DType model_dtype(const Config& config) { return dtype_from_name(config.precision.params_dtype); }

LearningRateSchedule learning_rate_schedule(const Config& config, int64_t iterations) {
  const SchedulerConfig& s = config.scheduler;
  const int64_t batch = config.train.global_batch_size;
  auto samples = [&](int64_t given_samples, int64_t given_iterations, int64_t otherwise) {
    if (given_samples > 0) return given_samples;
    return given_iterations > 0 ? given_iterations * batch : otherwise;
  };
  LearningRateSchedule schedule;
  schedule.decay = s.lr_decay_style;
  schedule.wsd_decay = s.lr_wsd_decay_style;
  schedule.initial = s.lr_warmup_init;
  schedule.peak = config.optimizer.lr.value_or(0);
  schedule.minimum = config.optimizer.min_lr;
  schedule.duration = samples(s.lr_decay_samples, s.lr_decay_iters, iterations * batch);
  schedule.warmup = s.lr_warmup_fraction
                        ? static_cast<int64_t>(*s.lr_warmup_fraction * static_cast<double>(schedule.duration))
                        : samples(s.lr_warmup_samples, s.lr_warmup_iters, 0);
  schedule.wsd_duration = samples(s.lr_wsd_decay_samples, s.lr_wsd_decay_iters, 0);
  return schedule;
}

RateSchedule rate_schedule(const Config& config, int64_t iterations) {
  const OptimizerConfig& optimizer = config.optimizer;
  RateSchedule schedule{
      .lr = learning_rate_schedule(config, iterations), .decoupled_lr = {}, .weight_decay = {}};
  if (optimizer.decoupled_lr) {
    schedule.decoupled_lr = schedule.lr;
    schedule.decoupled_lr->peak = *optimizer.decoupled_lr;
    schedule.decoupled_lr->minimum = optimizer.decoupled_min_lr.value_or(optimizer.min_lr);
  }
  const SchedulerConfig& scheduler = config.scheduler;
  const bool grows = scheduler.weight_decay_incr_style != WeightDecayGrowth::constant;
  const auto decay = [&](std::optional<double> own) {
    return grows ? own.value_or(optimizer.weight_decay) : optimizer.weight_decay;
  };
  schedule.weight_decay = {.growth = scheduler.weight_decay_incr_style,
                           .start = decay(scheduler.start_weight_decay),
                           .end = decay(scheduler.end_weight_decay),
                           .duration = config.train.train_samples > 0
                                           ? config.train.train_samples
                                           : iterations * config.train.global_batch_size};
  return schedule;
}

Rates RateSchedule::at(int64_t samples) const {
  std::optional<double> decoupled;
  if (decoupled_lr) decoupled = decoupled_lr->at(samples);
  return {lr.at(samples), decoupled, weight_decay.at(samples)};
}

}  // namespace megatron
