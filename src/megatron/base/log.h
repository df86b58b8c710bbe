#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace megatron {

enum class LogLevel { error, warning, info, debug };

// Where messages for people go. A value: whoever needs to speak gets a copy. Each message is one write of one
// line, so lines of ranks that share a process never mix.
class Log {
 public:
  explicit Log(LogLevel level = LogLevel::info, std::FILE* file = stderr) : level_(level), file_(file) {}

  Log with_level(LogLevel level) const;

  LogLevel level() const { return level_; }
  bool shows(LogLevel level) const { return level <= level_; }
  bool is_terminal() const;  // whether a live display, redrawn in place, makes sense

  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    print(LogLevel::error, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    print(LogLevel::warning, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    print(LogLevel::info, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    print(LogLevel::debug, format, std::forward<Args>(args)...);
  }

  void write(LogLevel level, std::string_view message) const;

 private:
  template <class... Args>
  void print(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    if (shows(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
  }

  LogLevel level_;
  std::FILE* file_;
};

}  // namespace megatron
