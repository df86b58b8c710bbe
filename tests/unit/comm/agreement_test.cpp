// What processes make of each other's words when these come at bad moments. The test plays the other ones.
#include <gtest/gtest.h>

#include <future>

#include "megatron/base/error.h"
#include "megatron/comm/processes/host_collectives.h"
#include "megatron/comm/processes/process_backend.h"
#include "unit/comm/scripted_transport.h"

namespace megatron {
namespace {

using namespace std::chrono_literals;
using testing::expect_contains;
using testing::ScriptedTransport;

constexpr auto kGrace = 1min;

// One of three processes, which takes part in the meetings of generations.
class OneOfThree {
 public:
  explicit OneOfThree(int process)
      : wire_(std::make_unique<ScriptedTransport>(process, 3, script_), 1ms), process_(process) {}

  void loses(int other) { script_->loses(other); }
  void joins(int other, const std::string& unreachable, uint32_t generation = 1) {
    script_->says(other, {.kind = FrameKind::Join, .from = other, .to = process_, .generation = generation},
                  unreachable);
  }
  void takes(int other, const std::string& members, uint32_t generation = 1) {
    script_->says(other,
                  {.kind = FrameKind::Members, .from = other, .to = process_, .generation = generation},
                  members);
  }
  // Until this process has told its own decision.
  void wait_until_decided(int other) { script_->wait_until_sent(FrameKind::Members, other); }

  std::future<std::vector<int>> meet(uint32_t generation = 1) {
    return std::async(std::launch::async, [=, this] { return wire_.meet(generation, kGrace); });
  }
  // Loses process 0, meets, and has decided on itself and process 2.
  std::future<std::vector<int>> decide_without_zero() {
    loses(0);
    auto meeting = meet();
    joins(2, "0");
    wait_until_decided(2);
    return meeting;
  }

 private:
  std::shared_ptr<ScriptedTransport::Script> script_ = std::make_shared<ScriptedTransport::Script>();
  Wire wire_;
  int process_;
};

void expect_left(std::future<std::vector<int>> meeting, std::initializer_list<const char*> reasons) {
  try {
    meeting.get();
    ADD_FAILURE() << "it goes on";
  } catch (const PeerLost& error) {
    expect_contains(error.what(), reasons);
  }
}

// Process 0 was stopped and goes on while 1 and 2 meet without it: 1 decides on 1 and 2, and 0 on 0 and 2.
TEST(TwoDeciders, TheOneThatNobodyFollowsLeaves) {
  {
    OneOfThree one(1);
    auto meeting = one.decide_without_zero();
    one.takes(0, "0 2");
    one.takes(2, "0 2");
    expect_left(std::move(meeting), {"process 1 was left out of generation 1", "process 2", "with 0 2"});
  }
  {
    OneOfThree zero(0);
    auto meeting = zero.meet();
    zero.joins(1, "0");
    zero.joins(2, "");
    zero.wait_until_decided(2);
    zero.takes(1, "1 2");
    zero.takes(2, "1 2");
    expect_left(std::move(meeting), {"process 0 was left out of generation 1", "process 2", "with 1 2"});
  }
}

TEST(TwoDeciders, TheOneThatIsFollowedGoesOn) {
  OneOfThree one(1);
  auto meeting = one.decide_without_zero();
  one.takes(0, "0 2");
  one.takes(2, "1 2");
  EXPECT_EQ(meeting.get(), (std::vector<int>{1, 2}));
}

// What was decided and not taken by all is no quorum for what comes next: process 2 may train with another.
TEST(TwoDeciders, AGenerationThatWasNotMadeDoesNotCount) {
  OneOfThree one(1);
  auto meeting = one.decide_without_zero();
  one.loses(2);
  EXPECT_EQ(meeting.get(), (std::vector<int>{1, 2}));
  expect_left(one.meet(2), {"generation 2: 1 of 3 processes are left"});
}

// Rank 0 of three processes, of which the test plays the others.
struct RankZero {
  explicit RankZero(std::chrono::milliseconds timeout)
      : world(std::make_shared<ProcessWorld>(
            std::make_shared<Wire>(std::make_unique<ScriptedTransport>(0, 3, script), 1ms),
            Generation{.processes = {0, 1, 2}, .reserve = {}, .world = 3}, 1, timeout)) {
    world->begin_run();
  }
  ~RankZero() {  // the wire need not wait for the others
    for (const int other : {1, 2}) script->says(other, {.kind = FrameKind::Goodbye, .from = other}, "");
  }
  // Both return the fault that rank 0 hears of while it waits, for one rank or for all.
  std::string receive_from(int rank) {
    return told([&](const Tensor& value) { return process_world_group(world, 0).recv(value, rank); });
  }
  std::string reduce() {
    return told([&](const Tensor& value) { return process_world_group(world, 0).all_reduce(value); });
  }

  const std::shared_ptr<ScriptedTransport::Script> script = std::make_shared<ScriptedTransport::Script>();
  const std::shared_ptr<ProcessWorld> world;

 private:
  std::string told(const std::function<Work(const Tensor&)>& begin) {
    float value = 0;
    try {
      begin(Tensor::wrap(&value, {1}, DType::F32)).wait();
    } catch (const CommError& error) {
      return error.what();
    }
    return "";
  }
};

// Rank 0 waits for 1, which tells late that it waits for 2. That one is not called silent for want of time.
TEST(Inquiry, WhoWasNotWaitedForIsAskedAgain) {
  RankZero zero(1s);
  std::atomic<bool> over = false;
  std::thread others([&] {
    int64_t answered[3] = {};
    while (!over) {
      for (const int rank : {1, 2}) {
        if (zero.script->count(FrameKind::Question, rank) == answered[rank]) continue;
        // Half a second is left when the first question comes.
        if (rank == 2 || answered[rank] == 0) std::this_thread::sleep_for(rank == 1 ? 450ms : 300ms);
        ++answered[rank];
        zero.script->says(rank, {.kind = FrameKind::Answer, .from = rank},
                          rank == 1 ? "2\nit waits" : "\nit computes");
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  const std::string told = zero.receive_from(1);
  over = true;
  others.join();
  expect_contains(told, {"did not end within 1.0 s: missing ranks 1; held up by rank 2", "it computes"});
  EXPECT_EQ(told.find("does not answer"), std::string::npos) << told;
}

// Process 1 is gone, and 2 does not answer, which need not be its fault. Of some tries, as a busy machine may
// take its time.
TEST(Inquiry, NobodyIsWaitedForLongWhereARankIsGone) {
  auto shortest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5 && shortest > 1s; ++i) {
    RankZero zero(10min);
    zero.script->loses(1);
    const auto begin = std::chrono::steady_clock::now();
    const std::string told = zero.reduce();
    const auto end = std::chrono::steady_clock::now();
    shortest = std::min(shortest, end - begin);
    expect_contains(told, {"cannot end: a rank is gone: missing ranks 1 2; held up by rank 1\n",
                           "rank 1 did not come, its process has died; the test says so",
                           "rank 2 did not come; its process was not waited for"});
    // The wait for answers is a part of what the fault cost.
    ASSERT_TRUE(zero.world->noticed());
    EXPECT_LT(*zero.world->noticed() + 100ms, end);
  }
  EXPECT_LT(shortest, 1s);
}

// Not even as long as others, of some tries.
TEST(Inquiry, StoppedProcessesAreNotWaitedFor) {
  auto shortest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5 && shortest > 100ms; ++i) {
    RankZero zero(10min);
    zero.script->stops(2);
    zero.script->loses(1);
    expect_contains(zero.reduce(), {"cannot end: a rank is gone: missing ranks 1 2\n",
                                    "rank 1 did not come, its process has died",
                                    "rank 2 did not come; its process is stopped"});
    ASSERT_TRUE(zero.world->noticed());
    shortest = std::min(shortest, std::chrono::steady_clock::now() - *zero.world->noticed());
  }
  EXPECT_LT(shortest, 100ms);
}

// Rank 2 is asked ahead of the time-out and does not answer; then process 1 dies.
TEST(Inquiry, ALossIsNoticedWhileOthersAreAsked) {
  RankZero zero(4s);
  std::thread others([&] {
    zero.script->wait_until_sent(FrameKind::Question, 2);
    zero.script->loses(1);
  });
  const std::string told = zero.reduce();
  others.join();
  expect_contains(told, {"cannot end: a rank is gone: missing ranks 1 2; held up by rank 1\n"});
}

// Rank 0 waits for process 2, which is stopped, when process 1 dies, for whom nobody waits.
TEST(Inquiry, ADeathEndsWaitsForOthers) {
  auto shortest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5 && shortest > 500ms; ++i) {
    RankZero zero(10min);
    zero.script->stops(2);
    zero.script->loses(1);
    const auto begin = std::chrono::steady_clock::now();
    expect_contains(zero.receive_from(2), {"cannot end: a rank is gone: missing ranks 2",
                                           "rank 2 did not come; its process is stopped",
                                           "the process of rank 1 has died; the test says so"});
    shortest = std::min(shortest, std::chrono::steady_clock::now() - begin);
  }
  EXPECT_LT(shortest, 500ms);
}

// Two ranks of a process doubt. What one of them waits for comes after all; the other's doubt still counts
// from its beginning.
TEST(Inquiry, ADoubtThatEndsLeavesTheOthersAsTheyWere) {
  const auto script = std::make_shared<ScriptedTransport::Script>();
  const auto world = std::make_shared<ProcessWorld>(
      std::make_shared<Wire>(std::make_unique<ScriptedTransport>(0, 2, script), 1ms),
      Generation{.processes = {0, 1}, .reserve = {}, .world = 4}, 2, 10min);
  world->begin_run();
  world->set_timeout(0, 400ms);
  world->set_timeout(1, 400ms);
  const auto begin = std::chrono::steady_clock::now();
  std::string told[2];
  const auto receive = [&](int rank, int from) {
    float value = 0;
    try {
      process_world_group(world, rank).recv(Tensor::wrap(&value, {1}, DType::F32), from).wait();
    } catch (const CommError& error) {
      told[rank] = error.what();
    }
  };
  std::thread first([&] { receive(0, 2); }), second([&] { receive(1, 3); });
  // Both have asked ahead of their time-outs and again behind them; answers do not come for two seconds.
  script->wait_until_sent(FrameKind::Question, 2, 2);
  script->wait_until_sent(FrameKind::Question, 3, 2);
  const auto doubted = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(300ms);
  float value = 1;
  const CommRequest request{
      .kind = CommKind::Recv, .output = Tensor::wrap(&value, {1}, DType::F32), .peer = 3};
  script->delivers(1,
                   {.phase = kMessagePhase,
                    .from = 3,
                    .to = 1,
                    .group = world->world_group(1)->id,
                    .signature = signature_of(request)},
                   value);
  second.join();
  first.join();
  EXPECT_EQ(told[1], "");
  expect_contains(told[0], {"did not end within 0.4 s: missing ranks 2"});
  ASSERT_TRUE(world->noticed());
  EXPECT_LT(*world->noticed(), doubted + 200ms);
  EXPECT_GT(*world->noticed(), begin + 300ms);
  script->says(1, {.kind = FrameKind::Goodbye, .from = 1}, "");
}

// Process 2 aborts and dies before all others hear of it. They hear the reason from those that return.
TEST(Inquiry, TheReasonOfAnAbortComesFromEverybody) {
  const std::string reason = "rank 2 stopped: disk full";
  {
    RankZero zero(10min);
    zero.script->says(1, {.kind = FrameKind::Returned, .from = 1, .sequence = 1}, reason);
    EXPECT_EQ(zero.reduce(), reason);
  }
  RankZero zero(10min);
  zero.script->says(2, {.kind = FrameKind::Abort, .from = 2}, reason);
  EXPECT_EQ(zero.reduce(), reason);
  zero.world->retire(0);
  std::lock_guard lock(zero.script->mutex);
  const auto told = std::ranges::count_if(zero.script->sent, [&](const auto& frame) {
    return frame.first.kind == FrameKind::Returned && frame.second == reason;
  });
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace megatron
