// Faults of runs that go on within their threads and processes. What they end with is compared in
// tests/fault; here the ways through a restart are gone, under the thread sanitizer too, whose findings are
// exit codes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/config/sources/string_list.h"
#include "megatron/training/run/run.h"
#include "support/capture.h"
#include "support/held_port.h"
#include "support/temp_dir.h"

namespace megatron::testing {
namespace {

using Arguments = std::vector<std::string>;

Arguments training(const Arguments& further) {
  Arguments args;
  for_each_word(
      "--num-layers 2 --hidden-size 16 --num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 "
      "model.vocab_size=32 --mock-data --micro-batch-size 1 --global-batch-size 8 --lr 1e-2 --device cpu "
      "--attention-dropout 0 --inprocess-restart --inprocess-soft-timeout 1.5 "
      "--inprocess-heartbeat-interval 0.2 --inprocess-heartbeat-timeout 2 --inprocess-barrier-timeout 10",
      [&](std::string_view word) { args.emplace_back(word); });
  args.insert(args.end(), further.begin(), further.end());
  return args;
}

int train(const Arguments& args, std::FILE* err) try {
  RunSpec spec = run_spec(args);
  spec.log = Log(LogLevel::info, err);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"), std::fclose);
  spec.out = nowhere.get();
  return run(spec).exit_code();
} catch (const Error& error) {
  fmt::print(err, "{}\n", error.what());
  return error.exit_code();
}

// The exit codes of the processes of a run, 128 + a signal; -1: it was still there after four minutes, or
// stopped, and has been killed. What all have said goes to `said`.
std::vector<int> train_on_processes(int processes, const Arguments& args, std::string& said) {
  TempDir dir;
  const HeldPort port;
  std::vector<pid_t> children;
  for (int process = 0; process < processes; ++process) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (const auto& [name, value] :
         {std::pair{"RANK", process}, {"LOCAL_RANK", process}, {"WORLD_SIZE", processes}})
      ::setenv(name, std::to_string(value).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(port.number()).c_str(), 1);
    // The sanitizer speaks to the standard error.
    std::FILE* err = std::freopen((dir / "messages" + std::to_string(process)).c_str(), "w", stderr);
    std::exit(train(args, err));
  }
  std::vector<int> codes(children.size(), -1);
  std::vector<bool> running(children.size(), true), stopped(children.size(), false);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  const auto waits = [&] {
    for (size_t i = 0; i < children.size(); ++i)
      if (running[i] && !stopped[i]) return true;
    return false;
  };
  while (waits() && std::chrono::steady_clock::now() < deadline) {
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      if (!running[i] || ::waitpid(children[i], &status, WNOHANG | WUNTRACED) != children[i]) continue;
      stopped[i] = WIFSTOPPED(status);
      running[i] = stopped[i];
      if (!running[i]) codes[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (size_t i = 0; i < children.size(); ++i) {
    if (running[i]) {
      ::kill(children[i], SIGKILL);
      ::waitpid(children[i], nullptr, 0);
    }
    said += read_text(dir / "messages" + std::to_string(i));
  }
  return codes;
}

// Fork comes before threads: these are first.
TEST(RestartPaths, ProcessesShrinkAndGoOn) {
  std::string said;
  const std::vector<int> codes = train_on_processes(
      4, training({"-tp", "2", "--train-iters", "16", "--inject-fault", "throw@2:4,kill@3:8,hang@0:12"}),
      said);
  EXPECT_EQ(codes, (std::vector<int>{0, 0, 0, 137})) << said;
  EXPECT_NE(said.find("without slots 1.0.0:1"), std::string::npos) << said;
}

TEST(RestartPaths, AReserveStepsInForAStoppedProcess) {
  std::string said;
  const std::vector<int> codes =
      train_on_processes(4,
                         training({"--train-iters", "12", "--inprocess-active-world-size", "2",
                                   "--inject-fault", "stop@0:4,throw@1:8", "--use-distributed-optimizer"}),
                         said);
  EXPECT_EQ(codes, (std::vector<int>{-1, 0, 0, 0})) << said;
  EXPECT_NE(said.find("1 of the reserve joins"), std::string::npos) << said;
}

TEST(RestartPaths, ThreadsGoOn) {
  for (const Arguments& layout :
       {Arguments{"--ranks", "4", "-tp", "2", "-pp", "2", "--inject-fault", "throw@1:4,hang@0:8"},
        Arguments{"--ranks", "2", "--use-distributed-optimizer"}}) {
    TempDir dir;
    Capture err;
    Arguments args = training({"--train-iters", "10", "--save", dir / "c", "--save-interval", "3",
                               "--async-save", "--inject-fault", "throw@1:4"});
    args.insert(args.end(), layout.begin(), layout.end());
    EXPECT_EQ(train(args, err.file()), 0) << err.text();
    EXPECT_NE(err.text().find("a planted fault of rank 1"), std::string::npos) << err.text();
  }
}

}  // namespace
}  // namespace megatron::testing
