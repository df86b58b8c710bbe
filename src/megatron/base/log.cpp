#include "megatron/base/log.h"

#include <unistd.h>

namespace megatron {

namespace {

std::string_view label(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error: ";
    case LogLevel::warning:
      return "warning: ";
    case LogLevel::info:
    case LogLevel::debug:
      break;
  }
  return "";
}

}  // namespace

Log Log::with_level(LogLevel level) const {
  Log log = *this;
  log.level_ = level;
  return log;
}

bool Log::is_terminal() const { return isatty(fileno(file_)) != 0; }

void Log::write(LogLevel level, std::string_view message) const {
  if (!shows(level)) return;
  const std::string line = fmt::format("{}{}\n", label(level), message);
  std::fwrite(line.data(), 1, line.size(), file_);
  std::fflush(file_);
}

}  // namespace megatron
