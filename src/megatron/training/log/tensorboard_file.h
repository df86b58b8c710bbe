#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "megatron/base/log.h"

namespace megatron {

// A TensorBoard event file: TFRecords of Event messages. Every start of a run makes a file of its own, and
// TensorBoard shows those of a folder as one run. A disk that is full or gone is told of once and never stops
// the run; what could not be written is lost, and no part of a record is left behind.
class TensorBoardFile {
 public:
  struct Options {
    int64_t queued_events = 1000;             // are written at once
    std::chrono::seconds flush_interval{30};  // between writes, as long as events come
  };

  // Makes the folder where it is missing.
  TensorBoardFile(std::string folder, const Log& log, const Options& options);
  TensorBoardFile(std::string folder, const Log& log) : TensorBoardFile(std::move(folder), log, Options()) {}
  ~TensorBoardFile();
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;

  // A point of the curve `tag`.
  void scalar(std::string_view tag, double value, int64_t step);
  // Markdown, under the text tab.
  void text(std::string_view tag, std::string_view markdown, int64_t step);
  // Writes what is queued.
  void flush();

  const std::string& path() const { return path_; }

 private:
  using Clock = std::chrono::steady_clock;

  void add(std::string_view event);
  void warn(std::string_view problem);

  Log log_;
  Options options_;
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;   // of whole records in the file
  std::string queue_;   // records
  int64_t queued_ = 0;  // of them
  Clock::time_point flushed_ = Clock::now();
  bool warned_ = false;
};

}  // namespace megatron
