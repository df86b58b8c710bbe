#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/comm/patience.h"
#include "megatron/resilience/process_launcher.h"
#include "megatron/resilience/shell_words.h"
#include "megatron/resilience/slurm_script.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::TempDir;

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Launched {
  int code = -1;
  std::string out, err;
};

Launched launched(const TempDir& dir, int processes, const std::string& shell, int restarts = 3,
                  std::vector<int> shown = {}, bool rejoin = false, int nodes = 1, int node = 0) {
  LaunchJob job{.processes = processes, .command = {"/bin/sh", "-c", shell}, .max_restarts = restarts};
  job.backoff = 0;
  job.grace = 60;
  job.log_folder = dir / "logs";
  job.shown = std::move(shown);
  job.rejoin = rejoin;
  job.nodes = nodes;
  job.node = node;
  std::FILE* out = std::fopen((dir / "out").c_str(), "w");
  std::FILE* err = std::fopen((dir / "err").c_str(), "w");
  Launched result;
  result.code = launch_job(job, Log(LogLevel::info, err), out);
  std::fclose(out);
  std::fclose(err);
  result.out = text_of(dir / "out");
  result.err = text_of(dir / "err");
  return result;
}

TEST(Judge, TellsRetryFromGiveUp) {
  using V = JobVerdict;
  EXPECT_EQ(judge({{0}, {0}}), V::done);
  EXPECT_EQ(judge({{0}, {0, SIGKILL}}), V::done);  // the others went on without it
  EXPECT_EQ(judge({{0}, {19}}), V::done);
  EXPECT_EQ(judge({{19}, {0, SIGKILL}}), V::retry);
  EXPECT_EQ(judge({{18}, {18}}), V::retry);
  EXPECT_EQ(judge({{16}, {16}}), V::retry);
  for (const int code : {1, 2, 3, 17, 42}) {
    EXPECT_EQ(judge({{19}, {code}}), V::give_up) << code;
    EXPECT_EQ(exit_code_of({{19}, {code}}), code);
  }
  EXPECT_EQ(exit_code_of({{0}, {0, SIGKILL}}), 0);
  EXPECT_EQ(exit_code_of({{18}, {19}}), 18);
  EXPECT_EQ(exit_code_of({{0, SIGSEGV}}), 19);
  EXPECT_EQ(tell_ends({{19}, {0, SIGKILL}, {19}}),
            "rank 1: killed by SIGKILL; ranks 0 2: lost a peer (exit code 19)");
}

TEST(LaunchJob, SetsTheVariablesOfTorchrun) {
  const TempDir dir;
  const Launched all = launched(dir, 3, "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR; echo oops >&2");
  EXPECT_EQ(all.code, 0);
  for (const char* line : {"[0] 0/3 0 127.0.0.1\n", "[1] 1/3 1 127.0.0.1\n", "[2] 2/3 2 127.0.0.1\n"})
    EXPECT_NE(all.out.find(line), std::string::npos) << all.out;
  EXPECT_NE(all.err.find("[1] oops"), std::string::npos) << all.err;
  EXPECT_EQ(text_of(dir / "logs/start_0_rank_2.log").substr(0, 4), "2/3 ");
  EXPECT_EQ(launched(dir, 3, "echo x$RANK", 3, {1}).out, "[1] x1\n");
}

// On each machine files, lines and messages name the ranks that the processes know.
TEST(LaunchJob, TellsRanksOfTheJob) {
  const TempDir dir;
  const Launched all = launched(dir, 2, "echo x$RANK; exit $((RANK - 2))", 0, {3}, false, 2, 1);
  EXPECT_EQ(all.code, 1);
  EXPECT_EQ(all.out, "[3] x3\n");
  EXPECT_EQ(text_of(dir / "logs/start_0_rank_2.log"), "x2\n");
  EXPECT_EQ(text_of(dir / "logs/start_0_rank_3.log"), "x3\n");
  EXPECT_NE(all.err.find("rank 2: done; rank 3: refused its settings (exit code 1)"), std::string::npos)
      << all.err;
}

TEST(LaunchJob, StartsAgainWhereThatHelps) {
  const TempDir dir;
  const Launched retried = launched(
      dir, 2,
      "echo ' iteration       12/      20 | x'; echo saved /c/iter_0000010; "
      "if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then if [ $RANK = 1 ]; then kill -9 $$; fi; exit 19; fi");
  EXPECT_EQ(retried.code, 0) << retried.err;
  EXPECT_NE(
      retried.err.find("launch: restart 2 of 3: rank 1: killed by SIGKILL; rank 0: lost a peer (exit code "
                       "19); iteration 12 was logged last, saved last: /c/iter_0000010;"),
      std::string::npos)
      << retried.err;
  const Launched refused = launched(dir, 2, "exit 1");
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("not started again: it would not help"), std::string::npos) << refused.err;
  const Launched tired = launched(dir, 1, "exit 18", 2);
  EXPECT_EQ(tired.code, 18);
  EXPECT_NE(tired.err.find("2 restarts were made"), std::string::npos) << tired.err;
}

// A process that is stopped does not hold up the end of the others.
TEST(LaunchJob, EndsProcessesThatDoNot) {
  const TempDir dir;
  EXPECT_EQ(launched(dir, 2, "if [ $RANK = 1 ]; then kill -STOP $$; fi").code, 0);
}

// A lost process is started again alone and told so; the folder where all meet is gone at the end.
TEST(LaunchJob, GivesARunNewProcesses) {
  const TempDir dir;
  const std::string shell = "echo $MEGATRON_STORE > " + dir / "store" +
                            "; test -d $MEGATRON_STORE || exit 3; "
                            "if [ $RANK = 1 ]; then if [ -z $MEGATRON_REJOIN ]; then kill -9 $$; fi; touch " +
                            dir / "back" + "; exit 0; fi; for i in $(seq 1000); do if [ -e " + dir / "back" +
                            " ]; then exit 0; fi; sleep 0.02; done; exit 3";
  const Launched all = launched(dir, 2, shell, 1, {}, true);
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_NE(all.err.find("rank 1: killed by SIGKILL; started again to join the others (1 of 1)"),
            std::string::npos)
      << all.err;
  std::string store = text_of(dir / "store");
  store.pop_back();
  EXPECT_FALSE(store.empty());
  EXPECT_FALSE(std::filesystem::exists(store));
}

// No process is started where its lines could not be kept.
TEST(LaunchJob, RefusesAFolderOfLogsThatCannotBeWritten) {
  const TempDir dir;
  std::ofstream(dir / "logs") << "a file";
  EXPECT_THROW(launched(dir, 2, "touch " + dir / "started"), ConfigError);
  EXPECT_FALSE(std::filesystem::exists(dir / "started"));
}

// The first Ctrl-C comes to each process once, the second ends those that go on nevertheless. The user does
// not wait for words of processes that somebody has stopped, nor once the launcher has ended.
TEST(LaunchJob, PassesCtrlCOn) {
  const TempDir dir;
  const auto begin = std::chrono::steady_clock::now();
  // The launcher has its own handler while it runs, unless the signal is ignored.
  const auto handler = std::signal(SIGINT, [](int) {});
  std::atomic<bool> over = false;
  std::thread user([&] {
    const auto press_after = [&](const std::string& name) {
      const auto there = [&](const char* rank) { return std::filesystem::exists(dir / name + rank); };
      for (Patience patience(std::chrono::seconds(20)); !over && !(there("0") && there("1"));) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (patience.over()) break;
      }
      if (!over) ::kill(::getpid(), SIGINT);
    };
    press_after("ready");
    press_after("int");
  });
  const std::string shell = "trap 'echo once >> " + dir / "int" + "$RANK' INT; touch " + dir / "ready" +
                            "$RANK; while true; do sleep 0.05; done";
  const Launched ended = launched(dir, 2, shell);
  over = true;
  user.join();
  std::signal(SIGINT, handler);
  EXPECT_EQ(ended.code, 19) << ended.err;
  EXPECT_NE(ended.err.find("ranks 0 1: killed by SIGKILL"), std::string::npos) << ended.err;
  EXPECT_EQ(text_of(dir / "int0"), "once\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            std::chrono::seconds(50));  // the grace is not waited for
}

TEST(SlurmScript, QuotesAndQueuesAgain) {
  EXPECT_EQ(shell_quoted("a b'c"), "'a b'\\''c'");
  EXPECT_EQ(shell_quoted("--lr=1e-3"), "--lr=1e-3");
  SlurmJob job;
  job.nodes = 2;
  job.processes_per_node = 8;
  job.command = {"megatron", "pretrain", "--data-path", "my data"};
  const TempDir dir;
  job.log_folder = dir.path();
  const std::string script = slurm_script(job);
  for (const char* line : {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=8\n", "#SBATCH --requeue\n",
                           " task megatron pretrain --data-path 'my data'\n",
                           "scontrol requeue \"$SLURM_JOB_ID\"", "#SBATCH --signal=TERM@120\n"})
    EXPECT_NE(script.find(line), std::string::npos) << line << "\n" << script;
  std::ofstream(dir / "s") << script;
  EXPECT_EQ(std::system(("bash -n " + dir / "s").c_str()), 0);
  // What the tasks of a step end with, what the script makes of it, and whether the job is queued again.
  struct Case {
    std::vector<int> tasks;
    int code;
    bool again;
  };
  const Case cases[] = {{{0, 0}, 0, false},       {{0, 137}, 0, false},   {{19, 0, 137}, 0, false},
                        {{3, 19, 19}, 3, false},  {{17, 19}, 17, false},  {{0, 1}, 1, false},
                        {{18, 18}, 18, true},     {{16, 19}, 16, true},   {{0, 18}, 18, true},
                        {{19, 137}, 19, true},    {{19, 19}, 19, true},   {{137, 137}, 19, true},
                        {{126, 126}, 126, false}, {{143, 143}, 19, true}, {{193, 0}, 193, false}};
  for (const Case& each : cases) {
    std::string step;
    for (size_t i = 0; i < each.tasks.size(); ++i)
      step += fmt::format("echo {} >\"$MEGATRON_CODES/{}\"; ", each.tasks[i], i);
    const std::string steps = fmt::format(
        "SLURM_NTASKS={} bash -c 'srun() {{ {}return {}; }}; scontrol() {{ touch {}; }}; . {}' > {}",
        each.tasks.size(), step, *std::ranges::max_element(each.tasks), dir / "queued", dir / "s",
        dir / "said");
    EXPECT_EQ(WEXITSTATUS(std::system(steps.c_str())), each.code) << step;
    EXPECT_EQ(std::filesystem::remove(dir / "queued"), each.again) << step;
  }
  // No task has left a code: the step could not begin, or all nodes are gone.
  for (const int code : {1, 126, 127, 193, 19, 137}) {
    const std::string steps =
        fmt::format("bash -c 'srun() {{ return {}; }}; scontrol() {{ touch {}; }}; . {}' > {}", code,
                    dir / "queued", dir / "s", dir / "said");
    const bool again = code == 19 || code == 137;
    EXPECT_EQ(WEXITSTATUS(std::system(steps.c_str())), again ? 19 : code);
    EXPECT_EQ(std::filesystem::remove(dir / "queued"), again) << code;
  }
}

}  // namespace
}  // namespace megatron
