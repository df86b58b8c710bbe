// Steps on one H200 by the database of ops that comes with the program, whose models have other shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <sstream>

#include "megatron/base/json.h"
#include "megatron/cli/bench/profile_grid.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

// Arguments of `bench train`; milliseconds of a step and GiB that it measured.
struct Measured {
  const char* words;
  double ms, gib;
};

constexpr Measured kCases[] = {
    {"gpt-124m", 55.18, 10.073},
    {"gpt2-124m", 55.45, 11.580},
    {"llama-1b", 240.84, 35.835},
    {"gpt-1.7b", 295.44, 48.694},
    {"llama-8b-16", 700.74, 94.613},
    {"llama-8b-16 --precision fp8", 503.03, 96.613},
    {"mixtral-small", 743.65, 43.801},
    {"mixtral-small --precision fp8", 607.32, 48.723},
    {"qwen3-30b-a3b-12", 1150.84, 113.594},
    {"qwen2.5-0.5b --micro-batches 2 train.global_batch_size=64 train.micro_batch_size=32", 388.98, 37.713},
    {"qwen2.5-1.5b --micro-batches 2 --recompute mlp_act train.global_batch_size=32 "
     "train.micro_batch_size=16",
     545.24, 45.427},
    {"llama-1b model.seq_length=1024 model.max_position_embeddings=1024 train.global_batch_size=32 "
     "train.micro_batch_size=16",
     424.31, 35.836},
    {"llama-1b model.seq_length=16384 model.max_position_embeddings=16384 train.global_batch_size=1 "
     "train.micro_batch_size=1",
     338.49, 35.835},
    {"llama-1b model.seq_length=32768 model.max_position_embeddings=32768 train.global_batch_size=1 "
     "train.micro_batch_size=1 --recompute mlp,core_attn",
     1152.27, 31.378},
    {"gpt-1.7b --recompute layernorm,mlp_act", 300.43, 41.569},
    {"llama-8b-16 --recompute mlp --micro-batches 2", 843.54, 66.905},
    {"llama-8b-16 --moments bf16 --micro-batches 4 model.num_layers=32", 1335.01, 92.896},
    {"gpt-1.7b --precision fp8", 244.73, 48.178},
    {"llama-1b model.num_layers=24 model.hidden_size=1152 model.ffn_hidden_size=3072 "
     "model.num_attention_heads=18 model.num_query_groups=6 model.vocab_size=60000 model.seq_length=2048 "
     "model.max_position_embeddings=2048 train.global_batch_size=16 train.micro_batch_size=8",
     195.17, 18.956},
    {"llama-1b --precision fp8 model.seq_length=8192 model.max_position_embeddings=8192 "
     "train.global_batch_size=2 train.micro_batch_size=2",
     233.78, 35.148},
};

// Plans of llama-1b, a batch of 4 x 4096.
constexpr Measured kPlans[] = {
    {"llama-1b --micro-batches 1 --recompute none", 235.28, 0},
    {"llama-1b --micro-batches 2 --recompute none", 243.56, 0},
    {"llama-1b --micro-batches 4 --recompute none", 252.25, 0},
    {"llama-1b --micro-batches 1 --recompute mlp_act", 238.44, 0},
    {"llama-1b --micro-batches 2 --recompute mlp_act", 241.02, 0},
    {"llama-1b --micro-batches 4 --recompute mlp_act", 248.80, 0},
    {"llama-1b --micro-batches 1 --recompute layernorm", 236.76, 0},
    {"llama-1b --micro-batches 2 --recompute layernorm", 240.31, 0},
    {"llama-1b --micro-batches 4 --recompute layernorm", 247.61, 0},
    {"llama-1b --micro-batches 1 --recompute layernorm,mlp_act", 238.09, 0},
    {"llama-1b --micro-batches 2 --recompute layernorm,mlp_act", 243.60, 0},
    {"llama-1b --micro-batches 4 --recompute layernorm,mlp_act", 248.82, 0},
    {"llama-1b --micro-batches 1 --recompute mlp", 273.37, 0},
    {"llama-1b --micro-batches 2 --recompute mlp", 278.38, 0},
    {"llama-1b --micro-batches 4 --recompute mlp", 287.27, 0},
    {"llama-1b --micro-batches 1 --recompute core_attn", 246.91, 0},
    {"llama-1b --micro-batches 2 --recompute core_attn", 248.44, 0},
    {"llama-1b --micro-batches 4 --recompute core_attn", 257.86, 0},
    {"llama-1b --micro-batches 2 --recompute core_attn,mlp", 288.64, 0},
    {"llama-1b --micro-batches 4 --recompute core_attn,mlp", 300.95, 0},
};

Json predicted(const char* arguments) {
  std::vector<std::string> words = {"bench", "train", "--predict", "h200", "--device", "cuda", "--json"};
  std::istringstream stream(arguments);
  for (std::string word; stream >> word;) words.push_back(word);
  if (std::find(words.begin(), words.end(), "fp8") == words.end())
    words.insert(words.end(), {"--precision", "bf16"});
  const Outcome outcome = run_command(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err << arguments;
  return Json::parse(outcome.out);
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

TEST(AutotuneOps, StepsOfOtherShapesOnAnH200) {
  std::vector<double> errors;
  for (const Measured& one : kCases) {
    const Json json = predicted(one.words);
    errors.push_back(std::abs(json.at("iteration_ms").as_double() / one.ms - 1));
    const double memory = json.at("memory_gib").as_double() / one.gib - 1;
    EXPECT_LE(memory, 0.02) << one.words;
    EXPECT_GE(memory, -0.01) << one.words;
    EXPECT_LE(json.at("unknown_percent").as_double(), 0.1) << one.words;
  }
  EXPECT_LE(quantile(errors, 0.5), 0.02);
  EXPECT_LE(quantile(errors, 0.95), 0.05);
}

TEST(AutotuneOps, PickOfTwentyPlansOnAnH200) {
  const Measured *pick = nullptr, *best = nullptr;
  double least = 0;
  for (const Measured& one : kPlans) {
    const double ms = predicted(one.words).at("iteration_ms").as_double();
    EXPECT_LE(std::abs(ms / one.ms - 1), 0.05) << one.words;
    if (!pick || ms < least) pick = &one, least = ms;
    if (!best || one.ms < best->ms) best = &one;
  }
  EXPECT_LE(pick->ms / best->ms, 1.02) << pick->words << " instead of " << best->words;
}

std::vector<std::string> planned(const std::vector<std::string>& flags) {
  std::vector<std::string> words = {"autotune",      "search", "--num-layers",          "2",
                                    "--hidden-size", "64",     "--num-attention-heads", "4",
                                    "--vocab-size",  "512"};
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

// A database of this machine, made by a command and read by the next one.
TEST(AutotuneOps, ProfileOnACpu) {
  const std::string path = testing::TempDir() + "profile_on_a_cpu.ops";
  std::remove(path.c_str());
  for (int times = 0; times < 2; ++times) {
    const Outcome made = run_command({"autotune", "profile-ops", "--grid", "--database", path, "--seconds",
                                      "0.02", "--test-case-idxs", "0"});
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_NE(made.out.find("ops of 1 models"), std::string::npos) << made.out;
  }
  const Outcome read = run_command(
      {"bench", "train", "gpt-10m", "--device", "cpu", "--precision", "fp32", "--predict", path, "--json"});
  ASSERT_EQ(read.code, 0) << read.err;
  const Json json = Json::parse(read.out);
  EXPECT_GT(json.at("iteration_ms").as_double(), 1);
  EXPECT_LT(json.at("unknown_percent").as_double(), 1);
  EXPECT_EQ(run_command({"autotune", "profile-ops", "--grid"}).code, 2);
  EXPECT_NE(
      run_command({"bench", "train", "gpt-10m", "--predict", "/dev/null"}).err.find("profile-ops --grid"),
      std::string::npos);
  // Its times are those of a CPU.
  const Outcome other = run_command(planned({"--gpu", "H200", "--database", path}));
  EXPECT_NE(other.code, 0);
  EXPECT_NE(other.err.find("holds times of CPU, not of H200"), std::string::npos) << other.err;
  std::remove(path.c_str());
}

TEST(AutotuneOps, DatabaseOfAnotherGpu) {
  const Outcome outcome = run_command(planned({"--gpu", "B200", "--database", "h200"}));
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.err.find("holds times of NVIDIA H200, not of B200"), std::string::npos) << outcome.err;
}

// A model's name tells it from all others, since a second measurement replaces the first.
TEST(AutotuneOps, GridHasNamesOfItsOwn) {
  for (const bool cuda : {true, false}) {
    std::set<std::string> names;
    const std::vector<GridCase> cases = profile_grid(cuda);
    for (const GridCase& one : cases) EXPECT_TRUE(names.insert(one.name()).second) << one.name();
  }
}

TEST(AutotuneOps, GridRejectsWhatItWouldIgnore) {
  const auto error = [](std::vector<std::string> more) {
    std::vector<std::string> words = {"autotune", "profile-ops"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_command(words);
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  const std::string path = testing::TempDir() + "grid_rejects.ops";
  const std::vector<std::vector<std::string>> ignored = {
      {"--json"}, {"--output-dir", "x"}, {"--hidden-size", "64"}, {"model.num_layers=2"}, {"--recipe", "x"}};
  for (std::vector<std::string> words : ignored) {
    const std::string flag = words[0];
    words.insert(words.end(), {"--grid", "--database", path});
    EXPECT_NE(error(words).find(flag + " has no effect with --grid"), std::string::npos) << flag;
  }
  EXPECT_NE(error({"--seconds", "2"}).find("--seconds is for --grid"), std::string::npos);
  EXPECT_NE(error({"--grid", "--database", path, "--test-case-idxs", "-1"}).find("(got -1)"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron
