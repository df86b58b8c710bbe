#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "megatron/device/runtime.h"
#include "unit/cli/run_command.h"

// Modules for recompute that commands choose by cost.
namespace megatron {
namespace {

std::vector<std::string> with_model(std::string command, std::vector<std::string> more) {
  std::vector<std::string> args = {std::move(command)};
  for (const char* word : {"--num-layers",
                           "4",
                           "--hidden-size",
                           "64",
                           "--num-attention-heads",
                           "4",
                           "--ffn-hidden-size",
                           "192",
                           "--seq-length",
                           "128",
                           "--max-position-embeddings",
                           "128",
                           "model.vocab_size=256",
                           "--swiglu",
                           "--disable-bias-linear",
                           "--micro-batch-size",
                           "2",
                           "--global-batch-size",
                           "2",
                           "--recompute-granularity",
                           "selective",
                           "--recompute-modules",
                           "auto"})
    args.emplace_back(word);
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Json chosen(const std::string& gib) {
  const Outcome outcome = run_command(with_model("plan", {"--memory-gib", gib, "--json"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

TEST(RecomputeByCost, PlanFitsAndSaysWhy) {
  const Json roomy = chosen("1");
  for (const Json& module : roomy.at("recompute").at("modules").as_array())
    EXPECT_EQ(module.at("layers").as_int(), 0);
  const double all = roomy.at("recompute").at("bytes_keeping_all").as_double();
  EXPECT_EQ(roomy.at("recompute").at("bytes").as_double(), all);
  const double limit = 0.9 * all;
  const Json tight = chosen(fmt::format("{}", limit / (1 << 30)));
  EXPECT_LE(tight.at("recompute").at("bytes").as_double(), limit);
  EXPECT_EQ(tight.at("ranks")[0].at("memory_bytes").at("total").as_double(),
            tight.at("recompute").at("bytes").as_double());
  const Outcome table =
      run_command(with_model("plan", {"--recompute-memory-gib", fmt::format("{}", limit / (1 << 30))}));
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find(" of 4 layers"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("% more time"), std::string::npos) << table.out;
  if (cuda_device_count() == 0) {
    EXPECT_EQ(run_command(with_model("plan", {})).code, 1);
  }
  const Outcome refused = run_command(with_model("plan", {"--memory-gib", "0.001"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("--recompute-modules auto: rank 0 needs"), std::string::npos) << refused.err;
}

TEST(RecomputeByCost, PretrainChoosesBeforeItStarts) {
  const Outcome outcome =
      run_command(with_model("pretrain", {"--mock-data", "--train-iters", "1", "--lr", "1e-3", "--device",
                                          "cpu", "--recompute-memory-gib", "1"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("recompute for 1.00 GiB a rank"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("not needed"), std::string::npos) << outcome.err;
}

TEST(RecomputeByCost, Bench) {
  const auto bench = [](std::vector<std::string> more) {
    std::vector<std::string> args = {"bench",   "train", "gpt-10m",  "--device", "cpu",
                                     "--steps", "1",     "--warmup", "0"};
    args.insert(args.end(), more.begin(), more.end());
    return run_command(args);
  };
  EXPECT_EQ(bench({"--recompute", "moe"}).code, 2);
  EXPECT_EQ(bench({"--recompute", "none", "--memory-gib", "1"}).code, 2);
  const Outcome fp8 = bench({"--recompute", "mlp_act", "--precision", "fp8"});
  EXPECT_EQ(fp8.code, 1);
  EXPECT_NE(fp8.err.find("mlp_act: in fp8 the activation is kept in one byte"), std::string::npos) << fp8.err;
  const Outcome refused = bench({"--recompute", "auto", "--memory-gib", "0.1"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("are there; use"), std::string::npos) << refused.err;
}

// The notes on graphs are those of megatron pretrain.
TEST(BenchTrain, GraphsOnTheCpuAreNoted) {
  const Outcome cpu =
      run_command({"bench", "train", "gpt-10m", "--device", "cpu", "--graphs", "--recompute", "none",
                   "--steps", "1", "--warmup", "1", "model.num_layers=1", "model.seq_length=32"});
  EXPECT_EQ(cpu.code, 0) << cpu.err;
  EXPECT_NE(cpu.err.find("nothing is captured on the CPU"), std::string::npos) << cpu.err;
}

}  // namespace
}  // namespace megatron
