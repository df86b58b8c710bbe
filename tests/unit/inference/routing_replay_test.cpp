#include <gtest/gtest.h>

#include "megatron/transformer/layer_pattern.h"
#include "unit/inference/small_models.h"

// The engine records which experts routers chose, and replaying them gives the same logits.
namespace megatron {
namespace {

using testing::mixed_requests;
using testing::small_config;
using testing::with_engine;

constexpr int64_t kExperts = 4, kTopK = 2;

Config routed_config(int tp = 1, int pp = 1) {
  Config config = small_config(testing::kExperts, tp, pp);
  config.model.moe_enable_routing_replay = true;
  config.model.moe_layer_freq = Json(Json::Array{Json(1), Json(0), Json(1), Json(1)});
  return config;
}

struct Routed {
  std::vector<int64_t> text;  // the prompt and the answer
  std::vector<int32_t> experts;
};

std::vector<Routed> routed_answers(const Config& config, EngineOptions options, int ranks = 1) {
  options.record_routing = true;
  const std::vector<Request> requests = mixed_requests(6);
  std::vector<Routed> all(requests.size());
  with_engine(
      config, DType::F64, options,
      [&](Engine& engine, RankContext&, Model&) {
        for (size_t i = 0; i < requests.size(); ++i) {
          all[i].text = requests[i].prompt;
          engine.submit(requests[i], [&routed = all[i]](const RequestUpdate& update) {
            for (const TokenChoice& choice : update.tokens) routed.text.push_back(choice.id);
            if (update.finish) routed.experts = update.experts;
          });
        }
        while (engine.step()) {
        }
      },
      ranks);
  return all;
}

std::vector<int64_t> wide(const std::vector<int32_t>& experts) { return {experts.begin(), experts.end()}; }

// The experts of an answer are those of one pass over its text, whatever the layout, the blocks that were
// taken away and the guesses that were refused.
TEST(RoutingReplay, AnswersTellTheExpertsOfTheirTokens) {
  const std::vector<Routed> one = routed_answers(routed_config(), {.block_size = 4});
  with_engine(routed_config(), DType::F64, {}, [&](Engine&, RankContext& ctx, Model& model) {
    for (const Routed& routed : one) {
      const std::span<const int64_t> read = std::span(routed.text).first(routed.text.size() - 1);
      model.logits(ctx, {.tokens = read});
      ASSERT_EQ(model.routed_experts().shape(), (Shape{std::ssize(read), 3, kTopK}));
      EXPECT_EQ(wide(routed.experts), ctx.to_vector<int64_t>(model.routed_experts()));
    }
  });
  EngineOptions tight{.block_size = 4, .max_tokens = 9}, guessing{.block_size = 4};
  tight.cache_bytes = 30 * 4 * 4 * 2 * 16 * 8;
  guessing.speculative_tokens = 3;
  for (const auto& [config, options, ranks] :
       {std::tuple{routed_config(2), EngineOptions{.block_size = 4}, 2},
        {routed_config(1, 2), EngineOptions{.block_size = 4}, 2},
        {routed_config(), tight, 1},
        {routed_config(), guessing, 1}}) {
    const std::vector<Routed> other = routed_answers(config, options, ranks);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(other[i].text, one[i].text);
      EXPECT_EQ(other[i].experts, one[i].experts) << "request " << i;
    }
  }
}

// Chosen again, the same experts give the same logits, others give others; free choices are the routers' own.
TEST(RoutingReplay, LogitsOfReplayedExperts) {
  const std::vector<int64_t> text = mixed_requests(1)[0].prompt;
  const auto tokens = std::ssize(text);
  const auto logits_of = [&](const Config& config, int ranks, const std::vector<int64_t>& experts) {
    std::vector<double> logits;
    std::vector<int64_t> chosen;
    run_ranks(ranks, [&](int rank, const ProcessGroup& world) {
      RankContext ctx(kCpu, 1, rank);
      const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, ranks));
      Model model(config, parallel, DType::F64);
      for (Parameter* parameter : model.parameters()) {
        parameter->allocate(ctx, DType::F64);
        parameter->initialize(ctx, 7);
      }
      ForwardPass pass{.tokens = text};
      if (!experts.empty()) pass.routed_experts = ctx.from_vector(experts, {tokens, 3, kTopK});
      const auto values = ctx.to_vector<double>(model.logits(ctx, pass));
      if (rank != 0) return;
      logits = values;
      chosen = ctx.to_vector<int64_t>(model.routed_experts());
    });
    return std::pair{logits, chosen};
  };
  const auto [free, chosen] = logits_of(routed_config(), 1, {});
  EXPECT_EQ(logits_of(routed_config(), 1, chosen).first, free);
  EXPECT_EQ(logits_of(routed_config(), 1, std::vector<int64_t>(chosen.size(), -1)).first, free);

  std::vector<int64_t> shifted = chosen;
  for (int64_t& expert : shifted) expert = (expert + 1) % kExperts;
  const auto [others, taken] = logits_of(routed_config(), 1, shifted);
  EXPECT_EQ(taken, shifted);
  EXPECT_NE(others, free);
  Config ring = routed_config();
  ring.parallel.context_parallel_size = 2;
  for (const auto& [config, ranks] : {std::pair{routed_config(2), 2}, {routed_config(1, 2), 2}, {ring, 2}}) {
    const auto [logits, experts] = logits_of(config, ranks, shifted);
    EXPECT_EQ(experts, shifted);
    ASSERT_EQ(logits.size(), others.size());
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], others[i], 1e-9) << i;
  }
}

}  // namespace
}  // namespace megatron
