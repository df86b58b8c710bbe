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

// Process 1 says something and ends without reading what it was sent, so that the connection is reset.
// Process 0 learns of that as it writes, and hears the words nevertheless.
TEST(TcpTransport, HearsTheLastWordsOfALostProcess) {
  TempDir folder;
  const std::string place = folder.path() + "/store";
  Socket other;
  std::thread connects([&] {
    const auto store = make_file_store(place, 1min);
    std::istringstream address(store->get("address/0"));
    std::string host;
    int port = 0;
    address >> host >> port;
    Patience patience(1min);
    other = Socket::connect("127.0.0.1", port, patience);
    const int process = 1;
    other.write(&process, sizeof process);
    other.write_text("nowhere 1 -");
  });
  const auto store = make_file_store(place, 1min);
  const auto transport = make_tcp_transport(*store, 0, 2, 1min);
  connects.join();
  std::vector<std::string> events;
  const Transport::Receiver receiver{[&](int, const Frame& frame) { events.emplace_back(text_of(frame)); },
                                     [&](int, const std::string& why) { events.push_back("lost: " + why); }};
  const auto send = [&] {
    transport->send(1, make_frame({.kind = FrameKind::Data}, nullptr, "to process 1", transport->pool()));
  };
  send();
  wait_until("the first frame", [&] {
    transport->poll(1ms, receiver);
    char byte = 0;
    return ::recv(other.descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  });
  const Frame last = make_frame({.kind = FrameKind::Abort}, nullptr, "my disk is full", transport->pool());
  const uint64_t size = last.size;
  other.write(&size, sizeof size);
  other.write(last.bytes.get(), last.size);
  other = Socket();                    // with bytes unread
  std::this_thread::sleep_for(100ms);  // for the reset to arrive
  send();
  wait_until("the loss", [&] {
    transport->poll(1ms, receiver);
    return !events.empty() && events.back().starts_with("lost: ");
  });
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0], "my disk is full");
}

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
