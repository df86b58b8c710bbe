#include "megatron/parallel/parallel_context.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/comm/run_ranks.h"

namespace megatron {
namespace {

int sum_over(const ProcessGroup& group, int value) {
  Tensor tensor = Tensor::wrap(&value, {1}, DType::I32);
  group.all_reduce(tensor).wait();
  return value;
}

TEST(ParallelContext, EveryGroupIsTheOneOfItsList) {
  ParallelSizes sizes;
  sizes.world = 16;
  sizes.tp = 2, sizes.cp = 2, sizes.pp = 2, sizes.ep = 2, sizes.etp = 1;
  const std::vector<GroupRanks> lists = parallel_groups(sizes);
  run_ranks(16, [&](int rank, ProcessGroup& world) {
    const ParallelContext context = ParallelContext::from_sizes(world, sizes);
    for (Axis axis : all_axes()) {
      const auto mine = std::find_if(lists.begin(), lists.end(), [&](const GroupRanks& list) {
        return list.axis == alias(axis, sizes) && std::count(list.ranks.begin(), list.ranks.end(), rank) > 0;
      });
      ASSERT_EQ(context.has(axis), mine != lists.end()) << axis_name(axis);
      if (mine == lists.end()) continue;
      ASSERT_EQ(context.group(axis).world_ranks(), mine->ranks) << axis_name(axis);
      ASSERT_EQ(mine->ranks[static_cast<size_t>(context.rank(axis))], rank);
      int expected = 0;
      for (int member : mine->ranks) expected += member;
      ASSERT_EQ(sum_over(context.group(axis), rank), expected) << axis_name(axis);
    }
    EXPECT_EQ(context.first_stage(), rank < 8);
    EXPECT_EQ(context.last_stage(), rank >= 8);
    EXPECT_EQ(context.size(Axis::intra_dp_cp), 4);
  });
}

TEST(ParallelContext, GroupsNeedNotBeEqual) {
  // One replica of tensor-parallel size 3, one of size 2, as after a loss of one rank.
  const std::vector<GroupRanks> lists = {
      {Axis::tp, 0, {0, 1, 2}}, {Axis::tp, 0, {4, 3}}, {Axis::dp, 0, {0, 4}}};
  run_ranks(5, [&](int rank, ProcessGroup& world) {
    const ParallelContext context(world, lists);
    EXPECT_EQ(context.size(Axis::tp), rank < 3 ? 3 : 2);
    EXPECT_EQ(context.rank(Axis::tp), rank < 3 ? rank : 4 - rank);
    EXPECT_EQ(context.has(Axis::dp), rank == 0 || rank == 4);
    EXPECT_EQ(sum_over(context.group(Axis::tp), 1), context.size(Axis::tp));
    if (!context.has(Axis::dp)) {
      EXPECT_THROW(context.group(Axis::dp), Error);
    }
  });
}

TEST(ParallelContext, AloneAndOverview) {
  const ParallelContext alone;
  EXPECT_EQ(alone.size(Axis::tp), 1);
  EXPECT_EQ(alone.size(Axis::gtp_dp_cp), 1);
  EXPECT_TRUE(alone.first_stage() && alone.last_stage());
  EXPECT_EQ(alone.overview(), "rank 0 of 1\n");
  ParallelSizes sizes;
  sizes.world = 4, sizes.tp = 2;
  run_ranks(4, [&](int rank, ProcessGroup& world) {
    const ParallelContext context = ParallelContext::from_sizes(world, sizes);
    EXPECT_EQ(context.group(Axis::pp).world_ranks(), std::vector<int>{rank});
    if (rank != 3) return;
    EXPECT_NE(context.overview().find("rank 3 of 4\n"), std::string::npos);
    EXPECT_NE(context.overview().find("tp              1 of 2  [2 3]\n"), std::string::npos)
        << context.overview();
    EXPECT_EQ(context.overview().find("\n  pp "), std::string::npos);
  });
}

TEST(ParallelContext, RefusesListsThatCannotBe) {
  const ProcessGroup self = ProcessGroup::self();
  EXPECT_THROW(ParallelContext(self, {{Axis::tp, 0, {}}}), Error);
  EXPECT_THROW(ParallelContext(self, {{Axis::tp, 0, {1}}}), Error);
  EXPECT_THROW(ParallelContext(self, {{Axis::tp, 0, {0}}, {Axis::tp, 0, {0}}}), Error);
  ParallelSizes sizes;
  sizes.world = 2;
  EXPECT_THROW(ParallelContext::from_sizes(self, sizes), ConfigError);
}

}  // namespace
}  // namespace megatron
