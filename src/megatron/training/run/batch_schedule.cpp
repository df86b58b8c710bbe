#include "megatron/training/run/batch_schedule.h"

#include <limits>

#include "megatron/base/error.h"
#include "megatron/config/resolve/inactive_slots.h"

namespace megatron {

BatchSchedule::BatchSchedule(const Config& config, int64_t data_parallel)
    : sizes_(batch_sizes({config.train.step_batch_size_schedule, config.train.rampup_batch_size,
                          config.train.global_batch_size, config.model.seq_length})) {
  // Unequal replicas get different numbers of micro-batches, each at least one.
  const bool unequal = has_inactive_slots(config.parallel);
  const int64_t least = config.train.micro_batch_size * data_parallel;
  const int64_t micro = unequal ? config.train.micro_batch_size : least;
  for (BatchSize& step : sizes_) {
    const int64_t given = step.size;
    if (config.train.decrease_batch_size_if_needed) step.size = step.size / micro * micro;
    if (step.size < least || step.size % micro != 0)
      throw ConfigError(fmt::format(
          "a batch of {} sequences is no whole number of micro-batches of {} on {} replicas; give "
          "batch sizes that are multiples of {}{}",
          given, config.train.micro_batch_size, data_parallel, micro,
          given < least ? "" : ", or --decrease-batch-size-if-needed"));
  }
}

int64_t BatchSchedule::at(int64_t consumed) const {
  int64_t size = sizes_[0].size;
  for (const BatchSize& step : sizes_)
    if (step.from <= consumed) size = step.size;
  return size;
}

template <class Visit>
void BatchSchedule::walk(Visit&& visit) const {
  int64_t consumed = 0;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const int64_t end = i + 1 < sizes_.size() ? sizes_[i + 1].from : std::numeric_limits<int64_t>::max();
    if (end <= consumed) continue;
    const int64_t size = sizes_[i].size, count = (end - consumed - 1) / size + 1;
    if (!visit(consumed, size, count)) return;
    consumed += count * size;
  }
}

int64_t BatchSchedule::iterations_of(int64_t samples) const {
  int64_t iterations = 0;
  walk([&](int64_t consumed, int64_t size, int64_t count) {
    const int64_t fit = std::max<int64_t>(0, (samples - consumed) / size);
    iterations += std::min(fit, count);
    return fit >= count;
  });
  return iterations;
}

int64_t BatchSchedule::samples_of(int64_t iterations) const {
  int64_t samples = 0;
  walk([&](int64_t, int64_t size, int64_t count) {
    const int64_t taken = std::min(iterations, count);
    samples += taken * size;
    iterations -= taken;
    return iterations > 0;
  });
  return samples;
}

}  // namespace megatron
