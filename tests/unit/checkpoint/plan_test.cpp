// How ranks come to a plan: what each of them learns, how much they send, and how evenly they share.
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/comm/run_ranks.h"

namespace megatron {
namespace {

using Shards = std::vector<ShardDescription>;

// A decoder whose weights are split over tp ranks, its layers over pp, its optimizer states over dp.
struct Cluster {
  int tp, pp, dp;
  int64_t layers = 32, hidden = 1024;

  int ranks() const { return tp * pp * dp; }
  Shards of(int rank) const {
    const int t = rank % tp, d = rank / tp % dp, p = rank / tp / dp;
    Shards shards;
    const auto add = [&](const std::string& name, const ShardSpec& shard) {
      shards.push_back({name, DType::BF16, shard});
      const int64_t size = shard.local_shape.numel() / dp;
      const Tensor flat = Tensor::wrap(nullptr, {size}, DType::F32);
      for (const char* state : {"master", "exp_avg", "exp_avg_sq"})
        for (const ShardedTensor& piece :
             flat_range(fmt::format("optimizer.{}.{}", state, name), shard, flat, size * d))
          shards.push_back({piece.name, DType::F32, piece.shard});
    };
    for (int64_t layer = layers / pp * p; layer < layers / pp * (p + 1); ++layer) {
      const std::string prefix = fmt::format("decoder.layers.{}.", layer);
      add(prefix + "self_attention.linear_qkv.weight", ShardSpec::split({3 * hidden, hidden}, 0, t, tp));
      add(prefix + "self_attention.linear_proj.weight", ShardSpec::split({hidden, hidden}, 1, t, tp));
      add(prefix + "mlp.linear_fc1.weight", ShardSpec::split({4 * hidden, hidden}, 0, t, tp));
      add(prefix + "mlp.linear_fc2.weight", ShardSpec::split({hidden, 4 * hidden}, 1, t, tp));
      add(prefix + "input_layernorm.weight", ShardSpec::whole({hidden}));
      add(prefix + "pre_mlp_layernorm.weight", ShardSpec::whole({hidden}));
    }
    return shards;
  }
};

size_t bytes_of(const std::vector<std::string>& texts) {
  return std::accumulate(texts.begin(), texts.end(), size_t{0},
                         [](size_t sum, const std::string& text) { return sum + text.size(); });
}

// What the busiest rank sends and receives, as the functions make it.
struct Counted {
  size_t described = 0;  // of the rank that describes the most
  size_t all = 0;        // descriptions of all ranks together
  size_t sent = 0, received = 0, seen = 0, shards = 0;
};

Counted count(const Cluster& cluster) {
  const auto ranks = static_cast<size_t>(cluster.ranks());
  Counted counted;
  std::vector<size_t> sent(ranks, 0), received(ranks, 0);
  std::vector<std::vector<std::string>> requests(ranks);  // by planner
  for (size_t rank = 0; rank < ranks; ++rank) {
    const Shards own = cluster.of(static_cast<int>(rank));
    std::vector<std::string> texts = plan_requests(own, cluster.ranks());
    const size_t bytes = bytes_of(texts);
    counted.described = std::max(counted.described, bytes);
    counted.all += bytes;
    counted.shards += own.size();
    sent[rank] += bytes;
    for (size_t planner = 0; planner < ranks; ++planner)
      requests[planner].push_back(std::move(texts[planner]));
  }
  for (size_t planner = 0; planner < ranks; ++planner) {
    received[planner] += bytes_of(requests[planner]);
    int64_t seen = 0;
    const std::vector<std::string> answers = plan_answers(requests[planner], &seen);
    counted.seen = std::max(counted.seen, static_cast<size_t>(seen));
    sent[planner] += bytes_of(answers);
    for (size_t rank = 0; rank < ranks; ++rank) received[rank] += answers[rank].size();
  }
  counted.sent = *std::max_element(sent.begin(), sent.end());
  counted.received = *std::max_element(received.begin(), received.end());
  return counted;
}

TEST(PlanExchange, RanksTellPlannersNotEachOther) {
  const Cluster small{.tp = 2, .pp = 2, .dp = 4};
  const Counted expected = count(small);
  std::mutex mutex;
  PlanTraffic most;
  run_ranks(small.ranks(), [&](int rank, ProcessGroup& world) {
    SavePlanCache cache;
    const auto own = [&] { return small.of(rank); };
    update_plan(world, "not planned", own, cache);
    const StoredTensor* kept = cache.plan.data();
    {
      std::lock_guard lock(mutex);
      most.sent = std::max(most.sent, cache.traffic.sent);
      most.received = std::max(most.received, cache.traffic.received);
      most.seen = std::max(most.seen, cache.traffic.seen);
    }
    update_plan(world, "not planned", own, cache);  // nothing has changed
    EXPECT_EQ(cache.plan.data(), kept);
  });
  // What is counted by calling the functions is what ranks exchange.
  EXPECT_EQ(static_cast<size_t>(most.sent), expected.sent);
  EXPECT_EQ(static_cast<size_t>(most.received), expected.received);
  EXPECT_EQ(static_cast<size_t>(most.seen), expected.seen);
}

// With 64 times the replicas no rank has to learn 64 times as much: what a planner is told grows with the
// replicas, but it plans for fewer tensors.
TEST(PlanExchange, DoesNotGrowWithTheRanks) {
  const Counted few = count({.tp = 2, .pp = 2, .dp = 4}), many = count({.tp = 2, .pp = 2, .dp = 256});
  for (const auto& [ranks, counted] : {std::pair(16, few), {1024, many}}) {
    std::printf(
        "%d ranks: describing its own takes %zu bytes, all ranks %zu; the busiest sends %zu and receives "
        "%zu, "
        "and sees %zu of %zu shards\n",
        ranks, counted.described, counted.all, counted.sent, counted.received, counted.seen, counted.shards);
    EXPECT_LT(counted.sent, 8 * counted.described);
    EXPECT_LT(counted.received, 8 * counted.described);
    EXPECT_LT(counted.seen, counted.shards / (ranks == 16 ? 10 : 100));
  }
}

// Ranks that hold the same share it by bytes, wherever tensors begin and end.
TEST(PlanExchange, ReplicasShareByBytes) {
  const int64_t mib = int64_t{1} << 20;
  Shards same = {{"a", DType::F32, ShardSpec::whole({1000, 7000})},
                 {"b", DType::BF16, ShardSpec::whole({13, 1000000})},
                 {"c", DType::F32, ShardSpec::whole({5})},
                 {"d", DType::F32, ShardSpec::whole({1, 1, 3000000})}};
  int64_t total = 0;
  for (const ShardDescription& shard : same)
    total += shard.shard.global_shape.numel() * static_cast<int64_t>(size_of(shard.dtype));
  for (const int ranks : {1, 2, 3, 7}) {
    const std::vector<StoredTensor> plan = plan_save(std::vector<Shards>(static_cast<size_t>(ranks), same));
    std::vector<int64_t> load(static_cast<size_t>(ranks), 0);
    Problems problems;
    for (const StoredTensor& tensor : plan) {
      check_pieces(tensor, problems);
      for (const StoredChunk& piece : tensor.pieces)
        load[static_cast<size_t>(piece.file)] +=
            piece.box.volume() * static_cast<int64_t>(size_of(tensor.dtype));
    }
    EXPECT_TRUE(problems.empty()) << problems.text();
    for (const int64_t bytes : load) EXPECT_NEAR(bytes, total / ranks, 2 * mib) << ranks << " ranks";
  }
}

// Replicas of different layouts: some ranks hold halves of what others hold whole.
TEST(PlanExchange, OverlapsAreWrittenOnce) {
  const std::vector<Shards> ranks = {
      {{"w", DType::F32, ShardSpec::split({8, 6}, 0, 0, 2)}},
      {{"w", DType::F32, ShardSpec::split({8, 6}, 0, 1, 2)}},
      {{"w", DType::F32, ShardSpec::split({8, 6}, 1, 0, 3)}},
      {{"w", DType::F32, ShardSpec::whole({0})}, {"none", DType::F32, ShardSpec::whole({0, 4})}}};
  EXPECT_THROW(plan_save(ranks), ConfigError) << "rank 3 has another shape";
  std::vector<Shards> right = ranks;
  right[3].erase(right[3].begin());
  Problems problems;
  const std::vector<StoredTensor> plan = plan_save(right);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].name, "none");
  check_pieces(plan[1], problems);
  EXPECT_TRUE(problems.empty()) << problems.text();
}

}  // namespace
}  // namespace megatron
