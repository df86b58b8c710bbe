#include "megatron/parallel/data/shares.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron {
namespace {

std::vector<size_t> counts(const Shares& shares) {
  std::vector<size_t> list;
  for (const auto& own : shares.of_replica) list.push_back(own.size());
  return list;
}

TEST(Shares, WeightsDecideWhoGetsMore) {
  EXPECT_EQ(counts(Shares::weighted(14, 1, {8, 6})), (std::vector<size_t>{8, 6}));
  EXPECT_EQ(counts(Shares::weighted(24, 2, {4, 2})), (std::vector<size_t>{8, 4}));
  EXPECT_EQ(counts(Shares::weighted(8, 1, {4, 1})), (std::vector<size_t>{7, 1}));
  EXPECT_EQ(counts(Shares::weighted(4, 1, {8, 1, 1, 1})), (std::vector<size_t>{1, 1, 1, 1}));
  EXPECT_EQ(counts(Shares::weighted(24, 1, {8, 7, 6}, 2)), (std::vector<size_t>{10, 8, 6}));
}

TEST(Shares, EverySampleIsInOne) {
  const Shares shares = Shares::weighted(30, 3, {8, 7, 6});
  int64_t next = 0;
  for (const auto& own : shares.of_replica)
    for (const Share& share : own) {
      EXPECT_EQ(share.first, next);
      next += share.count;
    }
  EXPECT_EQ(next, 30);
  EXPECT_EQ(shares.batches(), 10);
  EXPECT_EQ(shares.samples(), 30);
}

TEST(Shares, EqualWeightsShareEvenly) {
  EXPECT_EQ(Shares::weighted(12, 2, {3, 3}).of_replica, Shares::even(12, 2, 2).of_replica);
}

TEST(Shares, RefusesTooFew) {
  EXPECT_THROW(Shares::weighted(2, 1, {4, 2, 2}), Error);
  EXPECT_THROW(Shares::weighted(5, 2, {4, 2}), Error);
}

}  // namespace
}  // namespace megatron
