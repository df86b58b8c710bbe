#include "megatron/parallel/replica_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace megatron {
namespace {

using Ranks = std::vector<int>;

ParallelSizes with_inactive(int tp, int dp, std::vector<InactiveSlots> inactive, int cp = 1, int pp = 1) {
  ParallelSizes sizes{.world = tp * dp * cp * pp, .tp = tp, .pp = pp, .cp = cp};
  sizes.inactive = std::move(inactive);
  return sizes;
}

std::vector<Ranks> lists_of(const ParallelSizes& sizes, Axis axis) {
  std::vector<Ranks> lists;
  for (const GroupRanks& group : parallel_groups(sizes))
    if (group.axis == axis) lists.push_back(group.ranks);
  return lists;
}

TEST(ReplicaLayout, PeersStayOnTheirRails) {
  const ParallelSizes sizes = with_inactive(8, 2, {{.dp = 1, .slots = {2, 5}}});
  const ReplicaLayout layout(sizes);
  EXPECT_EQ(layout.ranks(1, 0, 0), (Ranks{8, 9, 14, 11, 12, 15}));
  EXPECT_EQ(layout.sync(), 6);
  EXPECT_EQ(layout.idle(), (Ranks{10, 13}));
  EXPECT_EQ(lists_of(sizes, Axis::dp),
            (std::vector<Ranks>{{0, 8}, {1, 9}, {2, 14}, {3, 11}, {4, 12}, {5, 15}, {6}, {7}}));
}

TEST(ReplicaLayout, ThreeSizes) {
  const ParallelSizes sizes = with_inactive(8, 3, {{.dp = 1, .slots = {2}}, {.dp = 2, .slots = {0, 4}}});
  const ReplicaLayout layout(sizes);
  EXPECT_EQ(layout.tp_sizes(), (Ranks{8, 7, 6}));
  EXPECT_EQ(layout.ranks(1, 0, 0), (Ranks{8, 9, 15, 11, 12, 13, 14}));
  EXPECT_EQ(layout.ranks(2, 0, 0), (Ranks{22, 17, 18, 19, 23, 21}));
  EXPECT_EQ(lists_of(sizes, Axis::dp),
            (std::vector<Ranks>{
                {0, 8, 22}, {1, 9, 17}, {2, 15, 18}, {3, 11, 19}, {4, 12, 23}, {5, 13, 21}, {6}, {7}, {14}}));
}

TEST(ReplicaLayout, SmallestStageRules) {
  const ReplicaLayout layout(with_inactive(4, 2, {{.dp = 0, .cp = -1, .pp = 1, .slots = {1}}}, 1, 2));
  EXPECT_EQ(layout.tp_sizes(), (Ranks{3, 4}));
  EXPECT_EQ(layout.ranks(0, 0, 0), (Ranks{0, 1, 2}));  // slot 3 idles
  EXPECT_EQ(layout.ranks(0, 0, 1), (Ranks{8, 11, 10}));
}

// Invariant I5, over maps of any shape.
TEST(ReplicaLayout, EveryActiveRankHasItsGroups) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int tp = 2 + pick(7), dp = 1 + pick(3), cp = 1 + pick(2), pp = 1 + pick(2);
    std::vector<InactiveSlots> inactive;
    for (int i = 0; i <= pick(3); ++i)
      inactive.push_back(
          {.dp = pick(dp), .cp = pick(cp + 1) - 1, .pp = pick(pp + 1) - 1, .slots = {pick(tp)}});
    const ParallelSizes sizes = with_inactive(tp, dp, inactive, cp, pp);
    if (!inactive_problems(sizes).empty()) continue;
    const ReplicaLayout layout(sizes);
    std::map<int, int> position;
    for (const Ranks& list : lists_of(sizes, Axis::tp))
      for (size_t i = 0; i < list.size(); ++i)
        ASSERT_TRUE(position.emplace(list[i], static_cast<int>(i)).second);
    ASSERT_EQ(position.size(), layout.active().size());
    ASSERT_EQ(layout.active().size() + layout.idle().size(), static_cast<size_t>(sizes.world));
    for (const Ranks& list : lists_of(sizes, Axis::dp_cp)) {
      const int at = position.at(list[0]);
      for (int rank : list) ASSERT_EQ(position.at(rank), at);
      ASSERT_EQ(list.size(), at < layout.sync() ? static_cast<size_t>(dp * cp) : 1U);
    }
    for (const Ranks& list : lists_of(sizes, Axis::pp)) {
      ASSERT_EQ(list.size(), static_cast<size_t>(pp));
      for (int rank : list) ASSERT_EQ(position.at(rank), position.at(list[0]));
    }
  }
}

TEST(ReplicaLayout, Refusals) {
  EXPECT_FALSE(inactive_problems(with_inactive(4, 2, {{.dp = 2, .slots = {0}}})).empty());
  EXPECT_FALSE(inactive_problems(with_inactive(4, 2, {{.dp = 0, .slots = {4}}})).empty());
  EXPECT_FALSE(inactive_problems(with_inactive(2, 2, {{.dp = 0, .slots = {0, 1}}})).empty());
  ParallelSizes experts = with_inactive(4, 2, {{.dp = 0, .slots = {1}}});
  experts.ep = 2;
  EXPECT_FALSE(inactive_problems(experts).empty());
  EXPECT_TRUE(inactive_problems(with_inactive(4, 2, {{.dp = 0, .slots = {1}}})).empty());
}

}  // namespace
}  // namespace megatron
