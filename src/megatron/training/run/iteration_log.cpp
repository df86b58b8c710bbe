#include "megatron/training/run/iteration_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/json.h"

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
  line += fmt::format(
      " iteration {:8}/{:8} | consumed samples: {:12} | elapsed time per iteration (ms): {:.1f} |",
      r.iteration, r.iterations, r.consumed_samples, r.milliseconds);
  if (throughput) line += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", r.model_tflops);
  line += fmt::format(" learning rate: {:.6E} | global batch size: {:5} | lm loss: {:.6E} |", r.learning_rate,
                      r.global_batch_size, r.loss);
  for (const LossTerm& term : r.terms) line += fmt::format(" {}: {:.6E} |", term.name, term.value);
  return line + fmt::format(
                    " loss scale: {:.1f} | grad norm: {:.3f} | number of skipped iterations: {:3} | "
                    "number of nan iterations: {:3} |",
                    1.0, r.grad_norm, r.skipped, r.nans);
}

void IterationMeans::add(const IterationReport& report) {
  const IterationReport before = std::exchange(sum_, report);
  if (report.skipped == 0) {
    ++taken_;
  } else {
    sum_.loss = 0;
    for (LossTerm& term : sum_.terms) term.value = 0;
  }
  if (count_++ == 0) return;
  sum_.skipped += before.skipped;
  sum_.nans += before.nans;
  sum_.loss += before.loss;
  sum_.milliseconds += before.milliseconds;
  for (size_t i = 0; i < sum_.terms.size(); ++i) sum_.terms[i].value += before.terms.at(i).value;
  // Work per second, summed as work, which is the same in each iteration.
  sum_.model_tflops = report.model_tflops * report.milliseconds / sum_.milliseconds;
  sum_.tokens_per_second = report.tokens_per_second * report.milliseconds / sum_.milliseconds;
}

IterationReport IterationMeans::report() const {
  // Without an update that was taken there is no loss, and 0/0 says so.
  const auto count = static_cast<double>(count_), taken = static_cast<double>(taken_);
  IterationReport mean = sum_;
  mean.loss /= taken;
  mean.milliseconds /= count;
  for (LossTerm& term : mean.terms) term.value /= taken;
  mean.model_tflops *= count;
  mean.tokens_per_second *= count;
  return mean;
}

MetricsFile::MetricsFile(const std::string& path, int64_t iteration) {
  std::string kept;
  if (std::ifstream old(path); old.good())
    for (std::string line; std::getline(old, line);) {
      if (line.empty()) continue;
      if (old.eof()) break;  // a row without its end: the machine died in it
      const Json row = Json::parse(line, path);
      if (row.at("iteration").as_int() <= iteration) kept += line + "\n";
    }
  write_file_atomically(path, kept);
  bytes_ = static_cast<int64_t>(kept.size());
  fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd_ < 0)
    throw ConfigError(fmt::format("--metrics {}: it cannot be written: {}", path, std::strerror(errno)));
}

MetricsFile::~MetricsFile() { ::close(fd_); }

bool MetricsFile::write(const IterationReport& r) {
  Json row = Json::object();
  row["iteration"] = r.iteration;
  row["consumed_samples"] = r.consumed_samples;
  row["lm_loss"] = r.loss;
  for (const LossTerm& term : r.terms) {
    std::string key = term.name;
    std::replace(key.begin(), key.end(), ' ', '_');
    row[key] = term.value;
  }
  if (r.skipped > 0) row["skipped"] = true;
  row["grad_norm"] = r.grad_norm;
  row["learning_rate"] = r.learning_rate;
  row["iteration_ms"] = r.milliseconds;
  row["tokens_per_second"] = r.tokens_per_second;
  row["model_tflops"] = r.model_tflops;
  row["memory_gib"] = r.memory_gib;
  row["reserved_gib"] = r.reserved_gib;
  const std::string line = row.dump() + "\n";
  const auto size = static_cast<int64_t>(line.size());
  if (::write(fd_, line.data(), line.size()) != size) {
    (void)!::ftruncate(fd_, bytes_);
    return false;
  }
  bytes_ += size;
  return true;
}

}  // namespace megatron
