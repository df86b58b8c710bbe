#include "megatron/device/cpu_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace megatron {
namespace {

TEST(CpuPool, VisitsEveryIndexOnce) {
  for (int width : {1, 2, 5}) {
    CpuPool pool(width);
    for (int64_t n : {0, 1, 7, 1000, 4099}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      pool.parallel_for(n, 10, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (auto& count : seen) ASSERT_EQ(count, 1) << "width " << width << ", n " << n;
    }
  }
}

TEST(CpuPool, CutsTheSameChunksEveryTime) {
  CpuPool pool(3);
  int64_t n = 1000, step = pool.chunk_size(n, 16);
  std::vector<std::atomic<int64_t>> ends(static_cast<size_t>(pool.chunks(n, 16)));
  pool.parallel_for(n, 16,
                    [&](int64_t begin, int64_t end) { ends[static_cast<size_t>(begin / step)] = end; });
  for (size_t i = 0; i < ends.size(); ++i)
    EXPECT_EQ(ends[i], std::min<int64_t>(n, (static_cast<int64_t>(i) + 1) * step));
}

TEST(CpuPool, PassesOnWhatABodyThrowsAndGoesOnWorking) {
  CpuPool pool(4);
  auto bad = [](int64_t, int64_t) { throw std::runtime_error("bad chunk"); };
  EXPECT_THROW(pool.parallel_for(1000, 1, bad), std::runtime_error);
  std::atomic<int64_t> sum{0};
  pool.parallel_for(1000, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 1000);
}

// Workers join late, or find the job done, or are still awake from the last one, or asleep.
TEST(CpuPool, ShortJobsOneAfterTheOther) {
  CpuPool pool(3);
  std::vector<int> counts(64);
  constexpr int jobs = 2000;
  for (int job = 0; job < jobs; ++job) {
    if (job % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++counts[static_cast<size_t>(i)];
    });
  }
  for (int count : counts) EXPECT_EQ(count, jobs);
}

}  // namespace
}  // namespace megatron
