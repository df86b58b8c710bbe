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

// Connects to process 0 of a store.
Socket connect_to_first(const std::string& place) {
  std::istringstream address(make_file_store(place, 1min)->get("address/0"));
  std::string host;
  int port = 0;
  address >> host >> port;
  Patience patience(1min);
  return Socket::connect("127.0.0.1", port, patience);
}

// Process 1 says something and ends without reading what it was sent, so that the connection is reset.
// Process 0 learns of that as it writes, and hears the words nevertheless.
TEST(TcpTransport, HearsTheLastWordsOfALostProcess) {
  TempDir folder;
  const std::string place = folder.path() + "/store";
  Socket other;
  std::thread connects([&] {
    other = connect_to_first(place);
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

// A connection that says a part of what a process would say, and no more, does not keep the transport awake.
TEST(TcpTransport, SleepsBesideAStrayConnection) {
  TempDir folder;
  const std::string place = folder.path() + "/store";
  const auto store = make_file_store(place, 1min);
  const auto transport = make_tcp_transport(*store, 0, 1, 1min);
  const Socket mute = connect_to_first(place), stray = connect_to_first(place);
  stray.write("abc", 3);
  const Transport::Receiver receiver{[](int, const Frame&) {}, [](int, const std::string&) {}};
  int polls = 0;
  for (Patience patience(400ms); !patience.over(); ++polls) transport->poll(100ms, receiver);
  EXPECT_LT(polls, 50);
}

// The words by which a process comes back may come in parts.
TEST(TcpTransport, TakesANewcomerInThatSpeaksSlowly) {
  TempDir folder;
  const std::string place = folder.path() + "/store";
  const int process = 1;
  std::string said(reinterpret_cast<const char*>(&process), sizeof process);
  const std::string address = "nowhere 1 -";
  const uint64_t size = address.size();
  said.append(reinterpret_cast<const char*>(&size), sizeof size).append(address);
  std::thread connects([&] { connect_to_first(place).write(said.data(), said.size()); });
  const auto store = make_file_store(place, 1min);
  const auto transport = make_tcp_transport(*store, 0, 2, 1min);
  connects.join();
  bool lost = false, back = false;
  const Transport::Receiver receiver{[](int, const Frame&) {}, [&](int, const std::string&) { lost = true; },
                                     [&](int other) { back = other == 1; }};
  const auto poll_until = [&](const bool& holds) {
    wait_until("what the other process does", [&] {
      transport->poll(1ms, receiver);
      return holds;
    });
  };
  poll_until(lost);
  const Socket other = connect_to_first(place);
  for (const char byte : said) {
    EXPECT_FALSE(back);
    other.write(&byte, 1);
    for (int i = 0; i < 3; ++i) transport->poll(1ms, receiver);
  }
  poll_until(back);
  int answer = -1;
  Patience patience(1min);
  other.read(&answer, sizeof answer, patience);
  EXPECT_EQ(answer, 0);
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
