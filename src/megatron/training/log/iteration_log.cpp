#include "megatron/training/log/iteration_log.h"

#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <utility>

namespace megatron {

std::string time_stamp() {
  const auto now = std::chrono::system_clock::now();
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1000000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return fmt::format("{}.{:06}", text, micros);
}

std::string iteration_line(const IterationReport& r, const std::string& stamp, bool throughput) {
  std::string line = stamp.empty() ? "" : fmt::format(" [{}]", stamp);
  line += fmt::format(" iteration {:8}/{:8} | consumed samples: {:12} |", r.iteration, r.iterations,
                      r.consumed_samples);
  if (r.skipped_samples > 0) line += fmt::format(" skipped samples: {:12} |", r.skipped_samples);
  line += fmt::format(" elapsed time per iteration (ms): {:.1f} |", r.milliseconds);
  if (throughput) line += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", r.model_tflops);
  line +=
      fmt::format(" learning rate: {:.6E} | global batch size: {:5} |", r.learning_rate, r.global_batch_size);
  // Where no update was taken there is no mean of losses, which is no NaN of the model.
  if (!std::isnan(r.loss) || r.nans > 0) {
    line += fmt::format(" lm loss: {:.6E} |", r.loss);
    for (const LossTerm& term : r.terms) line += fmt::format(" {}: {:.6E} |", term.name, term.value);
  }
  line += fmt::format(" loss scale: {:.1f} |", r.loss_scale);
  // An update that was skipped has no norm: its gradients overflowed.
  if (r.skipped == 0 || std::isfinite(r.grad_norm)) line += fmt::format(" grad norm: {:.3f} |", r.grad_norm);
  if (r.num_zeros) line += fmt::format(" num zeros: {:.0f} |", *r.num_zeros);
  if (r.params_norm) line += fmt::format(" params norm: {:.3f} |", *r.params_norm);
  return line + fmt::format(" number of skipped iterations: {:3} | number of nan iterations: {:3} |",
                            r.skipped, r.nans);
}

void IterationMeans::add(const IterationReport& report) {
  const IterationReport before = std::exchange(sum_, report);
  if (report.skipped == 0) {
    ++taken_;
  } else {
    sum_.loss = 0;
    for (LossTerm& term : sum_.terms) term.value = 0;
  }
  // Rates become work, which adds up.
  sum_.model_tflops *= report.milliseconds;
  sum_.tokens_per_second *= report.milliseconds;
  if (count_++ == 0) return;
  sum_.skipped += before.skipped;
  sum_.nans += before.nans;
  sum_.loss += before.loss;
  sum_.milliseconds += before.milliseconds;
  sum_.data_wait_ms += before.data_wait_ms;
  sum_.model_tflops += before.model_tflops;
  sum_.tokens_per_second += before.tokens_per_second;
  for (size_t i = 0; i < sum_.terms.size(); ++i) sum_.terms[i].value += before.terms.at(i).value;
}

IterationReport IterationMeans::report() const {
  // Without an update that was taken there is no loss, and 0/0 says so.
  const auto count = static_cast<double>(count_), taken = static_cast<double>(taken_);
  IterationReport mean = sum_;
  mean.loss /= taken;
  for (LossTerm& term : mean.terms) term.value /= taken;
  mean.model_tflops /= sum_.milliseconds;
  mean.tokens_per_second /= sum_.milliseconds;
  mean.milliseconds /= count;
  mean.data_wait_ms /= count;
  return mean;
}

}  // namespace megatron
