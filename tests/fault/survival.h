#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "fault/processes.h"

// Runs of several processes that meet faults, held against runs that are restarted by hand in the layouts
// that their restart lines tell.
namespace megatron::testing {

constexpr int kProcesses = 8;

// How the processes of a run divide the model.
struct Division {
  int model_ranks;  // of a replica
  std::vector<std::string> args;
  std::vector<std::string> replicated = {};  // what only the run has that meets faults
};
inline const Division kReplicas{1, {}};
inline const Division kTensor{4, {"-tp", "4", "--num-attention-heads", "4", "--attention-dropout", "0"}};
inline const Division kStages{4,
                              {"-tp", "2", "-pp", "2", "--sequence-parallel", "--num-attention-heads", "4",
                               "--attention-dropout", "0"}};

// A part of a run in one layout: from which iteration on, with how many replicas, without which slots.
struct Segment {
  int64_t from;
  int replicas;
  std::vector<std::string> lost;
};

// What the restart lines of all processes tell.
struct Restarts {
  std::vector<Segment> segments;
  std::vector<double> seconds;    // from the fault to the end of the next step
  int64_t most_again = 0;         // iterations computed again after one that went on from memory
  std::vector<std::string> slow;  // lines of those that took more than a second
};

inline std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

inline Restarts restarts_of(const std::string& messages, int processes) {
  std::map<int, Segment> by_number;
  Restarts restarts;
  const std::regex layout(
      R"(restart (\d+): .*dp (\d+)(?: without slots ([^)]*))?\), from iteration (\d+) in (.*), (\d+) computed again)");
  const std::regex times(R"(restart \d+: ([0-9.]+) s from.*)");
  for (int process = 0; process < processes; ++process) {
    const std::string text = read_text(messages + std::to_string(process));
    for (std::sregex_iterator at(text.begin(), text.end(), layout), end; at != end; ++at) {
      by_number[std::stoi((*at)[1])] = {std::stoll((*at)[4]), std::stoi((*at)[2]), words_of((*at)[3])};
      if ((*at)[5] == "memory") restarts.most_again = std::max(restarts.most_again, std::stol((*at)[6]));
    }
    for (std::sregex_iterator at(text.begin(), text.end(), times), end; at != end; ++at) {
      restarts.seconds.push_back(std::stod((*at)[1]));
      if (restarts.seconds.back() > 1) restarts.slow.push_back((*at)[0]);
    }
  }
  for (const auto& [number, segment] : by_number) {
    // Where an older state was gone back to, what had followed it does not count.
    while (!restarts.segments.empty() && restarts.segments.back().from >= segment.from)
      restarts.segments.pop_back();
    restarts.segments.push_back(segment);
  }
  return restarts;
}

// What the processes of a run have said.
inline std::string all_said(const std::string& messages) {
  std::string said;
  for (int process = 0; process < kProcesses; ++process)
    said += fmt::format("process {} has said: {}\n", process, read_text(messages + std::to_string(process)));
  return said;
}

inline std::vector<std::string> batch_of_24(int64_t iterations, std::vector<std::string> further) {
  further.insert(further.begin(), {"--global-batch-size", "24", "--train-iters", std::to_string(iterations)});
  return training(further);
}

// What lies in a folder of checkpoints beside these.
inline std::set<std::string> beside_checkpoints(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); !name.starts_with("iter_"))
      names.insert(name);
  return names;
}

// The weights of a run on threads that is stopped and started again where the other one was.
inline std::map<std::string, std::string> by_hand(const Division& division, int64_t iterations,
                                                  const std::vector<Segment>& segments,
                                                  std::set<std::string>& files) {
  TempDir dir;
  Segment now{0, kProcesses / division.model_ranks, {}};
  for (size_t i = 0; i <= segments.size(); ++i) {
    std::vector<std::string> args =
        batch_of_24(iterations, {"--ranks", std::to_string(now.replicas * division.model_ranks), "--save",
                                 dir / "c", "--load", dir / "c"});
    args.insert(args.end(), division.args.begin(), division.args.end());
    if (!now.lost.empty()) {
      args.emplace_back("--non-active-ranks");
      args.insert(args.end(), now.lost.begin(), now.lost.end());
    }
    if (i < segments.size()) {
      now = segments[i];
      if (now.from == 0) continue;
      args.insert(args.end(), {"--exit-interval", std::to_string(now.from)});
    }
    const Outcome outcome = run_command(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
  files = beside_checkpoints(dir / "c");
  return contents(fmt::format("{}/iter_{:07}", dir / "c", iterations));
}

// Until all processes but the stopped ones have ended, which are killed then.
inline bool all_end(const std::vector<pid_t>& children, std::vector<int>& codes) {
  std::set<size_t> running, stopped;
  for (size_t i = 0; i < children.size(); ++i) running.insert(i);
  codes.assign(children.size(), -1);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(4);  // on a busy machine
  while (running.size() > stopped.size() && std::chrono::steady_clock::now() < deadline) {
    for (auto i = running.begin(); i != running.end();) {
      int status = 0;
      const pid_t child = ::waitpid(children[*i], &status, WNOHANG | WUNTRACED);
      if (child == children[*i] && WIFSTOPPED(status)) stopped.insert(*i);
      if (child == children[*i] && !WIFSTOPPED(status)) {
        codes[*i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        i = running.erase(i);
      } else {
        ++i;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const bool ended = running.size() == stopped.size();
  for (const size_t i : running) {
    ::kill(children[i], SIGKILL);
    ::waitpid(children[i], nullptr, 0);
  }
  return ended;
}

// Starts a run, lets `disturb` do what it likes to its processes, and holds the end against one by hand.
// Gives the seconds that each restart took.
inline void survive(const Division& division, int64_t iterations, const std::string& planted,
                    const std::function<void(const std::vector<pid_t>&)>& disturb,
                    std::vector<double>& seconds, std::vector<Segment>* told = nullptr) {
  SCOPED_TRACE(planted);
  TempDir dir;
  const std::string messages = dir / "messages";
  std::vector<std::string> args =
      batch_of_24(iterations, {"--save", dir / "c", "--inprocess-restart", "--inprocess-heartbeat-interval",
                               "0.2", "--inprocess-heartbeat-timeout", "1.5", "--inprocess-soft-timeout", "1",
                               "--inprocess-barrier-timeout", "5", "--distributed-timeout-minutes", "0.2"});
  args.insert(args.end(), division.args.begin(), division.args.end());
  args.insert(args.end(), division.replicated.begin(), division.replicated.end());
  if (!planted.empty()) args.insert(args.end(), {"--inject-fault", planted});
  const std::vector<pid_t> children = start_processes(kProcesses, args, messages);
  const auto has_begun = [&] {
    return std::filesystem::exists(messages + "0") &&
           read_text(messages + "0").find("after a fault") != std::string::npos;
  };
  for (int waited = 0; waited < 20'000 && !has_begun(); waited += 20)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  disturb(children);
  std::vector<int> codes;
  const bool ended = all_end(children, codes);
  ASSERT_TRUE(ended) << "a process waits for ever\n" << all_said(messages);
  const Restarts restarts = restarts_of(messages, kProcesses);
  for (size_t i = 0; i < codes.size(); ++i)
    EXPECT_TRUE(codes[i] == 0 || codes[i] == -1 || codes[i] == 137)
        << "process " << i << ": " << codes[i] << "\n"
        << read_text(messages + std::to_string(i));
  EXPECT_GE(restarts.segments.size(), 1U);
  EXPECT_LE(restarts.most_again, 1) << all_said(messages);
  for (const std::string& line : restarts.slow) fmt::print("{}\n", line);
  std::set<std::string> files;
  EXPECT_EQ(contents(fmt::format("{}/iter_{:07}", dir / "c", iterations)),
            by_hand(division, iterations, restarts.segments, files))
      << all_said(messages);
  EXPECT_EQ(beside_checkpoints(dir / "c"), files) << "something is left behind";
  seconds.insert(seconds.end(), restarts.seconds.begin(), restarts.seconds.end());
  if (told) *told = restarts.segments;
}

inline bool comes_to_say(const std::string& file, const std::string& words) {
  for (int waited = 0; waited < 30'000; waited += 20) {
    if (std::filesystem::exists(file) && read_text(file).find(words) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

}  // namespace megatron::testing
