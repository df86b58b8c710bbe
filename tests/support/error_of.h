#pragma once

#include <string>

#include "megatron/base/error.h"

namespace megatron::testing {

// The message of the Error that the action throws.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace megatron::testing
