#include "megatron/inference/engine.h"

#include <gtest/gtest.h>

#include "golden/hf_models/cases.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/models/parallel_setup.h"
#include "support/golden.h"

// Greedy texts of Hugging Face's models, all prompts of a model in one batch, on one rank and on two.
namespace megatron {
namespace {

using testing::golden_path;
using testing::to_doubles;

struct GreedyCase {
  std::vector<int64_t> prompt, expected;  // expected: as far as rounding cannot change a choice
};

std::vector<GreedyCase> greedy_cases(const std::string& folder) {
  const SafetensorsFile io(golden_path("hf_models", folder + "io.safetensors"));
  const Json meta = Json::read(golden_path("hf_models", folder + "meta.json"));
  std::vector<GreedyCase> cases;
  for (int i = 0; i < 3; ++i) {
    const std::string name = "gen." + std::to_string(i);
    const std::vector<double> ids = to_doubles(io.tensor(name + ".ids"));
    const auto prompt = static_cast<size_t>(to_doubles(io.tensor(name + ".prompt_len"))[0]);
    const Json& gaps = meta.at("gen_top1_top2_gap").at(std::to_string(i));
    size_t certain = prompt;
    while (certain < ids.size() && gaps[certain - prompt].as_double() >= 1e-4) ++certain;
    cases.push_back({{ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt)},
                     {ids.begin() + static_cast<std::ptrdiff_t>(prompt),
                      ids.begin() + static_cast<std::ptrdiff_t>(certain)}});
  }
  return cases;
}

class HfEngine : public ::testing::TestWithParam<const char*> {};

TEST_P(HfEngine, WritesEveryGreedyTextInOneBatch) {
  const std::string folder = std::string(GetParam()) + "/";
  const AutoBridge bridge(golden_path("hf_models", folder + "model"));
  const std::vector<GreedyCase> cases = greedy_cases(folder);
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    Config config;
    config.model = bridge.model_config();
    config.parallel.tensor_model_parallel_size = tp;
    config.parallel.pipeline_model_parallel_size = pp;
    if (const int64_t layers = config.model.num_layers; pp == 2 && layers % 2 != 0)
      config.parallel.pipeline_model_parallel_layout = fmt::format("Et*{}|t*{}L", layers / 2 + 1, layers / 2);
    std::vector<std::vector<int64_t>> texts(cases.size());
    run_ranks(tp * pp, [&](int rank, const ProcessGroup& world) {
      RankContext ctx(kCpu, 1, rank);
      const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config, tp * pp));
      Model model(config, parallel, DType::F32);
      for (Parameter* parameter : model.parameters()) parameter->allocate(ctx, DType::F32);
      bridge.load(ctx, model.parameters());
      // Blocks and steps so small that prompts are read in pieces between tokens of others.
      Engine engine(ctx, world, model, {.block_size = 4, .max_tokens = 10});
      for (size_t i = 0; rank == 0 && i < cases.size(); ++i)
        engine.submit({.prompt = cases[i].prompt, .max_tokens = std::ssize(cases[i].expected)},
                      [&texts, i](const RequestUpdate& update) {
                        for (const TokenChoice& choice : update.tokens) texts[i].push_back(choice.id);
                      });
      while (engine.step()) {
      }
    });
    for (size_t i = 0; i < cases.size(); ++i)
      EXPECT_EQ(texts[i], cases[i].expected) << "tp " << tp << " pp " << pp << " text " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, HfEngine, ::testing::ValuesIn(testing::kDenseCases),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Mixtures, HfEngine, ::testing::ValuesIn(testing::kMixtureCases),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Hybrids, HfEngine, ::testing::ValuesIn(testing::kHybridCases),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron
