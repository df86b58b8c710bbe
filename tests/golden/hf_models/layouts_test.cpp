#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "megatron/bridge/auto_bridge.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/training/training_run.h"
#include "support/golden.h"
#include "support/temp_dir.h"

// The curves of Hugging Face's models again, as a training run from their files on ranks of several layouts.
namespace megatron {
namespace {

using testing::golden_path;
using testing::TempDir;

struct Layout {
  const char* name;
  int tp = 1, pp = 1;
  bool sp = false;
};

Config config_of(const AutoBridge& bridge, const Layout& layout) {
  Config config;
  config.model = bridge.model_config();
  config.parallel.tensor_model_parallel_size = layout.tp;
  config.parallel.pipeline_model_parallel_size = layout.pp;
  config.parallel.sequence_parallel = layout.sp;
  if (layout.pp == 2 && config.model.num_layers == 3)
    config.parallel.pipeline_model_parallel_layout = "Et*2|tL";
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 2;
  config.optimizer.lr = 1e-3;
  config.scheduler.lr_decay_style = LrDecay::constant;
  config.optimizer.adam_beta2 = 0.95;
  config.optimizer.weight_decay = 0.1;
  return config;
}

std::vector<double> curve(const TrainingRun& plain, int ranks) {
  std::vector<double> losses;
  TrainingRun run = plain;
  run.on_iteration = [&](const IterationReport& report) { losses.push_back(report.loss); };
  run_ranks(ranks, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    train_rank(ctx, world, run);
  });
  return losses;
}

class HfLayouts : public ::testing::TestWithParam<const char*> {};

TEST_P(HfLayouts, CurveOfEveryLayout) {
  const std::string folder = std::string(GetParam()) + "/";
  const std::string io = golden_path("hf_models", folder + "io.safetensors");
  auto bridge = std::make_shared<const AutoBridge>(golden_path("hf_models", folder + "model"));
  const auto expected = testing::to_doubles(SafetensorsFile(io).tensor("train.loss"));
  const double noise = Json::read(golden_path("hf_models", folder + "meta.json"))
                           .at("fp32_vs_fp64")
                           .at("curve_max_abs")
                           .as_double();
  for (const Layout& layout : {Layout{"tp2", 2, 1}, {"pp2", 1, 2}, {"tp2 pp2", 2, 2}}) {
    if (layout.tp > 1 && bridge->model_config().qk_layernorm_full_width) continue;
    SCOPED_TRACE(layout.name);
    Config config = config_of(*bridge, layout);
    config.dataset.replay = io + ":train.input_ids";
    TrainingRun run = training_run(config);
    run.hf = bridge;
    const std::vector<double> losses = curve(run, layout.tp * layout.pp);
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], std::max(2e-4, 10 * noise)) << "iteration " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, HfLayouts,
                         ::testing::Values("llama", "llama_bias", "llama_tied", "llama_rope_yarn",
                                           "mistral_swa16", "ministral3", "phi3", "qwen2", "qwen2_tied_swa",
                                           "qwen3", "gemma", "gemma2", "gemma3_text", "glm4", "nemotron",
                                           "olmo2", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

// A run that is stopped and started again, on another layout too, goes on as if it had not been.
TEST(TrainingRun, GoesOnFromItsCheckpoint) {
  TempDir folder;
  auto bridge = std::make_shared<const AutoBridge>(golden_path("hf_models", "llama_tied/model"));
  auto run_with = [&](const Layout& layout, int64_t iterations, const std::string& save) {
    Config config = config_of(*bridge, layout);
    config.model.seq_length = 16;
    config.dataset.mock_data = true;
    config.train.train_iters = iterations;
    config.scheduler.lr_decay_style = LrDecay::cosine;
    config.scheduler.lr_decay_iters = 8;
    config.checkpoint.save = config.checkpoint.load = save;
    TrainingRun run = training_run(config);
    run.hf = bridge;
    return curve(run, layout.tp * layout.pp);
  };
  const Layout four{"tp2 pp2", 2, 2, true}, one{"one"};
  const auto whole = run_with(four, 8, folder / "whole");
  auto parts = run_with(four, 3, folder / "parts");
  const auto rest = run_with(four, 8, folder / "parts");
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole);  // to the bit

  auto moved = run_with(four, 3, folder / "moved");
  const auto alone = run_with(one, 8, folder / "moved");
  moved.insert(moved.end(), alone.begin(), alone.end());
  ASSERT_EQ(moved.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(moved[i], whole[i], 1e-5) << "iteration " << i + 1;
}

TEST(MetricsFile, ARunThatBeginsAgainReplacesItsRows) {
  TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (int64_t i = 1; i <= 4; ++i) file.write({.iteration = i, .loss = 1.0 * static_cast<double>(i)});
  }
  MetricsFile(path, 2).write({.iteration = 3, .loss = 0.5});
  std::ifstream lines(path);
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);)
    losses.push_back(Json::parse(line).at("lm_loss").as_double());
  EXPECT_EQ(losses, (std::vector<double>{1, 2, 0.5}));
}

}  // namespace
}  // namespace megatron
