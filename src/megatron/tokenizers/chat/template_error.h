#pragma once

#include <string>

#include "megatron/base/error.h"

namespace megatron::chat {

// A template that is malformed, that raised an exception, or that went beyond its limits. The message is the
// template's own where it called raise_exception, else it begins with the line.
class TemplateError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// A fault inside an expression whose line is not known yet; whoever knows it makes a TemplateError of it.
class ValueFault : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) {
  throw ValueFault(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megatron::chat
