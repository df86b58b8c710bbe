// Runs that are killed at random moments and started again, until they end: every start finds a sound
// checkpoint, and the weights at the end are those of a run that nobody disturbed.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "fault/training.h"
#include "megatron/checkpoint/directory.h"

namespace megatron::testing {
namespace {

struct KilledRun {
  const char* name;
  std::vector<std::string> layout;
  int processes = 1;
};

const KilledRun kRuns[] = {
    {"one rank", {"--async-save"}},
    {"one rank, synchronously", {}},
    {"tensor 2, pipeline 2", {"--async-save", "--ranks", "4", "-tp", "2", "-pp", "2"}},
    {"ZeRO-3 on 4 ranks",
     {"--async-save", "--ranks", "4", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
      "optim_grads_params", "--use-distributed-optimizer"}},
    {"two processes", {"--async-save", "-tp", "2", "--distributed-timeout-minutes", "0.1"}, 2},
};

int kills_wanted() {
  const char* given = std::getenv("MEGATRON_KILLS");
  return given ? std::atoi(given) : 20;
}

// A free port of this machine, for processes that meet there.
std::string free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  require(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0, "no port is free");
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(listener);
  return std::to_string(ntohs(address.sin_port));
}

// The processes of one start of a run.
std::vector<pid_t> start(const KilledRun& run, const std::vector<std::string>& args,
                         const std::string& messages) {
  std::vector<pid_t> children;
  const std::string port = run.processes > 1 ? free_port() : "";
  for (int process = 0; process < run.processes; ++process) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    if (run.processes > 1) {
      ::setenv("RANK", std::to_string(process).c_str(), 1);
      ::setenv("LOCAL_RANK", std::to_string(process).c_str(), 1);
      ::setenv("WORLD_SIZE", std::to_string(run.processes).c_str(), 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", port.c_str(), 1);
    }
    std::FILE* err = std::fopen((messages + std::to_string(process)).c_str(), "w");
    std::FILE* out = std::fopen("/dev/null", "w");
    const int code = run_cli(commands(), args, out, err);
    std::fflush(err);
    ::_exit(code);
  }
  return children;
}

// The exit status of each process, where all end by themselves within the time; the others are killed.
std::optional<std::vector<int>> ended_within(const std::vector<pid_t>& children, int milliseconds) {
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

// Until there is a checkpoint after iteration `seen`, or for ten seconds.
void wait_for_checkpoint(const std::string& folder, int64_t seen) {
  for (int waited = 0; waited < 10'000; waited += 5) {
    const std::optional<CheckpointPlace> latest = latest_checkpoint(folder);
    if (latest && latest->iteration > seen) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

struct Kills {
  int made = 0, further = 0;  // further: those after checkpoints that the start before did not have
};

// Starts the run until it ends; as many starts as `wanted` are killed at random moments.
Kills kill_and_restart(const KilledRun& run, int wanted, std::mt19937& random) {
  TempDir dir;
  const std::string folder = dir / "c", messages = dir / "messages";
  // A save after every iteration, old ones deleted: most moments are within a save.
  std::vector<std::string> args = training({"--save", folder, "--load", folder, "--save-interval", "1",
                                            "--most-recent-k", "2", "--train-iters", "60"});
  args.insert(args.end(), run.layout.begin(), run.layout.end());
  int64_t seen = 0;
  Kills kills;
  for (bool ended = false; !ended;) {
    const std::vector<pid_t> children = start(run, args, messages);
    const bool to_kill = kills.made < wanted;
    if (to_kill) {
      if (random() % 4 != 0) wait_for_checkpoint(folder, seen);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
      ::kill(children[random() % children.size()], SIGKILL);
    }
    // The others notice by themselves.
    const std::optional<std::vector<int>> states = ended_within(children, 60'000);
    EXPECT_TRUE(states) << "a process waits for one that was killed";
    if (!states) return kills;
    const bool killed = std::ranges::any_of(*states, [](int status) { return WIFSIGNALED(status); });
    if (killed) ++kills.made;
    ended = std::ranges::all_of(*states, [](int status) { return status == 0; });
    if (!killed && !ended) {
      ADD_FAILURE() << "not killed, but: " << read_text(messages + "0");
      return kills;
    }
    // Whatever the moment was, what is there is sound and never older than before.
    const std::optional<CheckpointPlace> latest = latest_checkpoint(folder);
    if (!latest) continue;
    EXPECT_GE(latest->iteration, seen);
    if (latest->iteration > seen && killed) ++kills.further;
    seen = latest->iteration;
    EXPECT_TRUE(verify_checkpoint(latest->path).empty()) << verify_checkpoint(latest->path).text();
  }
  TempDir whole;
  std::vector<std::string> quiet = training({"--save", whole / "c", "--train-iters", "60"});
  quiet.insert(quiet.end(), run.layout.begin(), run.layout.end());
  const std::vector<pid_t> children = start(run, quiet, messages);
  EXPECT_EQ(ended_within(children, 60'000), std::vector<int>(children.size(), 0));
  EXPECT_EQ(contents(folder + "/iter_0000060"), contents(whole / "c/iter_0000060"));
  return kills;
}

TEST(Kill, EveryRestartGoesOnSoundly) {
  const int wanted = kills_wanted(),
            each = (wanted + static_cast<int>(std::size(kRuns)) - 1) / static_cast<int>(std::size(kRuns));
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Kills all;
  for (const KilledRun& run : kRuns) {
    SCOPED_TRACE(run.name);
    // A run ends after some kills: another one takes the rest.
    for (int left = each; left > 0 && !HasFailure();) {
      const Kills kills = kill_and_restart(run, std::min(left, 10), random);
      left -= kills.made;
      all.made += kills.made;
      all.further += kills.further;
    }
  }
  EXPECT_GT(all.further, 0) << "every kill came before the first checkpoint";
  std::printf("%d kills, %d of them after further checkpoints\n", all.made, all.further);
}

}  // namespace
}  // namespace megatron::testing
