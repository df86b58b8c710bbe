#include "megatron/resilience/remote_hosts.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/comm/patience.h"
#include "megatron/resilience/process_launcher.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::TempDir;

std::string written(const TempDir& dir, const std::string& text) {
  std::ofstream(dir / "hosts") << text;
  return dir / "hosts";
}

TEST(RemoteHosts, AreOneALine) {
  const TempDir dir;
  const std::vector<RemoteHost> hosts =
      read_hosts(written(dir, "# nodes\nnode1 slots=4 # four GPUs\n\n  root@10.0.0.2\n"), 2);
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].name, "node1");
  EXPECT_EQ(hosts[0].slots, 4);
  EXPECT_EQ(hosts[1].name, "root@10.0.0.2");
  EXPECT_EQ(hosts[1].slots, 2);
  EXPECT_EQ(address_of(hosts[1]), "10.0.0.2");
  const RemotePlace place = place_of(hosts, 5);
  EXPECT_EQ(place.host, 1u);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 2);
}

TEST(RemoteHosts, TellsTheLineOfAMistake) {
  const TempDir dir;
  const auto refusal = [&](const std::string& text) {
    try {
      read_hosts(written(dir, text), 1);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal("a\nb slots=0\n").find("hosts:2: 'slots=0'"), std::string::npos);
  EXPECT_NE(refusal("a slots=2x\n").find("hosts:1: 'slots=2x'"), std::string::npos);
  EXPECT_NE(refusal("a 4\n").find("'4' is not understood"), std::string::npos);
  EXPECT_NE(refusal("a\na slots=2\n").find("hosts:2: a stands twice"), std::string::npos);
  EXPECT_NE(refusal("-oProxyCommand=x\n").find("is no machine"), std::string::npos);
  EXPECT_NE(refusal("# nobody\n").find("names no machine"), std::string::npos);
  EXPECT_THROW(read_hosts(dir / "absent", 1), ConfigError);
}

// A program in the place of ssh: runs the line that it is to carry on this machine, in a session that its
// own end does not reach. tests/ssh has the real one.
class LineRunner {
 public:
  LineRunner() {
    std::ofstream(path()) << "#!/bin/sh\nfor line; do :; done\nexec setsid --wait sh -c \"$line\"\n";
    std::filesystem::permissions(path(), std::filesystem::perms::owner_all);
  }
  std::string path() const { return dir_ / "ssh"; }

 private:
  TempDir dir_;
};

struct Launched {
  int code = -1;
  std::string out, err;
};

Launched launched(const TempDir& dir, const std::string& shell, int restarts = 0, double grace = 60) {
  const LineRunner runner;
  LaunchJob job{.processes = 3, .command = {"/bin/sh", "-c", shell}, .max_restarts = restarts};
  job.backoff = 0;
  job.grace = grace;
  job.master_port = 29500;
  job.master_address = "a";
  job.hosts = {{"a", 1}, {"b", 2}};
  job.ssh = {runner.path()};
  std::FILE* out = std::fopen((dir / "out").c_str(), "w");
  std::FILE* err = std::fopen((dir / "err").c_str(), "w");
  Launched result;
  result.code = launch_job(job, Log(LogLevel::info, err), out);
  std::fclose(out);
  std::fclose(err);
  const auto text_of = [](const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  result.out = text_of(dir / "out");
  result.err = text_of(dir / "err");
  return result;
}

TEST(RemoteLaunch, RanksKnowTheirMachine) {
  const TempDir dir;
  const Launched all = launched(dir,
                                "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $GROUP_RANK, "
                                "$MASTER_ADDR; echo it\\'s \"$0\"; pwd");
  EXPECT_EQ(all.code, 0) << all.err;
  for (const char* line : {"[0] 0 of 3, 0 of 1 on 0, a\n", "[1] 1 of 3, 0 of 2 on 1, a\n",
                           "[2] 2 of 3, 1 of 2 on 1, a\n", "[2] it's /bin/sh\n"})
    EXPECT_NE(all.out.find(line), std::string::npos) << line << all.out;
  EXPECT_NE(all.out.find("[0] " + std::filesystem::current_path().string()), std::string::npos) << all.out;
}

// Codes and signals come back as those of processes of this machine do; 255 is a lost connection.
TEST(RemoteLaunch, TellsHowProcessesEnded) {
  const TempDir dir;
  const Launched refused = launched(dir, "exit 1", 3);
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("it would not help"), std::string::npos) << refused.err;
  const Launched killed = launched(dir, "[ $RANK = 1 ] && kill -KILL $$; exit 19");
  EXPECT_EQ(killed.code, 19);
  EXPECT_NE(killed.err.find("rank 1: killed by SIGKILL"), std::string::npos) << killed.err;
  const Launched cut = launched(dir, "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; exit 255", 1);
  EXPECT_EQ(cut.code, 0);
  EXPECT_NE(cut.err.find("lost a peer (exit code 19)"), std::string::npos) << cut.err;
}

// The command, and what it started, get a Ctrl-C.
TEST(RemoteLaunch, PassesSignalsOn) {
  const TempDir dir;
  std::thread sender([&] {
    Patience minute(std::chrono::minutes(1));
    const auto all_there = [&] {
      for (const char* rank : {"0", "1", "2"})
        if (!std::filesystem::exists(dir / (std::string("ready") + rank))) return false;
      return true;
    };
    while (!all_there() && !minute.over()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::raise(SIGTERM);
  });
  const Launched ended = launched(
      dir,
      "trap 'echo saved; exit 18' TERM; touch " + (dir / "ready") + "$RANK; while :; do sleep 0.05; done", 3);
  sender.join();
  EXPECT_EQ(ended.code, 18) << ended.err;
  for (const char* line : {"[0] saved\n", "[1] saved\n", "[2] saved\n"})
    EXPECT_NE(ended.out.find(line), std::string::npos) << ended.out;
  EXPECT_NE(ended.err.find("a signal came"), std::string::npos) << ended.err;
}

// One rank ends the run. The others do not end, and only their connections can be killed from here.
TEST(RemoteLaunch, LeavesNobodyBehind) {
  const TempDir dir;
  const std::string pid = dir / "pid";
  const Launched ended = launched(dir,
                                  "if [ $RANK = 0 ]; then until [ -e " + pid + "1 ] && [ -e " + pid +
                                      "2 ]; do sleep 0.05; done; exit 3; fi; echo $$ >" + (dir / "new") +
                                      "$RANK; mv " + (dir / "new") + "$RANK " + pid + "$RANK; sleep 600",
                                  0, 1.0);
  EXPECT_EQ(ended.code, 3) << ended.err;
  Patience minute(std::chrono::minutes(1));
  for (const char* rank : {"1", "2"}) {
    pid_t process = 0;
    std::ifstream(pid + rank) >> process;
    ASSERT_GT(process, 0);
    while (::kill(process, 0) == 0 && !minute.over())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_NE(::kill(process, 0), 0) << "rank " << rank << " is left";
  }
}

}  // namespace
}  // namespace megatron
