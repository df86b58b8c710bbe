// Runs that are killed at random moments and started again, until they end: every start finds a sound
// checkpoint, and the weights at the end are those of a run that nobody disturbed.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "fault/processes.h"
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
    const std::vector<pid_t> children = start_processes(run.processes, args, messages);
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
  const std::vector<pid_t> children = start_processes(run.processes, quiet, messages);
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
