#pragma once

#include <string>

#include "megatron/training/log/iteration_log.h"

namespace megatron {

// One JSON object a line. A run that begins again after `iteration` keeps the lines up to it and writes the
// rest anew.
class MetricsFile {
 public:
  MetricsFile(const std::string& path, int64_t iteration);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Whether there was room for the row; a part of one is never left behind.
  bool write(const IterationReport& report);

 private:
  int fd_;
  int64_t bytes_;  // of whole rows
};

}  // namespace megatron
