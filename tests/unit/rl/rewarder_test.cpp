#include "megatron/rl/rewarder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>

#include "megatron/base/error.h"

namespace megatron::rl {
namespace {

// Each waits for another: one after the other they would never end.
TEST(Rewarder, RunsTasksBesideEachOther) {
  std::barrier<> pair(2);
  std::atomic<int> done = 0;
  Rewarder rewarder;
  for (int i = 0; i < 2 * Rewarder::kThreads; ++i)
    rewarder.add([&] {
      pair.arrive_and_wait();
      ++done;
    });
  rewarder.finish();
  EXPECT_EQ(done, 2 * Rewarder::kThreads);
  rewarder.add([&] { ++done; });
  rewarder.finish();
  EXPECT_EQ(done, 2 * Rewarder::kThreads + 1);
}

TEST(Rewarder, ThrowsWhatATaskThrew) {
  Rewarder rewarder;
  std::atomic<int> done = 0;
  for (int i = 0; i < 40; ++i)
    rewarder.add([&done, i] {
      if (i == 3) fail("the program of task {} ended", i);
      ++done;
    });
  EXPECT_THROW(rewarder.finish(), Error);
  EXPECT_LT(done, 40);
}

TEST(Rewarder, LeavesWhatWasNotBegun) {
  std::atomic<int> begun = 0;
  {
    Rewarder rewarder;
    std::barrier<> all(Rewarder::kThreads + 1);
    for (int i = 0; i < 3 * Rewarder::kThreads; ++i)
      rewarder.add([&, i] {
        ++begun;
        if (i < Rewarder::kThreads) all.arrive_and_wait();
      });
    all.arrive_and_wait();
  }
  EXPECT_GE(begun, Rewarder::kThreads);
}

}  // namespace
}  // namespace megatron::rl
