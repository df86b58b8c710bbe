#include "megatron/parallel/parallel_groups.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

namespace megatron {
namespace {

RankLists lists(const ParallelSizes& sizes, Axis axis, int level = 0) {
  RankLists result;
  for (const GroupRanks& group : parallel_groups(sizes))
    if (group.axis == alias(axis, sizes) && group.level == level) result.push_back(group.ranks);
  return result;
}

TEST(RankGrid, CoordinatesInvertTheGrid) {
  const RankGrid grid({{"a", 2}, {"b", 3}, {"c", 4}}, 5);
  EXPECT_EQ(grid.size(), 24);
  for (int rank = 5; rank < 29; ++rank)
    EXPECT_EQ(
        5 + grid.coordinate(rank, "a") + 2 * grid.coordinate(rank, "b") + 6 * grid.coordinate(rank, "c"),
        rank);
}

TEST(RankGrid, Refusals) {
  EXPECT_THROW(RankGrid({{"a", 0}}), ConfigError);
  EXPECT_THROW(RankGrid({{"a", 2}, {"a", 2}}), ConfigError);
  EXPECT_THROW(RankGrid({{"a", 1 << 20}, {"b", 1 << 20}}), ConfigError);
  EXPECT_THROW(RankGrid({{"a", 2}}).groups("b"), ConfigError);
  EXPECT_THROW(RankGrid::ordered({{"a", 2}}, "a-b"), ConfigError);
  EXPECT_THROW(RankGrid::ordered({{"a", 2}}, "a-a"), ConfigError);
  EXPECT_THROW(RankGrid::ordered({{"a", 2}, {"b", 2}}, "a"), ConfigError);
  EXPECT_EQ(RankGrid::ordered({{"b", 1}, {"a", 2}}, "a").groups("a"), (RankLists{{0, 1}}));
}

TEST(RankGrid, Hierarchy) {
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto small_first = hierarchical_groups(ranks, {2, 4});
  EXPECT_EQ(small_first[0], (RankLists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(small_first[1], (RankLists{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  const auto large_first = hierarchical_groups(ranks, {4, 2});
  EXPECT_EQ(large_first[0], (RankLists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(large_first[1], (RankLists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_THROW(hierarchical_groups(ranks, {2, 2}), ConfigError);
}

TEST(ParallelGroups, EveryRankIsOnceInEveryKind) {
  ParallelSizes sizes;
  sizes.world = 64;
  sizes.tp = 2, sizes.pp = 2, sizes.cp = 2, sizes.ep = 4, sizes.etp = 1;
  sizes.optimizer_instances = 2;
  for (Axis axis : all_axes()) {
    if (axis == Axis::embd || axis == Axis::pos_embd || axis == Axis::cp_level || axis == Axis::hybrid_dp_cp)
      continue;
    std::vector<int> seen(64, 0);
    for (const auto& group : lists(sizes, axis))
      for (int rank : group) ++seen[static_cast<size_t>(rank)];
    EXPECT_EQ(seen, std::vector<int>(64, 1)) << axis_name(axis);
  }
}

TEST(ParallelGroups, OptimizerInstances) {
  ParallelSizes sizes;
  sizes.world = 8;
  sizes.optimizer_instances = 2;
  sizes.tp = 2;
  EXPECT_EQ(lists(sizes, Axis::intra_dp_cp), (RankLists{{0, 2}, {4, 6}, {1, 3}, {5, 7}}));
  EXPECT_EQ(lists(sizes, Axis::intra_edp), (RankLists{{0, 2}, {4, 6}, {1, 3}, {5, 7}}));
  EXPECT_EQ(lists(sizes, Axis::inter_edp), (RankLists{{0, 4}, {2, 6}, {1, 5}, {3, 7}}));
  EXPECT_EQ(lists(sizes, Axis::dist_opt), (RankLists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  sizes.optimizer_instances = 1;
  EXPECT_EQ(lists(sizes, Axis::intra_dp_cp), lists(sizes, Axis::dp_cp));
}

TEST(ParallelGroups, WeightShardsBeyondTensorParallel) {
  ParallelSizes sizes;
  sizes.world = 16;
  sizes.tp = 2, sizes.gtp = 2;
  EXPECT_EQ(sizes.dp(), 4);
  EXPECT_EQ(lists(sizes, Axis::gtp)[0], (std::vector<int>{0, 2}));
  EXPECT_EQ(lists(sizes, Axis::dp)[0], (std::vector<int>{0, 4, 8, 12}));
  EXPECT_EQ(lists(sizes, Axis::gtp_dp)[0], (std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_EQ(lists(sizes, Axis::dist_opt).size(), 1u);
}

TEST(ParallelGroups, ContextLevelsAndHybrid) {
  ParallelSizes sizes;
  sizes.world = 8;
  sizes.cp = 8;
  sizes.cp_levels = {2, 4};
  sizes.hybrid_cp = true;
  EXPECT_EQ(lists(sizes, Axis::cp_level, 0), (RankLists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(lists(sizes, Axis::cp_level, 1), (RankLists{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(lists(sizes, Axis::hybrid_dp_cp, 0), (RankLists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(lists(sizes, Axis::hybrid_dp_cp, 1), (RankLists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_TRUE(lists(sizes, Axis::hybrid_dp_cp, 2).empty());
}

TEST(ParallelGroups, ProblemsComeAllAtOnceWithAdvice) {
  ParallelSizes sizes;
  sizes.world = 12;
  sizes.tp = 8, sizes.ep = 5;
  EXPECT_EQ(parallel_problems(sizes).size(), 2u);
  EXPECT_THROW(check_parallel(sizes), ConfigError);
  sizes = {};
  sizes.tp = 0, sizes.pp = -1;
  EXPECT_EQ(parallel_problems(sizes).size(), 3u);  // etp follows tp
  sizes = {};
  sizes.world = 6;
  sizes.optimizer_instances = 4;
  EXPECT_EQ(parallel_problems(sizes).size(), 2u);
  sizes = {};
  sizes.world = 4, sizes.cp = 4, sizes.cp_levels = {3};
  EXPECT_EQ(parallel_problems(sizes).size(), 1u);
  sizes = {};
  sizes.world = 8, sizes.tp = 2, sizes.order = "cp-dp";
  EXPECT_EQ(parallel_problems(sizes).size(), 1u);
  // The pipeline is not outermost and the two grids disagree on what lies inside it.
  sizes = {};
  sizes.world = 8, sizes.pp = 2, sizes.cp = 2, sizes.order = "tp-dp-pp-cp-ep";
  EXPECT_FALSE(parallel_problems(sizes).empty());
}

}  // namespace
}  // namespace megatron
