#include "megatron/device/cpu_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fault/odd_disks.h"

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

// Loops over streams in an order that repeats, with plain ones between them: shares, stealing and reading
// ahead leave every index visited once, whichever thread is late.
TEST(CpuPool, ReadsStreamsInTurn) {
  for (int width : {1, 2, 5}) {
    CpuPool pool(width);
    constexpr int64_t bytes = 1 << 12;
    std::vector<std::vector<char>> weights;
    for (int64_t n : {40, 7, 333}) weights.emplace_back(static_cast<size_t>(n * bytes), char{1});
    for (int step = 0; step < 20; ++step)
      for (const std::vector<char>& weight : weights) {
        const auto n = static_cast<int64_t>(weight.size()) / bytes;
        std::vector<std::atomic<int64_t>> sums(static_cast<size_t>(n));
        pool.parallel_for(n, 3, ReadStream{weight.data(), bytes}, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            int64_t sum = 0;
            for (int64_t at = 0; at < bytes; at += 64) sum += weight[static_cast<size_t>(i * bytes + at)];
            sums[static_cast<size_t>(i)] += sum;
          }
        });
        for (auto& sum : sums) ASSERT_EQ(sum, bytes / 64) << "width " << width << ", n " << n;
        if (step % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        std::atomic<int64_t> count{0};
        pool.parallel_for(100, 1, [&](int64_t begin, int64_t end) { count += end - begin; });
        ASSERT_EQ(count, 100);
      }
  }
}

// What a stream was is only asked for, never loaded: the stream to come may be gone.
TEST(CpuPool, ReadsAheadOfMemoryThatWasGivenBack) {
  CpuPool pool(2);
  constexpr size_t bytes = size_t{8} << 20;
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  std::vector<char> first(bytes);
  std::atomic<int64_t> count{0};
  const auto loop = [&](const void* data) {
    pool.parallel_for(1024, 1, ReadStream{data, bytes / 1024},
                      [&](int64_t begin, int64_t end) { count += end - begin; });
  };
  for (int step = 0; step < 3; ++step) {
    loop(first.data());
    loop(pages);
  }
  ASSERT_EQ(::munmap(pages, bytes), 0);
  loop(first.data());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(count, 7 * 1024);
}

// A system that gives some threads and no more, as containers do: an error, which a program outlives.
TEST(CpuPool, IsNotMadeWhereThreadsAreMissing) {
  std::string message;
  std::thread([&] {
    if (!testing::limit_threads(2)) return;
    try {
      CpuPool pool(5);
      message = "no error";
    } catch (const std::exception& error) {
      message = error.what();
    }
  }).join();
  if (message.empty()) GTEST_SKIP() << "this kernel does not let a process limit its threads";
  EXPECT_EQ(message, "Resource temporarily unavailable");
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A stream much longer than what is read ahead of it is announced: threads read its beginning and then sleep.
TEST(CpuPool, SleepsBehindAStream) {
  CpuPool pool(4);
  std::vector<char> weights(size_t{64} << 20);
  const int64_t n = 1024, bytes = static_cast<int64_t>(weights.size()) / n;
  for (int step = 0; step < 3; ++step)
    pool.parallel_for(n, 1, ReadStream{weights.data(), bytes}, [](int64_t, int64_t) {});
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu_seconds() - before, 0.1);
}

}  // namespace
}  // namespace megatron
