#include "megatron/training/run/training_run.h"

#include <algorithm>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/training/setup/parallel_setup.h"

namespace megatron {
namespace {

// Data that ends before the run does is refused before anything is allocated.
void check_enough(const TrainingRun& run, const BatchSchedule& batches) {
  const auto check = [](const std::string& what, const BatchSource& source, int64_t needed) {
    if (source.samples() >= 0 && needed > source.samples())
      throw ConfigError(
          fmt::format("the {} data has {} samples and the run needs {}; give each prefix of --data-path a "
                      "weight (1 A 1 B), which reads it as often as it takes, or less iterations",
                      what, source.samples(), needed));
  };
  check("training", *run.data.train, batches.samples_of(run.iterations));
  const ValidationConfig& validation = run.config.validation;
  if (validation.eval_interval == 0 || validation.full_validation) return;
  const int64_t round = validation.eval_iters * evaluation_batch(run.config);
  for (const NamedSource& set : run.data.validation)
    check(set.name, *set.source, run.iterations / validation.eval_interval * round);
}

}  // namespace

TrainingRun training_run(Config config, int64_t ranks, RunData data) {
  TrainingRun run;
  run.data = data.train ? std::move(data) : run_data(config);
  config.model.seq_length = run.data.train->length();
  const BatchSchedule batches(config, parallel_sizes(config, ranks).dp());
  run.iterations = config.train.train_iters;
  if (run.iterations == 0 && config.train.train_samples > 0)
    run.iterations = batches.iterations_of(config.train.train_samples);
  if (run.iterations == 0) run.iterations = std::max<int64_t>(run.data.iterations, 0);
  run.config = std::move(config);
  check_enough(run, batches);
  return run;
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
    case Reason::duration:
      return fmt::format("stopped by --exit-duration-in-mins {}", at);
    case Reason::signal:
      return fmt::format("stopped by SIG{} {}", sigabbrev_np(signal), at);
    case Reason::requested:
      return fmt::format("stopped by a callback {}", at);
  }
  return "";
}

int RunEnd::exit_code() const {
  return reason == Reason::ambiguous_result ? 16 : reason == Reason::wrong_result ? 17 : 0;
}

}  // namespace megatron
