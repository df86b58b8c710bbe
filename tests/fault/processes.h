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

// Where processes of a start meet, which they do after it has returned; the last one's at the end.
inline std::deque<HeldPort>& held_ports() {
  static std::deque<HeldPort> ports;
  return ports;
}

// One of the processes of a run, which says what it says to a file. "{process}" in an argument is its number.
// `rejoins`: the run goes on without the one that had this number.
inline pid_t start_process(int process, int processes, std::vector<std::string> args, const std::string& file,
                           bool rejoins = false) {
  if (const pid_t child = ::fork(); child != 0) return child;
  if (processes > 1) {
    ::setenv("RANK", std::to_string(process).c_str(), 1);
    ::setenv("LOCAL_RANK", std::to_string(process).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(processes).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(held_ports().back().number()).c_str(), 1);
    if (rejoins) ::setenv("MEGATRON_REJOIN", "1", 1);
  }
  std::FILE* err = std::fopen(file.c_str(), "w");
  std::FILE* out = std::fopen("/dev/null", "w");
  for (std::string& arg : args)
    if (const size_t at = arg.find("{process}"); at != std::string::npos)
      arg.replace(at, std::string("{process}").size(), std::to_string(process));
  const int code = run_cli(commands(), args, out, err);
  std::fflush(err);
  ::_exit(code);
}

// The processes of one start of a run. What each says goes to a file of `messages` and its number.
inline std::vector<pid_t> start_processes(int processes, const std::vector<std::string>& args,
                                          const std::string& messages) {
  std::vector<pid_t> children;
  if (processes > 1) held_ports().emplace_back();
  for (int process = 0; process < processes; ++process)
    children.push_back(start_process(process, processes, args, messages + std::to_string(process)));
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
