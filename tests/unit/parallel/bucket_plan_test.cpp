#include "megatron/parallel/data/bucket_plan.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

std::vector<int64_t> offsets(const BucketPlan& bucket) {
  std::vector<int64_t> list;
  for (const BucketPlan::Place& place : bucket.places) list.push_back(place.offset);
  return list;
}

TEST(BucketPlan, WithoutShardsItemsAreAlignedAndEndsAreNotPadded) {
  const BucketItem items[] = {{100}, {30}, {7}, {200}};
  auto one = plan_buckets(items, {});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(offsets(one[0]), (std::vector<int64_t>{0, 128, 192, 256}));
  EXPECT_EQ(one[0].numel, 456);
  // A bucket ends with the item that fills it.
  auto two = plan_buckets(items, {.size = 110});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(offsets(two[0]), (std::vector<int64_t>{0, 128}));
  EXPECT_EQ(two[1].places[0].item, 2u);
  EXPECT_EQ(two[1].numel, 264);
}

TEST(BucketPlan, ShardsAreEvenAndItemsAligned) {
  const BucketItem items[] = {{100}, {30}, {7}, {200}};
  auto buckets = plan_buckets(items, {.size = 150, .shards = 3});
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(offsets(buckets[0]), (std::vector<int64_t>{0, 128}));
  EXPECT_EQ(buckets[0].unpadded, 158);
  EXPECT_EQ(buckets[0].numel, 384);  // lcm(3, 128)
  EXPECT_EQ(offsets(buckets[1]), (std::vector<int64_t>{0, 64}));
  EXPECT_EQ(buckets[1].numel, 384);
  EXPECT_EQ(plan_buckets(items, {.shards = 2, .large_pad = true})[0].numel, 65536);
}

TEST(BucketPlan, ATiedWeightStandsAlone) {
  const BucketItem items[] = {{100}, {64, true}, {7}};
  auto buckets = plan_buckets(items, {.shards = 2});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[1].places[0].item, 1u);
  EXPECT_EQ(buckets[1].numel, 128);
}

}  // namespace
}  // namespace megatron
