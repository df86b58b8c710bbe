// Connections that break, and processes that come late.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "megatron/comm/launch.h"
#include "megatron/comm/processes/frame.h"
#include "megatron/comm/processes/tcp_transport.h"
#include "megatron/comm/rendezvous/socket.h"
#include "support/temp_dir.h"
#include "unit/comm/faulty_ranks.h"
#include "unit/comm/other_process.h"

namespace megatron {
namespace {

using namespace std::chrono_literals;
using testing::OtherProcess;
using testing::TempDir;
using testing::wait_until;

constexpr auto kShort = 2s;

std::string late_place() { return std::getenv("LATE_PLACE"); }

// Other processes of the test below, which stops them.
TEST(LateToStop, DISABLED_Gets) {
  const auto store = make_file_store(late_place(), kShort);
  store->set("begun", "");
  EXPECT_EQ(store->get("late"), "here");
}

TEST(LateToStop, DISABLED_Connects) {
  std::filesystem::create_directories(late_place());
  std::ofstream(late_place() + "/begun") << "";
  Launch launch({.comm = Connection::Tcp,
                 .timeout = kShort,
                 .place = {.process = 0, .processes = 2, .store_folder = late_place()}});
  launch.run([](int, ProcessGroup& world) { world.barrier(); });
}

// Time-outs of the meeting pass only while a process runs.
TEST(Rendezvous, DoesNotPassWhileAProcessIsStopped) {
  TempDir folder;
  const std::string gets = folder / "gets", connects = folder / "connects";
  const OtherProcess getter("LateToStop.DISABLED_Gets", {"LATE_PLACE=" + gets}),
      connecter("LateToStop.DISABLED_Connects", {"LATE_PLACE=" + connects});
  wait_until("the processes", [&] {
    return std::filesystem::exists(gets + "/begun") && std::filesystem::exists(connects + "/address.0");
  });
  for (const OtherProcess* process : {&getter, &connecter}) process->stop();
  std::this_thread::sleep_for(kShort + 200ms);
  for (const OtherProcess* process : {&getter, &connecter}) process->kill(SIGCONT);
  std::this_thread::sleep_for(50ms);  // they look at the clock
  make_file_store(gets, kShort)->set("late", "here");
  {
    Launch launch({.comm = Connection::Tcp,
                   .timeout = 1min,
                   .place = {.process = 1, .processes = 2, .store_folder = connects}});
    launch.run([](int, ProcessGroup& world) { world.barrier(); });
  }
  for (const OtherProcess* process : {&getter, &connecter}) {
    siginfo_t end{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process->pid()), &end, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(end.si_code, CLD_EXITED);
    EXPECT_EQ(end.si_status, 0);
  }
}

}  // namespace
}  // namespace megatron
