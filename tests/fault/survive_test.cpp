// Processes that are killed, stopped and disturbed: those that are left go on and end with the weights of a
// run that was restarted by hand in the same layouts.
#include <random>
#include <regex>
#include <set>

#include "fault/processes.h"

namespace megatron::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kProcesses = 8;
constexpr int64_t kIterations = 60;  // with planted faults

// How the processes of a run divide the model.
struct Division {
  int model_ranks;  // of a replica
  std::vector<std::string> args;
  std::vector<std::string> replicated = {};  // what only the run has that meets faults
};
const Division kReplicas{1, {}};
const Division kTensor{4, {"-tp", "4", "--num-attention-heads", "4", "--attention-dropout", "0"}};
const Division kStages{4,
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

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Restarts restarts_of(const std::string& messages, int processes) {
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
std::string all_said(const std::string& messages) {
  std::string said;
  for (int process = 0; process < kProcesses; ++process)
    said += fmt::format("process {} has said: {}\n", process, read_text(messages + std::to_string(process)));
  return said;
}

std::vector<std::string> batch_of_24(int64_t iterations, std::vector<std::string> further) {
  further.insert(further.begin(), {"--global-batch-size", "24", "--train-iters", std::to_string(iterations)});
  return training(further);
}

// What lies in a folder of checkpoints beside these.
std::set<std::string> beside_checkpoints(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); !name.starts_with("iter_"))
      names.insert(name);
  return names;
}

// The weights of a run on threads that is stopped and started again where the other one was.
std::map<std::string, std::string> by_hand(const Division& division, int64_t iterations,
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

// Half of the faults end a process, half do not; they are some iterations apart.
std::string random_faults(int count, std::mt19937& random) {
  std::vector<int> alive;
  for (int rank = 0; rank < kProcesses; ++rank) alive.push_back(rank);
  std::string text;
  const int64_t apart = (kIterations - 10) / count;
  for (int i = 0; i < count; ++i) {
    const size_t chosen = random() % alive.size();
    const bool ends = i % 2 == 0 && alive.size() > 2;
    const char* kind = ends ? (random() % 2 ? "kill" : "stop") : (random() % 2 ? "throw" : "hang");
    const int64_t iteration =
        5 + apart * i + static_cast<int64_t>(random() % static_cast<unsigned>(apart - 2));
    text += fmt::format("{}{}@{}:{}", text.empty() ? "" : ",", kind, alive[chosen], iteration);
    if (ends) alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  return text;
}

// Until all processes but the stopped ones have ended, which are killed then.
bool all_end(const std::vector<pid_t>& children, std::vector<int>& codes) {
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
void survive(const Division& division, int64_t iterations, const std::string& planted,
             const std::function<void(const std::vector<pid_t>&)>& disturb, std::vector<double>& seconds,
             std::vector<Segment>* told = nullptr) {
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

// Kills and stops at any moment, also while others meet. More than half of the processes must stay.
void kill_at_random(int count, std::mt19937& random, const std::vector<pid_t>& children) {
  std::vector<pid_t> alive = children;
  for (int i = 0; i < count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 400));
    const size_t chosen = random() % alive.size();
    ::kill(alive[chosen], random() % 2 ? SIGKILL : SIGSTOP);
    alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
}

bool comes_to_say(const std::string& file, const std::string& words) {
  for (int waited = 0; waited < 30'000; waited += 20) {
    if (std::filesystem::exists(file) && read_text(file).find(words) != std::string::npos) return true;
    std::this_thread::sleep_for(20ms);
  }
  return false;
}

// The first process, which has the lock of --save, is stopped and goes on when the others have shrunk.
TEST(Restart, AProcessThatWasStoppedFindsItselfLeftOut) {
  TempDir dir;
  const std::string messages = dir / "messages";
  const std::vector<pid_t> children = start_processes(
      3,
      batch_of_24(150, {"--save", dir / "c", "--inprocess-restart", "--inprocess-heartbeat-interval", "0.1",
                        "--inprocess-heartbeat-timeout", "1", "--inject-fault", "stop@0:4,slow@1:1=0.02"}),
      messages);
  EXPECT_TRUE(comes_to_say(messages + "1", "restart 1: ")) << read_text(messages + "1");
  ::kill(children[0], SIGCONT);
  const auto states = ended_within(children, 60'000);
  ASSERT_TRUE(states) << "a process waits for ever";
  const std::string said = read_text(messages + "0");
  EXPECT_EQ(WEXITSTATUS((*states)[0]), 19) << said;
  EXPECT_NE(said.find("was left out of generation 1"), std::string::npos) << said;
  EXPECT_EQ(said.find("saved "), std::string::npos) << said;
  for (const size_t process : {1, 2})
    EXPECT_EQ((*states)[process], 0) << read_text(messages + std::to_string(process));
  EXPECT_FALSE(contents(dir / "c/iter_0000150").empty());
}

// A fault, settings, and what the other processes say of it.
struct Named {
  std::string fault;
  std::vector<std::string> further;
  std::string words;  // a regular expression
  double within;      // seconds, with what a busy machine may add
};

// With the time-outs that nobody has set: three median steps, which are short here, or five seconds. A
// stopped process says nothing itself, and its heartbeats cease.
TEST(Hangs, TheCulpritIsNamedSoon) {
  const char* missing_rank = R"(within 5\.0 s: missing ranks 1\b)";
  const Named cases[] = {
      {"hang@1:40", {"--enable-ft-package"}, missing_rank, 8},
      // A run that ends has asked the silent process before, and does not wait for its goodbye.
      {"stop@1:40", {"--enable-ft-package"}, missing_rank, 6.5},
      {"stop@1:40",
       {"--inprocess-restart"},
       R"(restart 1: (process 1 has not been heard of for 5\.|.*within 5\.0 s: missing ranks 1\b))",
       8}};
  constexpr size_t kCases = std::size(cases);
  TempDir dirs[kCases];
  std::vector<pid_t> children[kCases];
  for (size_t i = 0; i < kCases; ++i) {
    std::vector<std::string> args = batch_of_24(
        100'000, {"--inject-fault", cases[i].fault, "--metrics", dirs[i] / "metrics", "--log-interval", "1"});
    args.insert(args.end(), cases[i].further.begin(), cases[i].further.end());
    children[i] = start_processes(3, args, dirs[i] / "messages");
  }
  const auto said = [&](size_t i) {
    std::string text;
    for (const char* file : {"messages0", "messages2"})
      if (std::filesystem::exists(dirs[i] / file)) text += read_text(dirs[i] / file);
    return text;
  };
  const auto last_step = [&](size_t i) {
    const std::string path = dirs[i] / "metrics";
    return std::filesystem::exists(path) ? std::filesystem::last_write_time(path)
                                         : std::filesystem::file_time_type::min();
  };
  using FileClock = std::filesystem::file_time_type::clock;
  // When the last step ended, and the longest that no other one came since.
  FileClock::time_point last[kCases];
  double pause[kCases] = {};
  std::optional<double> seconds[kCases];
  const auto begun = std::chrono::steady_clock::now();
  const auto missing = [&] { return std::ranges::count(seconds, std::optional<double>()); };
  while (missing() > 0 && std::chrono::steady_clock::now() - begun < 40s) {
    std::this_thread::sleep_for(10ms);
    for (size_t i = 0; i < kCases; ++i) {
      if (seconds[i]) continue;
      // Where the others go on, further steps come before their words.
      if (const auto step = last_step(i); step != FileClock::time_point::min()) {
        if (step == last[i])
          pause[i] = std::max(pause[i], std::chrono::duration<double>(FileClock::now() - step).count());
        last[i] = step;
      }
      if (std::regex_search(said(i), std::regex(cases[i].words))) seconds[i] = pause[i];
    }
  }
  for (const std::vector<pid_t>& processes : children)
    for (const pid_t child : processes) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  for (size_t i = 0; i < kCases; ++i) {
    SCOPED_TRACE(fmt::format("{} {}", cases[i].fault, cases[i].further[0]));
    ASSERT_TRUE(seconds[i]) << said(i);
    fmt::print("{} {}: {:.2f} s\n", cases[i].fault, cases[i].further[0], *seconds[i]);
    EXPECT_GT(*seconds[i], 4);
    EXPECT_LT(*seconds[i], cases[i].within);
  }
}

// Where a process has died, nobody waits long for the answers of those that are stopped or hang beside it.
TEST(Hangs, TwoFaultsAtOnceTakeLessThanASecond) {
  for (const Division& division : {kReplicas, kTensor})
    for (const char* faults : {"kill@5:7,stop@2:7", "kill@5:7,hang@2:7", "stop@2:7,throw@6:7"}) {
      SCOPED_TRACE(faults);
      std::vector<double> seconds;
      survive(
          division, 20, faults, [](const auto&) {}, seconds);
      for (const double each : seconds) {
        fmt::print("{}: {:.2f} s\n", faults, each);
        EXPECT_LE(each, 1.0);
      }
    }
}

// Ranks that a tensor-parallel group does without end when the others do, and alike.
TEST(UnequalReplicas, IdleProcessesEndWithTheOthers) {
  TempDir dir;
  ::setenv("MEGATRON_LAUNCH", "1", 1);
  const std::vector<pid_t> children =
      start_processes(4,
                      training({"-tp", "2", "--non-active-ranks", "0:1", "--attention-dropout", "0", "--save",
                                dir / "c", "--exit-duration-in-mins", "1e-9"}),
                      dir / "messages");
  ::unsetenv("MEGATRON_LAUNCH");
  const auto states = ended_within(children, 60'000);
  ASSERT_TRUE(states);
  for (size_t process = 0; process < 4; ++process)
    EXPECT_EQ(WEXITSTATUS((*states)[process]), 18) << read_text(dir / "messages" + std::to_string(process));
}

// One lost rank makes a replica smaller, of two replicas: nothing is dropped and one iteration at most is
// made again.
TEST(Restart, AReplicaShrinks) {
  for (const Division& division : {kTensor, kStages}) {
    SCOPED_TRACE(division.args[1]);
    std::vector<double> seconds;
    std::vector<Segment> segments;
    survive(
        division, 20, "kill@5:7,throw@2:12", [](const auto&) {}, seconds, &segments);
    ASSERT_EQ(segments.size(), 2U);
    EXPECT_GE(segments[0].from, 5);   // six were done
    EXPECT_GE(segments[1].from, 10);  // eleven were
    for (const Segment& segment : segments) {
      EXPECT_EQ(segment.replicas, 2);
      EXPECT_EQ(segment.lost.size(), 1U);
    }
  }
}

// A stage dies out, and with it its state, so that the run begins anew. What is lost to the next fault counts
// from there, not from where the run had been before.
TEST(Restart, WhatIsComputedAgainIsCountedOnce) {
  std::vector<double> seconds;
  std::vector<Segment> told;
  survive(
      kStages, 24, "kill@6:3,kill@7:5,kill@1:16,throw@2:10", [](const auto&) {}, seconds, &told);
  ASSERT_EQ(told.size(), 2U);  // those before iteration 16 do not count any more
  EXPECT_EQ(told[0].from, 0);
  EXPECT_GE(told[1].from, 8);  // nine were done
}

// Each process has a part of the optimizer's state that no other trains on. Copies of it in the memory of
// others outlive its death; those of two neighbours at once do not.
TEST(Restart, CopiesInOthersMemoryReplaceWhatIsLost) {
  Division sharded{1, {"--use-distributed-optimizer"}};
  TempDir disk;
  sharded.replicated = {"--non-persistent-ckpt-type",
                        "local",
                        "--non-persistent-save-interval",
                        "1000",
                        "--non-persistent-local-ckpt-dir",
                        disk.path(),
                        "--replication"};
  std::vector<double> seconds;
  std::vector<Segment> told;
  survive(
      sharded, 30, "kill@5:8,kill@2:16", [](const auto&) {}, seconds, &told);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_GE(told[0].from, 6);  // what a process sent last may go with it
  EXPECT_GE(told[1].from, 14);
  told.clear();
  Division fsdp{1, {"--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params"}};
  fsdp.replicated = sharded.replicated;
  survive(
      fsdp, 12, "kill@5:8", [](const auto&) {}, seconds, &told);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_GE(told[0].from, 6);
  told.clear();
  survive(
      sharded, 40, "slow@0:1=0.02",
      [](const std::vector<pid_t>& children) {
        std::this_thread::sleep_for(300ms);
        for (const size_t process : {4, 5}) ::kill(children[process], SIGKILL);
      },
      seconds, &told);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].from, 0);
}

// With a process in reserve nothing shrinks: it takes the dead one's place, and what that held. The first
// rank's place comes with the lock of --save, which a process that was stopped still has.
TEST(Restart, AReserveStepsIn) {
  std::vector<std::string> division = kTensor.args;
  division.insert(division.end(), {"-tp", "2"});
  TempDir other;
  std::vector<std::string> undisturbed = batch_of_24(20, {"--ranks", "4", "--save", other / "c"});
  undisturbed.insert(undisturbed.end(), division.begin(), division.end());
  EXPECT_EQ(run_command(undisturbed).code, 0);
  for (const char* fault : {"kill@2:7", "stop@0:7"}) {
    SCOPED_TRACE(fault);
    TempDir dir;
    const std::string messages = dir / "messages";
    std::vector<std::string> args =
        batch_of_24(20, {"--save", dir / "c", "--inprocess-restart", "--inprocess-active-world-size", "4",
                         "--inprocess-heartbeat-interval", "0.1", "--inprocess-heartbeat-timeout", "1",
                         "--inject-fault", fault});
    args.insert(args.end(), division.begin(), division.end());
    std::vector<int> codes;
    ASSERT_TRUE(all_end(start_processes(5, args, messages), codes)) << "a process waits for ever";
    std::string said;
    for (int process = 0; process < 5; ++process) said += read_text(messages + std::to_string(process));
    // Whoever has not come to the end of iteration 6 when the fault is noticed takes the others back to 5.
    const std::regex joined(
        R"(3 of 4 processes go on, 1 of the reserve joins \(tp 2 pp 1 cp 1 dp 2\), from iteration [56] in memory)");
    EXPECT_TRUE(std::regex_search(said, joined)) << said;
    for (const int code : codes) EXPECT_TRUE(code == 0 || code == -1 || code == 137) << code << "\n" << said;
    EXPECT_EQ(contents(dir / "c/iter_0000020"), contents(other / "c/iter_0000020"));
  }
}

// A process that was lost is started again: its replica shrinks and grows back at a boundary, where nothing
// is computed again. What comes back dies once more.
TEST(Restart, ALostProcessComesBack) {
  constexpr int64_t kLong = 100;
  TempDir dir;
  const std::string messages = dir / "messages";
  std::vector<std::string> args =
      batch_of_24(kLong, {"--save", dir / "c", "--inprocess-restart", "--inprocess-heartbeat-interval", "0.2",
                          "--inprocess-heartbeat-timeout", "5", "--inject-fault", "kill@5:7,slow@0:1=0.02"});
  args.insert(args.end(), kTensor.args.begin(), kTensor.args.end());
  std::vector<pid_t> children = start_processes(kProcesses, args, messages);
  EXPECT_TRUE(comes_to_say(messages + "0", "restart 1: ")) << read_text(messages + "0");
  children.push_back(start_process(5, kProcesses, args, messages + "8", true));
  EXPECT_TRUE(comes_to_say(messages + "0", "restart 2: ")) << read_text(messages + "0");
  ::kill(children.back(), SIGKILL);
  EXPECT_TRUE(comes_to_say(messages + "0", "restart 3: ")) << read_text(messages + "0");
  children.push_back(start_process(5, kProcesses, args, messages + "9", true));
  std::vector<int> codes;
  ASSERT_TRUE(all_end(children, codes)) << "a process waits for ever";
  const std::string said = read_text(messages + "0");
  for (size_t i = 0; i < codes.size(); ++i)
    EXPECT_EQ(codes[i], i == 5 || i == 8 ? 137 : 0) << i << "\n" << read_text(messages + std::to_string(i));
  const std::regex back(
      R"(restart [24]: (?:rank \d+ stopped: )?a process has come back; all 7 processes go on, 1 is back \(tp 4 pp 1 cp 1 dp 2\), from iteration \d+ in memory, 0 computed again)");
  EXPECT_EQ(std::distance(std::sregex_iterator(said.begin(), said.end(), back), {}), 2) << said;
  const Restarts restarts = restarts_of(messages, kProcesses);
  std::set<std::string> files;
  EXPECT_EQ(contents(fmt::format("{}/iter_{:07}", dir / "c", kLong)),
            by_hand(kTensor, kLong, restarts.segments, files));
}

// What the restarts of a soak took, and what would be left of the time with one in twenty minutes.
void tell_times(std::vector<double> seconds) {
  if (seconds.empty()) return;
  std::sort(seconds.begin(), seconds.end());
  double sum = 0;
  for (const double each : seconds) sum += each;
  const auto at = [&](double share) {
    return seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))];
  };
  const double mean = sum / static_cast<double>(seconds.size());
  fmt::print(
      "{} restarts: median {:.2f} s, 90 % within {:.2f} s, 99 % within {:.2f} s, longest {:.2f} s; "
      "one in 20 minutes leaves {:.3f} % of the time\n",
      seconds.size(), at(0.5), at(0.9), at(0.99), seconds.back(), 100 * (1 - mean / 1200));
}

TEST(Restart, ProcessesSurviveFaults) {
  const char* given = std::getenv("MEGATRON_FAULTS");
  const int wanted = given ? std::atoi(given) : 10;
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::vector<double> seconds;
  const Division* const divisions[] = {&kReplicas, &kTensor, &kStages};
  int round = 0, faults = 0;
  for (; faults < wanted && !::testing::Test::HasFailure(); ++round) {
    constexpr int kPlanted = 7, kAtRandom = 3;
    survive(
        *divisions[round % 3], kIterations, random_faults(kPlanted, random), [](const auto&) {}, seconds);
    // Each iteration is slow enough for moments within it to be hit.
    survive(
        *divisions[(round + 1) % 3], 100, "slow@0:1=0.02,slow@1:1=0.02",
        [&](const std::vector<pid_t>& children) { kill_at_random(kAtRandom, random, children); }, seconds);
    faults += kPlanted + kAtRandom;
    fmt::print("{} of {} faults; ", faults, wanted);
    tell_times(seconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace megatron::testing
