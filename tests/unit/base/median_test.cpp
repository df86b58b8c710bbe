#include "megatron/base/median.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(Median, OfOddAndEvenNumbers) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1}), 3);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 9, 2}), 3);
}

}  // namespace
}  // namespace megatron
