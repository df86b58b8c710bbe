#include "megatron/inference/block_pool.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron {
namespace {

using Tokens = std::vector<int64_t>;

TEST(BlockPool, CountsReferences) {
  BlockPool pool(2, true);
  const int64_t a = *pool.allocate(), b = *pool.allocate();
  EXPECT_NE(a, b);
  EXPECT_FALSE(pool.allocate().has_value());
  pool.share(a);
  pool.release(a);
  EXPECT_EQ(pool.used(), 2);
  pool.release(a);
  EXPECT_EQ(pool.used(), 1);
  EXPECT_EQ(pool.allocate(), a);
  pool.release(a);
  EXPECT_THROW(pool.release(a), Error);
}

TEST(BlockPool, FindsPrefixesByTheirChain) {
  BlockPool pool(4, true);
  const int64_t a = *pool.allocate(), b = *pool.allocate(), c = *pool.allocate();
  const uint64_t first = pool.publish(a, BlockPool::kRoot, Tokens{1, 2});
  const uint64_t second = pool.publish(b, first, Tokens{1, 2});
  EXPECT_NE(first, second);
  EXPECT_EQ(pool.find(BlockPool::kRoot, Tokens{1, 2})->block, a);
  EXPECT_EQ(pool.find(first, Tokens{1, 2})->block, b);
  EXPECT_FALSE(pool.find(second, Tokens{1, 2}).has_value());
  EXPECT_FALSE(pool.find(first, Tokens{2, 1}).has_value());
  EXPECT_EQ(pool.publish(c, first, Tokens{1, 2}), second) << "the block that was first stays";
  EXPECT_EQ(pool.find(first, Tokens{1, 2})->block, b);
}

TEST(BlockPool, ForgetsTheLongestUnusedPrefix) {
  BlockPool pool(2, true);
  const int64_t a = *pool.allocate(), b = *pool.allocate();
  const uint64_t first = pool.publish(a, BlockPool::kRoot, Tokens{1});
  pool.publish(b, first, Tokens{2});
  pool.release(b);
  pool.release(a);
  EXPECT_EQ(pool.cached(), 2);
  EXPECT_EQ(pool.used(), 0);
  pool.share(b);  // used again: now the other goes first
  pool.release(b);
  EXPECT_EQ(pool.allocate(), a);
  EXPECT_FALSE(pool.find(BlockPool::kRoot, Tokens{1}).has_value());
  // What stands behind a forgotten prefix is not found under another one's number.
  const uint64_t other = pool.publish(a, BlockPool::kRoot, Tokens{9});
  EXPECT_FALSE(pool.find(other, Tokens{2}).has_value());
}

TEST(BlockPool, KeepsNothingThatIsUnusedIfToldSo) {
  BlockPool pool(1, false);
  const int64_t a = *pool.allocate();
  pool.publish(a, BlockPool::kRoot, Tokens{1});
  pool.release(a);
  EXPECT_EQ(pool.cached(), 0);
  EXPECT_FALSE(pool.find(BlockPool::kRoot, Tokens{1}).has_value());
}

}  // namespace
}  // namespace megatron
