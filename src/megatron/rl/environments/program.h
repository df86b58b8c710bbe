#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace megatron::rl {

struct ProgramEnd {
  bool timed_out = false;
  int code = 0;    // as it exited
  int signal = 0;  // that ended it; 0: none
  std::string output, errors;

  bool well() const { return !timed_out && code == 0 && signal == 0; }
};

// Runs a command with `input` as its standard input, in a process group of its own, which is killed when the
// time is over or the command has ended. Of its output and errors the first 64 KiB are kept. An Error where
// it cannot be started.
ProgramEnd run_program(const std::vector<std::string>& command, const std::string& input,
                       std::chrono::milliseconds limit);

// Where a command's program is, as a shell would find it; "" where there is none.
std::string find_program(const std::string& name);

}  // namespace megatron::rl
