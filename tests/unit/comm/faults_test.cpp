#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "megatron/comm/run_ranks.h"
#include "unit/comm/faulty_ranks.h"
#include "unit/comm/wrap.h"

namespace megatron {
namespace {

using namespace std::chrono_literals;
using testing::expect_contains;
using testing::stay_away;
using testing::wait_for;
using testing::wait_in_a_row;
using testing::wrap;

// What is noticed at once does not take the time-out, whatever a busy machine adds.
constexpr auto kTimeout = 10min;
constexpr double kAtOnce = 60;

struct Failure {
  std::string message;               // of the error that run_ranks threw
  std::vector<std::string> by_rank;  // what each rank saw; "" where it returned
  double seconds = 0;
};

// Runs ranks that must fail, and collects what each of them was told.
Failure failing(int ranks, const std::function<void(int, ProcessGroup&)>& fn) {
  Failure failure;
  failure.by_rank.resize(static_cast<size_t>(ranks));
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_ranks(ranks,
              [&](int rank, ProcessGroup& world) {
                try {
                  fn(rank, world);
                } catch (const std::exception& error) {
                  failure.by_rank[static_cast<size_t>(rank)] = error.what();
                  throw;
                }
              },
              {kTimeout});
    ADD_FAILURE() << "nothing failed";
  } catch (const std::exception& error) {
    failure.message = error.what();
  }
  failure.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return failure;
}

TEST(Faults, MismatchedOperationsAreNamed) {
  const Failure failure = failing(3, [](int rank, ProcessGroup& world) {
    std::vector<float> values(12), all(36);
    world.barrier();
    if (rank == 1)
      world.all_gather(wrap(values), wrap(all)).wait();
    else
      world.all_reduce(wrap(values)).wait();
  });
  expect_contains(failure.message, {"comm mismatch on group world (ranks 0 1 2): operation #1",
                                    "all_gather fp32[12]", "all_reduce fp32[12] sum", "faults_test.cpp:"});
  for (const std::string& message : failure.by_rank) EXPECT_EQ(message, failure.message);
  EXPECT_LT(failure.seconds, kAtOnce);
}

TEST(Faults, MismatchedShapesTypesRootsAndReductions) {
  using Call = std::function<Work(ProcessGroup&, std::vector<float>&)>;
  const std::pair<Call, Call> pairs[] = {
      {[](auto& g, auto& v) { return g.all_reduce(wrap(v)); },
       [](auto& g, auto& v) { return g.all_reduce(wrap(v).slice(0, 0, 4)); }},
      {[](auto& g, auto& v) { return g.all_reduce(wrap(v)); },
       [](auto& g, auto& v) { return g.all_reduce(wrap(v).reinterpret(DType::I32)); }},
      {[](auto& g, auto& v) { return g.all_reduce(wrap(v)); },
       [](auto& g, auto& v) { return g.all_reduce(wrap(v), ReduceOp::Max); }},
      {[](auto& g, auto& v) { return g.broadcast(wrap(v), 0); },
       [](auto& g, auto& v) { return g.broadcast(wrap(v), 1); }},
      {[](auto& g, auto& v) { return g.send(wrap(v), 1); },
       [](auto& g, auto& v) { return g.recv(wrap(v).slice(0, 0, 4), 0); }},
  };
  for (const auto& [first, second] : pairs) {
    const Failure failure = failing(2, [&](int rank, ProcessGroup& world) {
      std::vector<float> values(8);
      (rank == 0 ? first : second)(world, values).wait();
    });
    expect_contains(failure.message,
                    {"comm mismatch on group world", "rank 0 called", "rank 1 called", "fp32[8]"});
    EXPECT_LT(failure.seconds, kAtOnce);
  }
}

TEST(Faults, SplitsIntoOtherGroups) {
  const Failure failure =
      failing(2, [](int rank, ProcessGroup& world) { (void)world.split(0, 0, rank == 0 ? "tp" : "pp"); });
  expect_contains(failure.message,
                  {"comm mismatch on group world", "split into groups tp", "split into groups pp"});
}

TEST(Faults, AllToAllCountsMustAgree) {
  const Failure failure = failing(2, [](int rank, ProcessGroup& world) {
    std::vector<float> in(4), out(rank == 0 ? 4u : 5u);
    world
        .all_to_all(wrap(in), wrap(out), {2, 2},
                    rank == 0 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{3, 2})
        .wait();
  });
  expect_contains(failure.message, {"all_to_all #0", "rank 0 sends 2 elements to rank 1", "expects 3"});
}

TEST(Faults, MissingRankEndsEveryRankInTime) {
  const Failure failure = failing(4, [](int rank, ProcessGroup& world) {
    ProcessGroup pair = world.split(rank / 2, 0, "pair");
    std::vector<float> values(6);
    world.all_reduce(wrap(values)).wait();
    world.set_timeout(300ms);
    if (rank == 2)
      pair.all_reduce(wrap(values)).wait();  // rank 3 never comes: it waits for a message that nobody sends
    else if (rank == 3)
      world.recv(wrap(values), 0).wait();
    else
      world.all_reduce(wrap(values)).wait();
  });
  expect_contains(failure.message, {"did not end within 0.3 s", "missing ranks", "did not come",
                                    "its last call", "faults_test.cpp:"});
  for (const std::string& message : failure.by_rank) EXPECT_EQ(message, failure.message);
  EXPECT_GE(failure.seconds, 0.29);
  EXPECT_LT(failure.seconds, kAtOnce);
}

TEST(Faults, TimeoutTellsWhoIsMissingAndWhereTheyAre) {
  std::atomic<int> called = 0;
  const Failure failure = failing(3, [&](int rank, ProcessGroup& world) {
    ProcessGroup dp = world.split(0, 0, "dp");
    std::vector<bf16> values(6);
    dp.all_reduce(wrap(values)).wait();
    if (rank == 1) return stay_away(world);
    if (rank == 0) {
      wait_for(called, 1);
      world.set_timeout(300ms);
    }
    Work work = dp.all_reduce(wrap(values), ReduceOp::Max);
    ++called;
    work.wait();
  });
  expect_contains(
      failure.message,
      {"all_reduce bf16[6] max #1 on group dp (ranks 0 1 2) did not end within 0.3 s: missing ranks 1\n",
       "rank 0 called all_reduce bf16[6] max at faults_test.cpp:",
       "rank 1 did not come; its last call here: all_reduce bf16[6] sum #0 on group dp at faults_test.cpp:"});
}

// Ranks wait for each other in a row; the one that holds all of them up is found.
TEST(Faults, TimeoutNamesTheRankAtTheEndOfTheRow) {
  std::atomic<int> called = 0;
  const Failure failure =
      failing(4, [&](int rank, ProcessGroup& world) { wait_in_a_row(rank, world, called); });
  expect_contains(failure.message, {"did not end within 0.5 s: missing ranks 1; held up by rank 3\n",
                                    "rank 3 waits for nobody; its last call anywhere: nothing"});
}

TEST(Faults, RankThatReturnsIsNoticedAtOnce) {
  const Failure failure = failing(3, [](int rank, ProcessGroup& world) {
    std::vector<float> values(6);
    if (rank != 2) world.all_reduce(wrap(values)).wait();
  });
  expect_contains(failure.message, {"cannot end: a rank has returned", "missing ranks",
                                    "rank 2 did not come, it has returned"});
  EXPECT_EQ(failure.by_rank[2], "");
  EXPECT_LT(failure.seconds, kAtOnce);
}

TEST(Faults, RankThatThrowsWakesTheOthers) {
  struct Boom : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  std::vector<std::string> told(3);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(run_ranks(3,
                         [&](int rank, ProcessGroup& world) {
                           std::vector<float> values(6);
                           if (rank == 1) {
                             std::this_thread::sleep_for(50ms);
                             throw Boom("disk full");
                           }
                           try {
                             world.all_reduce(wrap(values)).wait();
                           } catch (const CommAborted& error) {
                             told[static_cast<size_t>(rank)] = error.what();
                             throw;
                           }
                         },
                         {kTimeout}),
               Boom);
  EXPECT_EQ(told[0], "rank 1 stopped: disk full");
  EXPECT_EQ(told[2], "rank 1 stopped: disk full");
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), kAtOnce);
}

TEST(Faults, AbortWakesEveryGroup) {
  const Failure failure = failing(4, [](int rank, ProcessGroup& world) {
    ProcessGroup pair = world.split(rank / 2, 0, "pair");
    std::vector<float> values(6);
    if (rank == 3) {
      std::this_thread::sleep_for(20ms);
      world.abort("the loss is NaN");
      return;
    }
    (rank == 2 ? pair : world).all_reduce(wrap(values)).wait();
  });
  EXPECT_EQ(failure.message, "rank 3 stopped group world: the loss is NaN");
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(failure.by_rank[static_cast<size_t>(rank)], failure.message);
}

TEST(Faults, NothingRunsAfterAnAbort) {
  failing(2, [](int, ProcessGroup& world) {
    world.abort("stop");
    EXPECT_THROW(world.barrier(), CommAborted);
    EXPECT_THROW(world.split(0, 0, "x"), CommAborted);
    world.barrier();
  });
}

// A rank leaves by an exception while others may be reading its memory, which goes with its stack. Under the
// address and thread sanitizers this shows whether anybody still touched it.
TEST(Faults, MemoryOfALeavingRankIsLeftAlone) {
  for (int round = 0; round < 30; ++round)
    failing(4, [&](int rank, ProcessGroup& world) {
      std::vector<float> values(200000, 1.f), other(10);
      Work work = world.all_reduce(wrap(values));
      Work never = world.recv(wrap(other), rank);
      if (rank == round % 4) fail("rank {} leaves", rank);
      work.wait();
      never.wait();
    });
}

TEST(Faults, BadArgumentsNameOperationShapesAndPlace) {
  const ProcessGroup group = ProcessGroup::self();
  std::vector<float> values(6);
  std::vector<int32_t> integers(6);
  const Tensor tensor = wrap(values);
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  expect_contains(message([&] {
                    (void)group.all_reduce(tensor.view({2, 3}).transpose(0, 1));
                  }),
                  {"all_reduce at", "not contiguous", "[3, 2]"});
  expect_contains(message([&] { (void)group.all_reduce(Tensor()); }), {"undefined"});
  expect_contains(message([&] { (void)group.all_gather(tensor, wrap(integers)); }), {"differ in dtype"});
  expect_contains(message([&] { (void)group.all_gather(tensor.slice(0, 0, 2), tensor); }),
                  {"is not 1 times input"});
  expect_contains(message([&] { (void)group.all_reduce(wrap(integers), ReduceOp::Avg); }), {"int32", "avg"});
  expect_contains(message([&] { (void)group.broadcast(tensor, 1); }), {"there is no rank 1 in a group of 1"});
  expect_contains(message([&] { (void)group.all_to_all(tensor, tensor); }), {"overlap"});
  expect_contains(
      message([&] { (void)group.all_to_all(tensor, wrap(integers).reinterpret(DType::F32), {5}, {6}); }),
      {"add up to 5 rows"});
  expect_contains(message([&] { ProcessGroup().barrier(); }), {"not a member"});
  expect_contains(message([&] { run_ranks(0, [](int, ProcessGroup&) {}); }), {"0 ranks"});
}

// A rank that has not said where it computes cannot move GPU memory, and hears so before it touches any.
TEST(Faults, GpuMemoryNeedsTheRanksStream) {
  const Failure failure = failing(2, [](int, ProcessGroup& world) {
    std::vector<float> values(4);
    world.all_reduce(Tensor::wrap(values.data(), {4}, DType::F32, Device{DeviceType::Cuda, 0})).wait();
  });
  expect_contains(failure.message, {"all_reduce", "faults_test.cpp", "world.attach(ctx)"});
}

TEST(FlightRecord, RemembersTheLastCalls) {
  run_ranks(2, [](int, ProcessGroup& world) {
    std::vector<float> values(6);
    for (int i = 0; i < 40; ++i) world.all_reduce(wrap(values)).wait();
    Work open = world.all_reduce(wrap(values), ReduceOp::Max);
    const std::string record = world.flight_record();
    expect_contains(record, {"rank 0:\n", "rank 1:\n",
                             "all_reduce fp32[6] sum #39 on group world at faults_test.cpp:", ", done"});
    EXPECT_EQ(record.find("#7 "), std::string::npos);
    open.wait();
    world.barrier();
  });
}

}  // namespace
}  // namespace megatron
