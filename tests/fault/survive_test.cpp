// Processes that are killed, stopped and disturbed: those that are left go on and end with the weights of a
// run that was restarted by hand in the same layouts.
#include <random>
#include <regex>
#include <set>

#include "fault/survival.h"

namespace megatron::testing {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kIterations = 60;  // with planted faults

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
