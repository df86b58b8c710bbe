#pragma once

#include <string_view>

#include "megatron/base/error.h"

// Faults of what the user gave, files and words: exit code 1 instead of 3.
namespace megatron {

// fail() and require() for input: a ConfigError.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw ConfigError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void require_input(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    refuse(format, std::forward<Args>(args)...);
}

// Runs read(), which reads what the user gave: a fault of it becomes a ConfigError that begins with `origin`.
template <class Read>
decltype(auto) refuse_faults(std::string_view origin, Read read) {
  try {
    return read();
  } catch (const ConfigError&) {
    throw;
  } catch (const UsageError&) {
    throw;
  } catch (const Error& fault) {
    const std::string_view what = fault.what();
    if (origin.empty() || what.starts_with(origin)) refuse("{}", what);
    refuse("{}: {}", origin, what);
  }
}

}  // namespace megatron
