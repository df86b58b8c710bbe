// What a process knows of others: where they are, whether they run, and how long it waits for them.
#include <gtest/gtest.h>
#include <unistd.h>

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

TEST(PeerAddress, TellsWhoIsNear) {
  const PeerAddress own = PeerAddress::own("some.host", 4000), same = PeerAddress::from(own.text());
  EXPECT_EQ(same.text(), own.text());
  EXPECT_EQ(same.host, "some.host");
  EXPECT_EQ(same.port, 4000);
  EXPECT_EQ(same.pid, ::getpid());
  EXPECT_TRUE(own.shares_network(same));
  const PeerAddress one{"host", 4000, "boot/host", 7, 8, 99};
  PeerAddress other = one;
  EXPECT_TRUE(one.shares_network(other));
  EXPECT_TRUE(one.shares_pids(other));
  other.network = 9;  // a container
  EXPECT_FALSE(one.shares_network(other));
  EXPECT_TRUE(one.shares_pids(other));
  other = one;
  other.machine = "another/host";
  EXPECT_FALSE(one.shares_network(other));
  EXPECT_FALSE(one.shares_pids(other));
  // Where the kernel tells less, a name is enough to meet, but no pid is trusted.
  const PeerAddress hidden{"host", 4000, "boot/host", 0, 0, 99}, unknown{"host", 4000, "/host", 7, 8, 99};
  EXPECT_TRUE(hidden.shares_network(hidden));
  EXPECT_FALSE(hidden.shares_pids(hidden));
  EXPECT_TRUE(unknown.shares_network(unknown));
  EXPECT_FALSE(unknown.shares_pids(unknown));
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

}  // namespace
}  // namespace megatron
