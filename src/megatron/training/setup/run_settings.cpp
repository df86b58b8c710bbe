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

}  // namespace megatron
