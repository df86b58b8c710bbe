#include "megatron/base/counted.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(Counted, NounsFollowTheirCount) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(2u, "process"), "2 processes");
  EXPECT_EQ(counted(16, "micro-batch"), "16 micro-batches");
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
}

}  // namespace
}  // namespace megatron
