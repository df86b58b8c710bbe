#pragma once

#include "megatron/cli/command.h"
#include "support/capture.h"

namespace megatron {

struct Outcome {
  int code;
  std::string out, err;
};

// A command line as a user writes it, but for the program's name.
inline Outcome run_command(std::vector<std::string> args) {
  Capture out, err;
  const int code = run_cli(commands(), std::move(args), out.file(), err.file());
  return {code, out.text(), err.text()};
}

}  // namespace megatron
