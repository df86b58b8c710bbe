#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron {
namespace {

Json golden(const std::string& name) {
  return Json::read(std::string(MEGATRON_GOLDEN_DIR) + "/megatron_parallel/" + name + ".json");
}

std::vector<int> ranks(const Json& list) {
  std::vector<int> result;
  for (const Json& rank : list.as_array()) result.push_back(static_cast<int>(rank.as_int()));
  return result;
}

RankLists rank_lists(const Json& lists) {
  RankLists result;
  for (const Json& list : lists.as_array()) result.push_back(ranks(list));
  return result;
}

int number(const Json& object, std::string_view key) { return static_cast<int>(object.at(key).as_int()); }

TEST(RankGroups, MatchForEveryConfiguration) {
  const Json file = golden("rank_groups");
  ASSERT_EQ(file.at("cases").size(), 64u);
  for (const Json& row : file.at("cases").as_array()) {
    SCOPED_TRACE(row.dump().substr(0, 120));
    const std::string& order = row.at("order").as_string();
    const int pp = number(row, "pp");
    const RankGrid dense =
        parallel_grid({number(row, "tp"), 1, number(row, "dp"), pp, number(row, "cp")}, order);
    const RankGrid expert =
        parallel_grid({number(row, "etp"), number(row, "ep"), number(row, "edp"), pp, 1}, order);
    EXPECT_EQ(dense.size(), number(row, "world"));
    for (const auto& [axes, lists] : row.at("dense").at("ok").as_object()) {
      if (axes == "embedding" || axes == "position_embedding") continue;
      EXPECT_EQ(dense.groups(axes), rank_lists(lists)) << axes;
    }
    for (const auto& [axes, lists] : row.at("expert").at("ok").as_object())
      EXPECT_EQ(expert.groups(axes), rank_lists(lists)) << "expert " << axes;
    RankLists embedding, position;
    for (const auto& pipeline : dense.groups("pp")) {
      embedding.push_back(embedding_ranks(pipeline));
      position.push_back(position_embedding_ranks(pipeline));
    }
    EXPECT_EQ(embedding, rank_lists(row.at("dense").at("ok").at("embedding")));
    EXPECT_EQ(position, rank_lists(row.at("dense").at("ok").at("position_embedding")));
  }
  const RankGrid shifted = parallel_grid({2, 1, 2, 2, 1}, "tp-cp-ep-dp-pp", 8);
  for (const auto& [axes, lists] : file.at("rank_offset_8_tp2dp2pp2").as_object())
    EXPECT_EQ(shifted.groups(axes), rank_lists(lists)) << axes;
}

TEST(RankGroups, RefuseWhatUpstreamRefuses) {
  const Json file = golden("rank_groups");
  ASSERT_EQ(file.at("errors").size(), 2u);
  for (const Json& row : file.at("errors").as_array()) {
    ASSERT_TRUE(row.at("result").contains("raises"));
    const Json& kw = row.at("kw");
    const GridSizes sizes{number(kw, "tp"), number(kw, "ep"), number(kw, "dp"), number(kw, "pp"),
                          number(kw, "cp")};
    EXPECT_THROW(parallel_grid(sizes, kw.at("order").as_string()), ConfigError) << kw.dump();
  }
}

TEST(HyperCommGrid, Matches) {
  const Json file = golden("hyper_comm_grid");
  ASSERT_EQ(file.size(), 5u);
  for (const Json& row : file.as_array()) {
    std::vector<GridAxis> axes;
    for (size_t i = 0; i < row.at("dims").size(); ++i)
      axes.push_back({row.at("dims")[i].as_string(), static_cast<int>(row.at("shape")[i].as_int())});
    const Json* offset = row.find("rank_offset");
    const RankGrid grid(axes, offset ? static_cast<int>(offset->as_int()) : 0);
    for (const auto& [dims, lists] : row.at("groups").as_object())
      EXPECT_EQ(grid.groups(dims), rank_lists(lists)) << dims;
  }
}

// A rank's place in its own group of an axis.
int rank_in(const std::vector<GroupRanks>& groups, Axis axis, int rank, int* size = nullptr) {
  for (const GroupRanks& group : groups) {
    if (group.axis != axis) continue;
    const auto found = std::find(group.ranks.begin(), group.ranks.end(), rank);
    if (found == group.ranks.end()) continue;
    if (size) *size = static_cast<int>(group.ranks.size());
    return static_cast<int>(found - group.ranks.begin());
  }
  return -1;
}

TEST(InitializeTrace, SameGroupsInTheSameSequence) {
  int refused = 0, traced = 0;
  const Json file = golden("initialize_trace");
  for (const Json& row : file.as_array()) {
    const Json& args = row.at("args");
    SCOPED_TRACE(args.dump());
    ParallelSizes sizes;
    sizes.world = number(row, "world");
    sizes.tp = number(args, "tensor_model_parallel_size");
    sizes.pp = number(args, "pipeline_model_parallel_size");
    sizes.cp = number(args, "context_parallel_size");
    sizes.ep = number(args, "expert_model_parallel_size");
    sizes.etp = number(args, "expert_tensor_parallel_size");
    sizes.order = args.at("order").as_string();
    if (!row.at("error").is_null()) {
      EXPECT_THROW(parallel_groups(sizes), ConfigError);
      ++refused;
      continue;
    }
    const std::vector<GroupRanks> groups = parallel_groups(sizes);
    if (!row.at("groups").is_null()) {
      ++traced;
      ASSERT_EQ(groups.size(), row.at("groups").size());
      for (size_t i = 0; i < groups.size(); ++i) {
        ASSERT_EQ(axis_description(groups[i].axis), row.at("groups")[i][0].as_string()) << "group " << i;
        ASSERT_EQ(groups[i].ranks, ranks(row.at("groups")[i][1])) << "group " << i;
      }
    }
    const int rank = number(row, "rank");
    const Json& expected = row.at("sizes");
    int dp = 0, dp_cp = 0;
    EXPECT_EQ(rank_in(groups, Axis::dp, rank, &dp), number(expected.at("dp_rank"), "ok"));
    EXPECT_GE(rank_in(groups, Axis::dp_cp, rank, &dp_cp), 0);
    EXPECT_EQ(dp, number(expected.at("dp"), "ok"));
    EXPECT_EQ(dp_cp, number(expected.at("dp_cp"), "ok"));
    EXPECT_EQ(rank_in(groups, Axis::tp, rank), number(expected.at("tp_rank"), "ok"));
    EXPECT_EQ(rank_in(groups, Axis::cp, rank), number(expected.at("cp_rank"), "ok"));
    EXPECT_EQ(rank_in(groups, Axis::ep, rank), number(expected.at("ep_rank"), "ok"));
    // The recorder wrote the world's rank where the pipeline's belongs; the grid's order gives the latter.
    EXPECT_EQ(number(expected.at("pp_rank"), "ok"), rank);
    const RankGrid grid = parallel_grid({sizes.tp, 1, dp, sizes.pp, sizes.cp}, sizes.order);
    EXPECT_EQ(rank_in(groups, Axis::pp, rank), grid.coordinate(rank, "pp"));
  }
  EXPECT_EQ(refused, 12);
  EXPECT_EQ(traced, 44);
}

}  // namespace
}  // namespace megatron
