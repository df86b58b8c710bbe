#include "megatron/training/log/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/json.h"

namespace megatron {

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
  if (r.loss_scale != 1) row["loss_scale"] = r.loss_scale;
  if (r.num_zeros) row["num_zeros"] = *r.num_zeros;
  if (r.params_norm) row["params_norm"] = *r.params_norm;
  row["learning_rate"] = r.learning_rate;
  row["iteration_ms"] = r.milliseconds;
  row["data_wait_ms"] = r.data_wait_ms;
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
