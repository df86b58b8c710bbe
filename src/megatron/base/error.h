#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace megatron {

// A fault that a user can meet. The message names what was being done, on what, and why it cannot be.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual int exit_code() const { return 3; }
};

// The user's configuration or input was refused, before anything was computed.
class ConfigError : public Error {
 public:
  using Error::Error;
  int exit_code() const override { return 1; }
};

// The command line itself could not be understood.
class UsageError : public Error {
 public:
  using Error::Error;
  int exit_code() const override { return 2; }
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// Formats only on failure: pass shapes and dtypes themselves, not their strings.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    fail(format, std::forward<Args>(args)...);
}

}  // namespace megatron
