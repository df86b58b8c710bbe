// What a process knows of others: where they are, whether they run, and how long it waits for them.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "megatron/comm/launch.h"
#include "megatron/comm/patience.h"
#include "megatron/comm/processes/peer_address.h"
#include "support/temp_dir.h"
#include "unit/comm/other_process.h"

namespace megatron {
namespace {

using namespace std::chrono_literals;
using testing::OtherProcess;
using testing::TempDir;

TEST(Patience, DoesNotPassWhileNobodyRuns) {
  Patience patience(300ms);
  std::this_thread::sleep_for(1s);  // as a machine that is paused
  EXPECT_FALSE(patience.over());
  const auto begin = std::chrono::steady_clock::now();
  while (!patience.over()) std::this_thread::sleep_until(patience.next());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
}

TEST(PeerAddress, IsTold) {
  const PeerAddress own{"some.host", 4000, NearbyMark().name()}, same = PeerAddress::from(own.text());
  EXPECT_EQ(same.text(), own.text());
  EXPECT_EQ(same.host, "some.host");
  EXPECT_EQ(same.port, 4000);
  EXPECT_EQ(same.mark, own.mark);
}

// Whatever machines are called: only the mark of a process of this network stack is found.
TEST(NearbyMark, IsFoundByLoopbackAlone) {
  std::string gone;
  {
    const NearbyMark own, other;
    EXPECT_NE(own.name(), other.name());
    EXPECT_TRUE(look_for(own.name()).network);
    EXPECT_EQ(look_for(own.name()).pid, shows_own_pids() ? ::getpid() : 0);
    const OtherProcess elsewhere("PeerToStop.DISABLED_LooksFromAnotherNetwork", {"MARK=" + own.name()});
    siginfo_t end{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(elsewhere.pid()), &end, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(end.si_status, 0);
    gone = own.name();
  }
  EXPECT_FALSE(look_for(gone).network);
  EXPECT_EQ(look_for(gone).pid, 0);
  EXPECT_FALSE(look_for("-").network);
}

TEST(PeerToStop, DISABLED_LooksFromAnotherNetwork) {
  const std::string mark = std::getenv("MARK");
  EXPECT_TRUE(look_for(mark).network);
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
    GTEST_SKIP() << "the system makes no other network";
  EXPECT_FALSE(look_for(mark).network);
}

// A /proc of an outer namespace shows other pids than those that processes here have.
TEST(PeerState, IsNotAskedOfAnotherNamespace) {
  TempDir proc;
  const std::string pid = std::to_string(::getpid());
  const auto make = [&](const std::string& shown, const std::string& status) {
    std::filesystem::remove_all(proc / "self");
    std::filesystem::create_directories(proc / shown);
    std::filesystem::create_symlink(shown, proc / "self");
    std::ofstream(proc / shown + "/status") << status;
  };
  EXPECT_FALSE(shows_own_pids(proc.path()));
  make(pid, "Name:\ttest\nNSpid:\t" + pid + "\n");
  EXPECT_TRUE(shows_own_pids(proc.path()));
  make(pid, "Name:\ttest\n");  // as of older kernels
  EXPECT_TRUE(shows_own_pids(proc.path()));
  make(pid, "Name:\ttest\nNSpid:\t" + pid + "\t" + pid + "\n");  // the same number by chance
  EXPECT_FALSE(shows_own_pids(proc.path()));
  make("4711" + pid, "Name:\ttest\n");
  EXPECT_FALSE(shows_own_pids(proc.path()));
}

TEST(PeerState, IsWhatTheKernelSays) {
  EXPECT_EQ(state_of_process(0), PeerState::Unknown);
  EXPECT_EQ(state_of_process(::getpid()), PeerState::Runs);
  pid_t gone = 0;
  {
    const OtherProcess other("PeerToStop.DISABLED_Sleeps", {});
    gone = other.pid();
    EXPECT_EQ(state_of_process(gone), PeerState::Runs);
    other.stop();
    EXPECT_EQ(state_of_process(gone), PeerState::Stopped);
  }
  EXPECT_EQ(state_of_process(gone), PeerState::Unknown);
}

// Other processes of the tests here, which stop and kill them.
TEST(PeerToStop, DISABLED_Sleeps) { std::this_thread::sleep_for(10min); }

LaunchOptions options_of(const LaunchPlace& place) {
  return {.comm = Connection::Tcp,
          .timeout = 10min,
          .heartbeat = {.interval = 50ms, .timeout = 10min},
          .place = place};
}

TEST(PeerToStop, DISABLED_Trains) {
  Launch launch(options_of(find_place([](const char* name) { return std::getenv(name); })));
  launch.run([](int, ProcessGroup& world) {
    while (true) world.barrier();
  });
}

TEST(PeerToStop, DISABLED_WaitsForAMessage) {
  Launch launch(options_of(find_place([](const char* name) { return std::getenv(name); })));
  launch.run([](int, ProcessGroup& world) {
    world.barrier();
    float never = 0;
    world.recv(Tensor::wrap(&never, {1}, DType::F32), 0).wait();
  });
}

TEST(PeerToStop, DISABLED_DiesBeforeItsRun) {
  const Launch launch(options_of(find_place([](const char* name) { return std::getenv(name); })));
  ::raise(SIGKILL);
}

// Its connection ends while no rank runs, and nothing repeats the news.
TEST(Generations, NoticeADeathBeforeTheRun) {
  TempDir folder;
  const std::string store = folder.path() + "/store";
  const OtherProcess third("PeerToStop.DISABLED_DiesBeforeItsRun",
                           {"RANK=2", "WORLD_SIZE=3", "MEGATRON_STORE=" + store});
  std::vector<std::thread> threads;
  for (int process : {0, 1})
    threads.emplace_back([&, process] {
      Launch launch(options_of({.process = process, .processes = 3, .store_folder = store}));
      siginfo_t end{};
      EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(third.pid()), &end, WEXITED | WNOWAIT), 0);
      std::this_thread::sleep_for(300ms);  // for the connection's end to arrive
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_THROW(launch.run([](int, ProcessGroup& world) { world.barrier(); }), Error);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 1min);
    });
  for (std::thread& thread : threads) thread.join();
}

// Nobody who meets waits for the heartbeats of a process that is stopped, or for it to come.
TEST(Generations, GoOnWithoutAStoppedProcess) {
  TempDir folder;
  const std::string store = folder.path() + "/store";
  const OtherProcess third("PeerToStop.DISABLED_Trains",
                           {"RANK=2", "WORLD_SIZE=3", "MEGATRON_STORE=" + store});
  std::vector<std::thread> threads;
  for (int process : {0, 1})
    threads.emplace_back([&, process] {
      Launch launch(options_of({.process = process, .processes = 3, .store_folder = store}));
      EXPECT_THROW(launch.run([&](int rank, ProcessGroup& world) {
        world.barrier();
        if (rank == 0) {
          third.stop();
          fail("rank 0 fails");
        }
        while (true) world.barrier();
      }),
                   Error);
      const auto begin = std::chrono::steady_clock::now();
      launch.rendezvous({.grace = 10min});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 1min);
      EXPECT_EQ(launch.generation().processes, (std::vector<int>{0, 1}));
    });
  for (std::thread& thread : threads) thread.join();
}

// One process is killed and another stopped, which will not tell what it waits for; neither comes to the
// second barrier. Of some tries, as a busy machine may take its time.
TEST(Generations, GoOnSoonAfterTwoFaultsAtOnce) {
  auto shortest = std::chrono::steady_clock::duration::max();
  for (int round = 0; round < 5 && shortest > 1s; ++round) {
    TempDir folder;
    const std::string store = folder.path() + "/store";
    const auto other = [&](const char* rank) {
      return std::make_unique<OtherProcess>(
          "PeerToStop.DISABLED_WaitsForAMessage",
          std::vector<std::string>{rank, "WORLD_SIZE=5", "MEGATRON_STORE=" + store});
    };
    const auto killed = other("RANK=3"), stopped = other("RANK=4");
    std::chrono::steady_clock::time_point begin, end;
    std::vector<std::thread> threads;
    for (int process : {0, 1, 2})
      threads.emplace_back([&, process] {
        Launch launch(options_of({.process = process, .processes = 5, .store_folder = store}));
        EXPECT_THROW(launch.run([&](int rank, ProcessGroup& world) {
          world.barrier();
          if (rank == 0) {
            stopped->stop();
            begin = std::chrono::steady_clock::now();
            killed->kill(SIGKILL);
          }
          while (true) world.barrier();
        }),
                     PeerLost);
        launch.rendezvous({.grace = 10min});
        EXPECT_EQ(launch.generation().processes, (std::vector<int>{0, 1, 2}));
        if (process == 0) end = std::chrono::steady_clock::now();
      });
    for (std::thread& thread : threads) thread.join();
    shortest = std::min(shortest, end - begin);
  }
  EXPECT_LT(shortest, 1s);
}

}  // namespace
}  // namespace megatron
