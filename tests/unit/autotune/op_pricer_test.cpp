#include "megatron/autotune/measure/op_pricer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "megatron/autotune/machine/gpu_spec.h"
#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

TEST(StepOps, SizesOfKeys) {
  const StepOp linear =
      step_op("linear forward bf16[4096,1024] bf16[1024,3072] bf16[4096,3072]", 2.0 * 4096 * 1024 * 3072, 1);
  EXPECT_EQ(linear.family, "linear forward bf16");
  EXPECT_EQ(linear.kind, OpClass::gemm);
  EXPECT_EQ(linear.sizes, (std::array<double, 4>{4096, 3072, 1024, 0}));
  const StepOp experts =
      step_op("grouped_linear backward bf16[8192,14336] bf16[8,14336,2048] bf16[8192,2048]",
              2.0 * 8192 * 14336 * 2048, 1);
  EXPECT_EQ(experts.sizes, (std::array<double, 4>{8, 8192, 2048, 14336}));
  const StepOp attention = step_op("attention forward bf16[4096,32,128] bf16[4096,8,128] bf16[4096,8,128]",
                                   4.0 * 128 * 32 * 4096 * 2048, 1);
  EXPECT_EQ(attention.family, "attention forward bf16 128");
  EXPECT_EQ(attention.sizes, (std::array<double, 4>{4096.0 * 32, 4.0 * 2048, 128, 0}));
  const StepOp adam = step_op("adam other", 14e6, 28e6);
  EXPECT_EQ(adam.kind, OpClass::memory);
  EXPECT_EQ(adam.sizes, (std::array<double, 4>{28, 1, 0, 0}));
}

TEST(StepOps, ActivationsJoinTheirGemms) {
  const double flops = 2.0 * 64 * 32 * 128;
  for (const bool fuses : {true, false}) {
    StepOps ops(fuses);
    for (int layer = 0; layer < 2; ++layer) {
      ops.add("linear forward bf16[64,32] bf16[32,128] bf16[64,128]", flops, 1);
      ops.add("gated_activation forward bf16[64,128] bf16[64,64]", 1, 1);
    }
    // What is made again is not fused with the backward GEMM.
    ops.add("linear backward bf16[64,32] bf16[32,64] bf16[64,64]", flops / 2, 1);
    ops.add("gated_activation backward bf16[64,128] bf16[64,64] bf16[64,128] bf16[64,64]", 1, 1);
    const std::vector<StepOp> counted = ops.counted();
    ASSERT_EQ(counted.size(), fuses ? 3U : 4U);
    EXPECT_EQ(counted[fuses ? 2 : 3].family, fuses ? "linear_activated forward bf16" : "linear forward bf16");
    EXPECT_EQ(counted[fuses ? 2 : 3].count, 2);
  }
}

// Steps of a device whose GEMMs reach a rate, whose memory has another, and whose clock falls as GEMMs take
// more of the time.
StepDatabase device(double gemm_rate, double memory_rate, double slope) {
  StepDatabase database;
  database.device = "a device";
  database.library = "1";
  for (int i = 0; i < 12; ++i) {
    MeasuredStep step;
    step.name = "step " + std::to_string(i);
    const double m = 4096, n = 1024 + 512 * (i % 4), k = 1024 + 256 * (i % 3);
    const double bytes = 20.0 * (1 + i % 5);
    const double gemm = 2e-9 * m * n * k / gemm_rate, memory = bytes / memory_rate;
    const double clock = std::exp(-slope * gemm / (gemm + memory));
    step.ops.push_back({"linear forward bf16", OpClass::gemm, {m, n, k, 0}, 2, gemm / clock});
    step.ops.push_back({"norm forward bf16", OpClass::memory, {bytes, 1024, 0, 0}, 2, memory});
    for (const StepOp& op : step.ops) step.op_us += op.count * op.us;
    step.us = step.op_us;
    step.host_us = 8;
    database.steps.push_back(step);
  }
  return database;
}

TEST(StepDatabase, TextKeepsSteps) {
  const StepDatabase database = device(0.6, 3, 0);
  const StepDatabase again = StepDatabase::parse(database.text(), "x");
  ASSERT_EQ(again.steps.size(), database.steps.size());
  EXPECT_EQ(again.device, "a device");
  for (size_t s = 0; s < again.steps.size(); ++s) {
    EXPECT_EQ(again.steps[s].name, database.steps[s].name);
    ASSERT_EQ(again.steps[s].ops.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(again.steps[s].ops[i].sizes, database.steps[s].ops[i].sizes);
      EXPECT_NEAR(again.steps[s].ops[i].us / database.steps[s].ops[i].us, 1, 1e-3);
    }
  }
  EXPECT_THROW(StepDatabase::parse("something else\n", "x"), ConfigError);
  EXPECT_THROW(StepDatabase::parse(database.text() + "0 1 2\n", "x"), ConfigError);
  EXPECT_THROW(StepDatabase::parse(database.text() + "999 1 2 3 4 5\n", "x"), ConfigError);
  EXPECT_LT(database.text(0.5).size(), database.text().size());
}

// A refusal names the line that is wrong.
TEST(StepDatabase, RejectsWhatIsNoNumber) {
  const std::string head =
      "megatron op times 1\ndevice d\nfamily 0 linear forward bf16\nfamily 1 norm forward bf16\n";
  const std::string step = "step 10 9 8 name\n";
  EXPECT_EQ(StepDatabase::parse(head + step + "0 1 2 3 4 5\n1 1 0 64 5\n", "x").steps[0].ops.size(), 2U);
  const auto error = [&](const std::string& line, const std::string& before) -> std::string {
    try {
      StepDatabase::parse(head + before + line + "\n", "x.ops");
    } catch (const ConfigError& fault) {
      return fault.what();
    }
    return "accepted";
  };
  for (const char* line : {"  ",
                           "99999999999999999999999 1 2 3 4 5",
                           "0 1 2 3 4 5 rubbish",
                           "0 1 2 3 4 5x",
                           "0 1 2 3 4 1e",
                           "0 0 2 3 4 5",
                           "0 1 0 3 4 5",
                           "0 1 2 3 -4 5",
                           "0 1 2 3 4 0",
                           "0 1 2 3 4 1e999",
                           "0 1 2 3 4 nan",
                           "0 1",
                           "1 1 2 0 5",
                           "-1 1 2 3 4 5",
                           "step 0 9 8 name",
                           "step 10 0 8 name",
                           "step 10 9 -1 name",
                           "step 1e999 9 8 name",
                           "step 10 9 8x name",
                           "family x linear forward bf16",
                           "family 2x norm",
                           "family 99999999999999999999999 norm",
                           "family 2"})
    EXPECT_TRUE(error(line, step).starts_with("x.ops:6: needs ")) << line << ": " << error(line, step);
  EXPECT_TRUE(error("0 1 2 3 4 5", "").starts_with("x.ops:5: needs a step"));
}

// A model that is measured again counts once.
TEST(StepDatabase, PutReplacesAStepOfTheSameName) {
  StepDatabase database = device(0.6, 3, 0);
  MeasuredStep again = database.steps[3];
  again.us *= 2;
  database.put(again);
  ASSERT_EQ(database.steps.size(), 12U);
  EXPECT_EQ(database.steps.back().us, again.us);
  again.name = "another";
  database.put(again);
  EXPECT_EQ(database.steps.size(), 13U);
}

TEST(GpuSpec, KindsOfDevices) {
  EXPECT_TRUE(is_of_kind("NVIDIA H200", "H200"));
  EXPECT_TRUE(is_of_kind("NVIDIA A100-SXM4-80GB", "A100"));
  EXPECT_TRUE(is_of_kind("NVIDIA H100 80GB HBM3", "H100-96GB-HBM2e-500W"));
  EXPECT_TRUE(is_of_kind("NVIDIA GeForce RTX 4090", "RTX4090"));
  EXPECT_TRUE(is_of_kind("CPU", "CPU"));
  EXPECT_TRUE(is_of_kind("My GPU", "my GPU"));
  EXPECT_FALSE(is_of_kind("NVIDIA H200", "H100"));
  EXPECT_FALSE(is_of_kind("NVIDIA GB200", "B200"));
  EXPECT_FALSE(is_of_kind("", ""));
}

TEST(OpPricer, FindsRatesAndClocks) {
  for (const double slope : {0.0, 0.2}) {
    const OpPricer pricer(device(0.6, 3, slope));
    // Each step without its own ops, and a step of other sizes and another mix.
    for (const double error : pricer.held_out()) EXPECT_LT(std::abs(error), 0.05) << slope;
    const double m = 8192, n = 1792, k = 1152, bytes = 50;
    const double gemm = 2e-9 * m * n * k / 0.6, memory = bytes / 3;
    const double expected = gemm * std::exp(slope * gemm / (gemm + memory)) + memory;
    const StepPrice price = pricer.price({{"linear forward bf16", OpClass::gemm, {m, n, k, 0}, 1, 0},
                                          {"norm forward bf16", OpClass::memory, {bytes, 1024, 0, 0}, 1, 0}});
    EXPECT_NEAR(price.seconds * 1e6 / expected, 1, 0.06) << slope;
    EXPECT_EQ(price.unknown, 0);
  }
}

TEST(OpPricer, TellsWhatItDoesNotKnow) {
  const OpPricer pricer(device(0.6, 3, 0));
  const StepOp stranger{"delta_rule forward bf16", OpClass::memory, {100, 64, 0, 0}, 1, 0};
  EXPECT_FALSE(pricer.us(stranger));
  EXPECT_GT(pricer.price({stranger}).unknown, 0.99);
  EXPECT_FALSE(pricer.attention_seconds(true, 4096, 2048, 128));
  EXPECT_TRUE(pricer.linear_seconds(OpPricer::LinearPass::forward, false, 4096, 1024, 2048, 1));
  EXPECT_FALSE(pricer.linear_seconds(OpPricer::LinearPass::forward, true, 4096, 1024, 2048, 1));
}

// Many small ops take what the host needs to launch them.
TEST(OpPricer, HostLaunchesOps) {
  const OpPricer pricer(device(0.6, 3, 0));
  const StepPrice price = pricer.price({{"norm forward bf16", OpClass::memory, {0.001, 64, 0, 0}, 1000, 0}});
  EXPECT_NEAR(price.host * 1e6, 2000, 1);
  EXPECT_EQ(price.seconds, std::max(price.host, price.device));
}

}  // namespace
}  // namespace megatron::autotune
