#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <optional>
#include <thread>

#include "fault/training.h"
#include "support/held_port.h"

namespace megatron::testing {

// The processes of one start of a run. What each says goes to a file of `messages` and its number;
// "{process}" in an argument is its number, too.
inline std::vector<pid_t> start_processes(int processes, const std::vector<std::string>& args,
                                          const std::string& messages) {
  std::vector<pid_t> children;
  static std::deque<HeldPort> ports;  // the processes meet after this has returned
  const std::string port = processes > 1 ? std::to_string(ports.emplace_back().number()) : "";
  for (int process = 0; process < processes; ++process) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    if (processes > 1) {
      ::setenv("RANK", std::to_string(process).c_str(), 1);
      ::setenv("LOCAL_RANK", std::to_string(process).c_str(), 1);
      ::setenv("WORLD_SIZE", std::to_string(processes).c_str(), 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", port.c_str(), 1);
    }
    std::FILE* err = std::fopen((messages + std::to_string(process)).c_str(), "w");
    std::FILE* out = std::fopen("/dev/null", "w");
    std::vector<std::string> own = args;
    for (std::string& arg : own)
      if (const size_t at = arg.find("{process}"); at != std::string::npos)
        arg.replace(at, std::string("{process}").size(), std::to_string(process));
    const int code = run_cli(commands(), own, out, err);
    std::fflush(err);
    ::_exit(code);
  }
  return children;
}

// The exit status of each process, where all end by themselves within the time; the others are killed.
inline std::optional<std::vector<int>> ended_within(const std::vector<pid_t>& children, int milliseconds) {
  std::vector<int> states(children.size(), 0);
  std::vector<bool> gone(children.size(), false);
  for (int waited = 0;; waited += 5) {
    for (size_t i = 0; i < children.size(); ++i)
      gone[i] = gone[i] || ::waitpid(children[i], &states[i], WNOHANG) == children[i];
    if (std::ranges::all_of(gone, [](bool one) { return one; })) return states;
    if (waited >= milliseconds) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (size_t i = 0; i < children.size(); ++i) {
    if (gone[i]) continue;
    ::kill(children[i], SIGKILL);
    ::waitpid(children[i], nullptr, 0);
  }
  return {};
}

}  // namespace megatron::testing
