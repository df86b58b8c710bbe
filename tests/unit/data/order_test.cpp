// Which samples a step reads, and reading ahead.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/datasets/prefetch.h"
#include "megatron/datasets/sample_order.h"
#include "support/samplers.h"

namespace megatron {
namespace {

// What each replica reads in the steps of a run, as one list a replica.
std::vector<std::vector<int64_t>> read_all(const SampleOrder& order, const Shares& shares, int64_t steps) {
  std::vector<std::vector<int64_t>> read(shares.of_replica.size());
  for (int64_t step = 0; step < steps; ++step)
    for (size_t r = 0; r < read.size(); ++r)
      for (const auto& numbers : order.of({step, step * shares.samples(), shares.of_replica[r]}))
        read[r].insert(read[r].end(), numbers.begin(), numbers.end());
  return read;
}

TEST(SampleOrder, InTurnIsTheGlobalOrder) {
  const Shares shares = Shares::even(8, 2, 2);
  const auto read = read_all(SampleOrder::in_turn(100), shares, 2);
  EXPECT_EQ(read[0], (std::vector<int64_t>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(read[1], (std::vector<int64_t>{4, 5, 6, 7, 12, 13, 14, 15}));
}

// Megatron-LM's random sampler, epoch after epoch, for each rank.
TEST(SampleOrder, CyclicIsTheSamplersOrder) {
  for (bool sharded : {true, false}) {
    const int64_t total = 27, micro = 2, replicas = 3, steps = 9;  // more than two epochs
    const Shares shares = Shares::even(micro * replicas, micro, static_cast<int>(replicas));
    const auto read = read_all(SampleOrder::cyclic(total, micro, replicas, sharded), shares, steps);
    for (int64_t rank = 0; rank < replicas; ++rank) {
      std::vector<int64_t> expected;
      for (int64_t consumed = 0; static_cast<int64_t>(expected.size()) < steps * micro;) {
        const auto batches = testing::cyclic_batches({total, consumed, micro, replicas}, rank, sharded);
        for (const auto& batch : batches) expected.insert(expected.end(), batch.begin(), batch.end());
        consumed += total - total % (micro * replicas);
      }
      expected.resize(static_cast<size_t>(steps * micro));
      EXPECT_EQ(read[static_cast<size_t>(rank)], expected) << rank;
    }
  }
  EXPECT_THROW(SampleOrder::cyclic(5, 2, 3, true), ConfigError);
}

// Rows whose tokens tell which sample they are; counts how often it is asked.
struct CountingSource final : BatchSource {
  mutable std::atomic<int> asked{0};
  int64_t total = -1, fails_at = -1;
  std::chrono::milliseconds takes{0};

  int64_t length() const override { return 1; }
  int64_t samples() const override { return total; }
  std::vector<Batch> step(const StepRequest& request) const override {
    ++asked;
    std::this_thread::sleep_for(takes);
    if (request.iteration == fails_at) throw ConfigError("row is malformed");
    std::vector<Batch> batches;
    for (const Share& share : request.shares) {
      Batch& batch = batches.emplace_back();
      batch.rows = share.count;
      batch.first = share.first;
      for (int64_t i = 0; i < share.count; ++i) {
        batch.ids.push_back(request.consumed + share.first + i);
        batch.labels.push_back(request.iteration);
      }
    }
    return batches;
  }
};

TEST(Prefetch, GivesTheSourcesStepsWhateverTheThreads) {
  const Shares shares = Shares::even(4, 1, 2);
  for (int threads : {0, 1, 3}) {
    const auto plain = std::make_shared<CountingSource>();
    const auto ahead = prefetched(plain, 2, threads);
    // Two ranks of each replica, each at its own pace.
    std::vector<std::thread> ranks;
    std::atomic<int> wrong{0};
    for (size_t rank = 0; rank < 4; ++rank)
      ranks.emplace_back([&, rank] {
        const auto& own = shares.of_replica[rank % 2];
        for (int64_t i = 0; i < 50; ++i) {
          const auto batches = ahead->step({i, i * 4, own, rank < 2 ? 4 : 0});
          for (size_t b = 0; b < own.size(); ++b)
            wrong += batches[b].ids[0] != i * 4 + own[b].first || batches[b].labels[0] != i;
        }
      });
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(wrong, 0) << threads;
  }
}

// The second rank of a replica finds what the first was given.
TEST(Prefetch, RanksOfAReplicaShareSteps) {
  const Shares shares = Shares::even(2, 1, 1);
  const auto plain = std::make_shared<CountingSource>();
  plain->total = 20;
  const auto ahead = prefetched(plain, 2, 1);
  for (int64_t i = 0; i < 10; ++i)
    for (int rank = 0; rank < 3; ++rank) (void)ahead->step({i, i * 2, shares.of_replica[0]});
  EXPECT_EQ(plain->asked, 10);  // nothing beyond the end of the data either
}

TEST(Prefetch, AChangedBatchSizeIsReadWhenAsked) {
  const auto plain = std::make_shared<CountingSource>();
  const auto ahead = prefetched(plain, 2, 1);
  int64_t consumed = 0;
  for (int64_t i = 0; i < 12; ++i) {
    const Shares shares = Shares::even(2 + i / 4 * 2, 1, 1);
    const auto batches = ahead->step({i, consumed, shares.of_replica[0], shares.samples()});
    ASSERT_EQ(batches.size(), static_cast<size_t>(shares.samples()));
    for (size_t b = 0; b < batches.size(); ++b)
      EXPECT_EQ(batches[b].ids[0], consumed + static_cast<int64_t>(b));
    consumed += shares.samples();
  }
}

TEST(Prefetch, AFaultComesWithItsStep) {
  const auto plain = std::make_shared<CountingSource>();
  plain->fails_at = 3;
  const auto ahead = prefetched(plain, 2, 1);
  const Shares shares = Shares::even(2, 1, 1);
  for (int64_t i = 0; i < 3; ++i) (void)ahead->step({i, i * 2, shares.of_replica[0], 2});
  EXPECT_THROW(ahead->step({3, 6, shares.of_replica[0], 2}), ConfigError);
}

// Ranks that ask for the same step get the same memory.
TEST(Prefetch, SharesWithoutACopy) {
  const auto plain = std::make_shared<CountingSource>();
  const auto ahead = prefetched(plain, 2, 1);
  const Shares shares = Shares::even(2, 1, 1);
  const StepRequest request{0, 0, shares.of_replica[0], 2};
  const auto first = ahead->shared_step(request), second = ahead->shared_step(request);
  EXPECT_EQ(first, second);
  ASSERT_FALSE(first->empty());
  EXPECT_EQ((*first)[0].ids, plain->step(request)[0].ids);
}

// While a rank computes, the next step is made.
TEST(Prefetch, WaitsLessThanReadingTakes) {
  const auto plain = std::make_shared<CountingSource>();
  plain->takes = std::chrono::milliseconds(20);
  const auto ahead = prefetched(plain, 2, 1);
  const Shares shares = Shares::even(1, 1, 1);
  const auto waited_ms = [](const BatchSource& source, const StepRequest& request) {
    const auto start = std::chrono::steady_clock::now();
    source.step(request);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  double waited = 0;
  for (int64_t i = 0; i < 6; ++i) {
    const double ms = waited_ms(*ahead, {i, i, shares.of_replica[0], 1});
    if (i > 0) waited += ms;
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
  EXPECT_LT(waited, 5 * 20 / 2);
  EXPECT_GE(waited_ms(*plain, {0, 0, shares.of_replica[0]}), 19);
}

}  // namespace
}  // namespace megatron
