#include "megatron/nn/unit_map.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace megatron {
namespace {

using List = std::vector<int64_t>;

List owned(const UnitMap& map) { return {map.owned().begin(), map.owned().end()}; }

std::vector<List> folded(int64_t units, int size, int sync) {
  std::vector<List> lists;
  for (int rank = 0; rank < size; ++rank) lists.push_back(owned(UnitMap::folded(units, rank, size, sync)));
  return lists;
}

// Invariants I1 and I2: every unit once, equal loads, heads of chunks on cores, tails in order on extras.
void check_plan(int64_t units, int size, int sync) {
  const std::vector<List> own = folded(units, size, sync);
  std::vector<int> seen(static_cast<size_t>(units), 0);
  size_t least = own[0].size(), most = least, messages = 0;
  List tails;
  for (int rank = 0; rank < size; ++rank) {
    const List& list = own[static_cast<size_t>(rank)];
    ASSERT_TRUE(std::is_sorted(list.begin(), list.end()));
    for (int64_t unit : list) ++seen[static_cast<size_t>(unit)];
    least = std::min(least, list.size());
    most = std::max(most, list.size());
  }
  ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), units) << units << " " << size << " " << sync;
  ASSERT_LE(most - least, 1U);
  int64_t next = 0;
  for (int position = 0; position < sync; ++position) {
    const UnitMap map = UnitMap::folded(units, position, size, sync);
    const List chunk = owned(map.sync()), &head = own[static_cast<size_t>(position)];
    ASSERT_EQ(chunk, owned(UnitMap::even(units, position, sync)));
    for (int64_t unit : chunk) ASSERT_EQ(unit, next++);
    ASSERT_TRUE(std::equal(head.begin(), head.end(), chunk.begin())) << units << " " << size << " " << sync;
    tails.insert(tails.end(), chunk.begin() + static_cast<std::ptrdiff_t>(head.size()), chunk.end());
    for (int extra = sync; extra < size; ++extra) {
      const List& list = own[static_cast<size_t>(extra)];
      const auto inside = [&](int64_t unit) { return map.sync().slot(unit) >= 0; };
      messages += std::any_of(list.begin(), list.end(), inside) ? 1 : 0;
    }
  }
  ASSERT_EQ(next, units);
  List extras;
  for (int extra = sync; extra < size; ++extra) {
    const List& list = own[static_cast<size_t>(extra)];
    extras.insert(extras.end(), list.begin(), list.end());
    ASSERT_TRUE(owned(UnitMap::folded(units, extra, size, sync).sync()).empty());
  }
  ASSERT_EQ(extras, tails);
  ASSERT_LE(messages, static_cast<size_t>(size - 1));
}

TEST(UnitMap, EveryUnitHasOneHolderAndOneOwner) {
  for (int64_t units = 1; units <= 128; ++units)
    for (int size = 1; size <= 16 && size <= units; ++size)
      for (int sync = 1; sync <= size; ++sync) check_plan(units, size, sync);
}

TEST(UnitMap, KnownPlans) {
  EXPECT_EQ(folded(24, 8, 6), (std::vector<List>{{0, 1, 2},
                                                 {4, 5, 6},
                                                 {8, 9, 10},
                                                 {12, 13, 14},
                                                 {16, 17, 18},
                                                 {20, 21, 22},
                                                 {3, 7, 11},
                                                 {15, 19, 23}}));
  EXPECT_EQ(folded(24, 7, 6)[6], (List{15, 19, 23}));
  EXPECT_EQ(folded(24, 7, 6)[0], (List{0, 1, 2, 3}));
  EXPECT_EQ(folded(10, 8, 6), (std::vector<List>{{0, 1}, {2, 3}, {4}, {6}, {8}, {9}, {5}, {7}}));
  EXPECT_EQ(folded(22, 8, 6)[6], (List{3, 7}));
  EXPECT_EQ(folded(22, 8, 6)[7], (List{11, 15}));
  EXPECT_EQ(folded(32, 8, 7)[7], (List{4, 9, 14, 19}));
  EXPECT_EQ(folded(8, 4, 2)[2], (List{2, 3}));
  EXPECT_EQ(owned(UnitMap::even(10, 1, 4)), (List{3, 4, 5}));
}

TEST(UnitMap, SlotsAndRuns) {
  const UnitMap extra = UnitMap::folded(24, 6, 8, 6), core = UnitMap::folded(24, 1, 8, 6);
  EXPECT_EQ(extra.slot(7), 1);
  EXPECT_EQ(extra.slot(6), -1);
  EXPECT_FALSE(extra.contiguous());
  EXPECT_TRUE(core.contiguous());
}

TEST(UnitMap, ShardsFollowBlocks) {
  // A gated fc1 of 48 columns in units of 2: rank 6 holds units 3, 7, 11 of gate and up.
  const std::vector<int64_t> parts = {48, 48};
  const ShardSpec shard = unit_shard({96, 4}, 0, unit_blocks(parts, 24), UnitMap::folded(24, 6, 8, 6));
  EXPECT_EQ(shard.local_shape, (Shape{12, 4}));
  List rows;
  for (const ShardBlock& block : shard.blocks)
    for (int64_t i = 0; i < block.extent[0]; ++i) rows.push_back(block.global_offset[0] + i);
  EXPECT_EQ(rows, (List{6, 7, 14, 15, 22, 23, 54, 55, 62, 63, 70, 71}));
}

TEST(UnitMap, PaddingBelongsToNoBlock) {
  const UnitBlock block{0, 4};
  const ShardSpec shard = unit_shard({10}, 0, {&block, 1}, UnitMap::even(3, 1, 2));  // unit 2: rows 8 to 12
  EXPECT_EQ(shard.local_shape, (Shape{4}));
  ASSERT_EQ(shard.blocks.size(), 1U);
  EXPECT_EQ(shard.blocks[0].extent, (Shape{2}));
}

TEST(UnitMap, UnitsAreAsLargeAsBalanceAllows) {
  const std::vector<int> sizes = {8, 7, 6}, domain = {32, 30, 28}, odd = {8, 7};
  EXPECT_EQ(unit_extent(14336, std::vector<int>{8}), 128);
  EXPECT_EQ(unit_extent(81920, domain), 64);
  EXPECT_EQ(unit_extent(11008, sizes), 32);
  EXPECT_LT(unit_extent(1024, odd), 128);
}

}  // namespace
}  // namespace megatron
