#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "megatron/base/log.h"

namespace megatron {

// How far long work has come: on a terminal one line, redrawn in place, with a bar and the time left;
// elsewhere a line about every tenth.
class Progress {
 public:
  Progress(const Log& log, std::string title, int64_t total);
  ~Progress();
  void update(int64_t done, std::string_view note);

 private:
  Log log_;
  std::string title_;
  int64_t total_, shown_tenth_ = -1;
  bool live_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace megatron
