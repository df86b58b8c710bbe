#include "megatron/training/run/training_run.h"

#include <algorithm>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/models/parallel_setup.h"

namespace megatron {
namespace {

// Evaluations of a run that is not interrupted: at their interval, and at its end.
int64_t evaluations(const ValidationConfig& validation, int64_t iterations) {
  if (validation.skip_train) return 1;
  const int64_t every = validation.eval_interval,
                before = std::max<int64_t>(1, validation.start_eval_at_iter);
  const int64_t due = std::max<int64_t>(0, iterations / every - (before - 1) / every);
  const bool ends_with_one = iterations % every == 0 && iterations >= before;
  return due + (ends_with_one ? 0 : 1);
}

// Data that ends before the run does is refused before anything is allocated.
void check_enough(const TrainingRun& run, const BatchSchedule& batches) {
  const std::string& replay = run.config.dataset.replay;
  const auto check = [&](const std::string& what, const BatchSource& source, int64_t needed,
                         const std::string& fewer) {
    if (source.samples() < 0 || needed <= source.samples()) return;
    if (!replay.empty())
      throw ConfigError(fmt::format(
          "--replay {}: it has {} iterations, the run {}; use --train-iters {} or less, or leave it out",
          replay, run.data.iterations, run.iterations, run.data.iterations));
    throw ConfigError(
        fmt::format("the {} data has {} samples and the run needs {}; give each prefix of --data-path a "
                    "weight (1 A 1 B), which reads it as often as it takes, or {}",
                    what, source.samples(), needed, fewer));
  };
  if (!run.config.validation.skip_train)
    check("training", *run.data.train, batches.samples_of(run.iterations), "less iterations");
  const ValidationConfig& validation = run.config.validation;
  if (validation.eval_interval == 0) return;
  const int64_t batch = evaluation_batch(run.config), round = validation.eval_iters * batch;
  const auto check_evaluated = [&](const std::string& what, const BatchSource& source, int64_t rounds) {
    check(what, source, rounds * round,
          fmt::format("--eval-iters {}", std::max<int64_t>(0, source.samples()) / (rounds * batch)));
  };
  if (!validation.full_validation)
    for (const NamedSource& set : run.data.validation)
      check_evaluated(set.name, *set.source, evaluations(validation, run.iterations));
  if (run.data.test) check_evaluated("test", *run.data.test, 1);
}

}  // namespace

TrainingRun training_run(Config config, int64_t ranks, RunData data) {
  TrainingRun run;
  run.data = data.train ? std::move(data) : run_data(config);
  // Of an encoder with its decoder, rows are the decoder's.
  if (config.model.model_type != ModelType::t5) config.model.seq_length = run.data.train->length();
  const BatchSchedule batches(config, parallel_sizes(config, ranks).dp());
  run.iterations = config.train.train_iters;
  if (run.iterations == 0 && config.train.train_samples > 0)
    run.iterations = batches.iterations_of(config.train.train_samples);
  if (run.iterations == 0) run.iterations = std::max<int64_t>(run.data.iterations, 0);
  run.config = std::move(config);
  check_enough(run, batches);
  return run;
}

std::filesystem::file_time_type write_time(const std::string& path) {
  std::error_code missing;
  const auto time = std::filesystem::last_write_time(path, missing);
  return missing ? std::filesystem::file_time_type::min() : time;
}

std::string RunEnd::text() const {
  const std::string at = fmt::format("after iteration {}{}", state.iteration,
                                     saved ? ", which is saved" : "; nothing is saved without --save");
  switch (reason) {
    case Reason::ambiguous_result:
      return fmt::format("left {} so that other devices compute the next one (exit code 16)", at);
    case Reason::wrong_result:
      return fmt::format("ended by a result that cannot be trusted {} (exit code 17)", at);
    case Reason::finished:
      return "";
    case Reason::interval:
      return fmt::format("stopped by --exit-interval {}", at);
    case Reason::phase:
      return fmt::format("stopped by --phase-transition-iterations {}", at);
    case Reason::duration:
      return fmt::format("stopped by --exit-duration-in-mins {}", at);
    case Reason::signal:
      return fmt::format("stopped by SIG{} {}{}", sigabbrev_np(signal), at, goes_on ? " (exit code 18)" : "");
    case Reason::preempted:
      return fmt::format("stopped by --preemption-file {}{}", at, goes_on ? " (exit code 18)" : "");
    case Reason::requested:
      return fmt::format("stopped by a callback {}", at);
    case Reason::straggler:
      return fmt::format("stopped by a slow rank {}", at);
  }
  return "";
}

int RunEnd::exit_code() const {
  if (reason == Reason::ambiguous_result) return 16;
  if (reason == Reason::wrong_result) return 17;
  return goes_on ? 18 : 0;
}

}  // namespace megatron
