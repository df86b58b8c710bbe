#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "megatron/base/log.h"

namespace megatron {

// The columns of the terminal that a file is now, or `otherwise` where it is none.
size_t terminal_columns(std::FILE* file, size_t otherwise);

// "title [###...] 12/300  note  left 0:40", never wider than `columns`, so that a terminal does not wrap it:
// the bar gives way first, then the end of the text.
std::string progress_line(std::string_view title, int64_t done, int64_t total, std::string_view note,
                          double seconds_left, size_t columns);

// How far long work has come: on a terminal one line, redrawn in place, with a bar and the time left;
// elsewhere a line about every tenth, for work that takes more than some seconds.
class Progress {
 public:
  // Work that goes on where an earlier run left it was `done` by then.
  Progress(const Log& log, std::string title, int64_t total, int64_t done = 0);
  ~Progress();
  void update(int64_t done, std::string_view note);
  // Takes the line away, for whoever prints something else; the next update shows it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  Log log_;
  std::string title_;
  int64_t total_, before_, shown_tenth_ = -1;
  bool live_, visible_ = false;
  Clock::time_point start_, shown_;
};

}  // namespace megatron
