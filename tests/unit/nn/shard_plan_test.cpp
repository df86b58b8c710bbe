#include "megatron/nn/shard_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "megatron/base/error.h"

namespace megatron {
namespace {

Box random_box(std::mt19937& random, const Shape& shape) {
  Box box{shape, shape};
  for (int i = 0; i < shape.rank(); ++i) {
    box.offset[i] = static_cast<int64_t>(random() % static_cast<uint32_t>(shape[i]));
    box.extent[i] = static_cast<int64_t>(random() % static_cast<uint32_t>(shape[i] - box.offset[i] + 1));
  }
  return box;
}

bool holds(const Box& box, const Shape& place) {
  for (int i = 0; i < place.rank(); ++i)
    if (place[i] < box.offset[i] || place[i] >= box.offset[i] + box.extent[i]) return false;
  return true;
}

TEST(Box, DifferenceAndIntersectionShareOutEveryElement) {
  std::mt19937 random(1);
  const Shape shape{4, 5, 3};
  for (int round = 0; round < 500; ++round) {
    const Box a = random_box(random, shape), b = random_box(random, shape);
    const std::vector<Box> rest = subtract(a, b);
    const std::optional<Box> both = intersect(a, b);
    for (int64_t i = 0; i < shape.numel(); ++i) {
      const Shape place{i / 15, i / 3 % 5, i % 3};
      int count = both && holds(*both, place) ? 1 : 0;
      EXPECT_EQ(count == 1, holds(a, place) && holds(b, place));
      for (const Box& part : rest) {
        EXPECT_GT(part.volume(), 0);
        count += holds(part, place) ? 1 : 0;
      }
      ASSERT_EQ(count, holds(a, place) ? 1 : 0) << a.str() << " without " << b.str();
    }
  }
}

TEST(Box, OfNoDimensions) {
  EXPECT_TRUE(intersect(Box{}, Box{}).has_value());
  EXPECT_TRUE(subtract(Box{}, Box{}).empty());
  EXPECT_EQ(Box{}.volume(), 1);
}

std::string message_of(const ShardSpec& spec) {
  try {
    check_shard(spec, "w");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ShardSpec, ChecksItsBlocks) {
  EXPECT_EQ(message_of(ShardSpec::split({8, 4}, 0, 1, 2)), "");
  ShardSpec outside = ShardSpec::split({8, 4}, 0, 1, 2);
  outside.blocks[0].global_offset[0] = 5;
  EXPECT_EQ(message_of(outside), "w: the block [5:9, 0:4] is outside [8, 4]");
  ShardSpec local = ShardSpec::split({8, 4}, 0, 1, 2);
  local.blocks[0].local_offset[0] = 1;
  EXPECT_EQ(message_of(local), "w: the block [1:5, 0:4] is outside its shard [4, 4]");
  ShardSpec twice = ShardSpec::whole({8});
  twice.blocks.push_back(twice.blocks[0]);
  EXPECT_EQ(message_of(twice), "w: the blocks [0:8] and [0:8] overlap");
}

TEST(ShardSpec, NeighboursAreOneBlock) {
  const int64_t parts[] = {8, 16};
  EXPECT_EQ(ShardSpec::split_parts({24, 2}, 0, parts, 0, 1).blocks.size(), 1u);
  EXPECT_EQ(ShardSpec::split_parts({24, 2}, 0, parts, 0, 2).blocks.size(), 2u);
  const ShardSpec::Range ranges[] = {{0, 2}, {2, 5}, {7, 8}};
  const ShardSpec spec = ShardSpec::ranges({8, 2}, 0, ranges);
  EXPECT_EQ(spec.local_shape, (Shape{6, 2}));
  ASSERT_EQ(spec.blocks.size(), 2u);
  EXPECT_EQ(spec.blocks[0].extent, (Shape{5, 2}));
  EXPECT_EQ(spec.blocks[1].local_offset, (Shape{5, 0}));
}

// Runs a plan on memories that hold the global index of each element.
void expect_moves(const std::vector<ShardSpec>& sources, const std::vector<ShardSpec>& targets) {
  const TransferPlan plan = plan_transfers(sources, targets);
  EXPECT_TRUE(plan.missing.empty());
  const auto fill = [](const ShardSpec& spec) {
    std::map<std::pair<int64_t, int64_t>, int64_t> memory;
    for (const ShardBlock& block : spec.blocks)
      for (int64_t i = 0; i < block.extent[0]; ++i)
        for (int64_t j = 0; j < block.extent[1]; ++j)
          memory[{block.local_offset[0] + i, block.local_offset[1] + j}] =
              (block.global_offset[0] + i) * 1000 + block.global_offset[1] + j;
    return memory;
  };
  std::vector<std::map<std::pair<int64_t, int64_t>, int64_t>> from, to(targets.size());
  for (const ShardSpec& spec : sources) from.push_back(fill(spec));
  for (const Transfer& t : plan.transfers)
    for (int64_t i = 0; i < t.extent[0]; ++i)
      for (int64_t j = 0; j < t.extent[1]; ++j) {
        const int64_t value = from[t.source].at({t.source_offset[0] + i, t.source_offset[1] + j});
        EXPECT_TRUE(
            to[t.target].emplace(std::pair(t.target_offset[0] + i, t.target_offset[1] + j), value).second)
            << "an element was sent twice";
      }
  for (size_t i = 0; i < targets.size(); ++i) EXPECT_EQ(to[i], fill(targets[i])) << "target " << i;
}

TEST(PlanTransfers, BetweenAnyTwoLayouts) {
  const Shape shape{24, 12};
  const int64_t parts[] = {8, 16};
  std::vector<std::vector<ShardSpec>> layouts(7);
  layouts[0] = {ShardSpec::whole(shape)};
  for (int rank = 0; rank < 4; ++rank) layouts[1].push_back(ShardSpec::split(shape, 0, rank, 4));
  for (int rank = 0; rank < 3; ++rank) layouts[2].push_back(ShardSpec::split(shape, 1, rank, 3));
  for (int rank = 0; rank < 4; ++rank) layouts[3].push_back(ShardSpec::split_parts(shape, 0, parts, rank, 4));
  layouts[4] = {ShardSpec::whole(shape), ShardSpec::whole(shape)};  // replicas
  const ShardSpec::Range first[] = {{20, 24}, {0, 3}, {9, 10}},
                         second[] = {{3, 9}, {10, 20}};  // uneven, permuted
  layouts[5] = {ShardSpec::ranges(shape, 0, first), ShardSpec::ranges(shape, 0, second)};
  for (int rank = 0; rank < 2; ++rank) {  // two replicas of different layouts
    layouts[6].push_back(ShardSpec::split(shape, 0, rank, 2));
    layouts[6].push_back(ShardSpec::split(shape, 0, rank + 1, 3));
  }
  for (const auto& sources : layouts)
    for (const auto& targets : layouts) expect_moves(sources, targets);
}

TEST(PlanTransfers, OwnMemoryComesFirstAndReplicasShareTheRest) {
  const std::vector<ShardSpec> replicas(3, ShardSpec::whole({6, 2}));
  for (const Transfer& transfer : plan_transfers(replicas, replicas).transfers)
    EXPECT_EQ(transfer.source, transfer.target);
}

// Gate and up of rank 1 of 2, [2 + 2, 4] of [8, 4]: the rows in the middle of what it holds come from both.
TEST(ShardWithin, KeepsTheBlocksThatTheBoxMeets) {
  const int64_t parts[] = {4, 4};
  const ShardSpec shard = ShardSpec::split_parts({8, 4}, 0, parts, 1, 2);
  const ShardSpec middle = shard_within(shard, {{1, 2}, {2, 2}});
  check_shard(middle, "middle");
  EXPECT_EQ(middle.local_shape, (Shape{2, 2}));
  ASSERT_EQ(middle.blocks.size(), 2u);
  EXPECT_EQ(middle.blocks[0].global_offset, (Shape{3, 2}));
  EXPECT_EQ(middle.blocks[0].local_offset, (Shape{0, 0}));
  EXPECT_EQ(middle.blocks[1].global_offset, (Shape{6, 2}));
  EXPECT_EQ(middle.blocks[1].local_offset, (Shape{1, 0}));
  EXPECT_EQ(middle.blocks[1].extent, (Shape{1, 2}));
  EXPECT_EQ(shard_within(shard, {{3, 0}, {1, 4}}).blocks.size(), 1u);
}

TEST(PlanTransfers, SaysWhatIsMissing) {
  const std::vector<ShardSpec> sources = {ShardSpec::split({8, 2}, 0, 0, 4),
                                          ShardSpec::split({8, 2}, 0, 2, 4)};
  const std::vector<ShardSpec> targets = {ShardSpec::whole({8, 2})};
  const TransferPlan plan = plan_transfers(sources, targets);
  ASSERT_EQ(plan.missing.size(), 2u);
  EXPECT_EQ(plan.missing[0].second.str(), "[2:4, 0:2]");
  EXPECT_EQ(plan.missing[1].second.str(), "[6:8, 0:2]");
}

TEST(PlanTransfers, RefusesDifferentWholes) {
  const std::vector<ShardSpec> sources = {ShardSpec::whole({8})}, targets = {ShardSpec::whole({9})};
  EXPECT_THROW(plan_transfers(sources, targets), Error);
}

}  // namespace
}  // namespace megatron
