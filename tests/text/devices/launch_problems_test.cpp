#include "megatron/training/plan/launch_problems.h"

#include <gtest/gtest.h>

#include "megatron/kernels/limits/recurrent.h"
#include "megatron/training/plan/plan.h"

// Steps on the meta device that are asked what GPUs would refuse.
namespace megatron::testing {
namespace {

constexpr GpuFacts kHopper{90, 227 * 1024};

// A setting's range is that of the kernels, on every device.
TEST(LaunchProblems, WidthsOfConvolutions) {
  for (const char* name : {"model.linear_conv_kernel_dim", "model.mamba_conv_kernel"})
    EXPECT_EQ(Catalog::all().find(name)->setting->highest, limits::kConvolutionWidth) << name;
}

Resolved wide_model(std::vector<GpuFacts> gpus) {
  Sources sources =
      parse_command_line(std::vector<std::string>{"--num-layers", "2", "--hidden-size", "1024",
                                                  "--num-attention-heads", "2", "--seq-length", "64",
                                                  "--max-position-embeddings", "64", "--micro-batch-size",
                                                  "1", "model.vocab_size=128"})
          .sources;
  return resolve(sources, {.purpose = Purpose::model, .gpus = [gpus] { return gpus; }});
}

// Whoever does not train is refused for the forward pass alone, and nobody on the CPU.
TEST(LaunchProblems, ForwardPasses) {
  const auto text = [](const Resolved& resolved) -> std::string {
    try {
      check_forward_launches(resolved, 1);
    } catch (const Refused& refused) {
      return refused.problems().at(0).text();
    }
    return "";
  };
  EXPECT_EQ(text(wide_model({})), "");
  EXPECT_EQ(
      text(wide_model({kHopper})),
      "model.kv_channels = 512 (derived: hidden_size / num_attention_heads): attention's heads of 512 "
      "channels are too wide for the CUDA kernels, which take 256; use narrower heads, or --device cpu");
}

// Asking changes nothing of a plan.
TEST(LaunchProblems, PlansAreTheSame) {
  const Resolved plain = wide_model({}), asked = wide_model({kHopper});
  const RunPlan a = plan_run(plain), b = plan_run(asked);
  EXPECT_TRUE(a.refusals.empty());
  EXPECT_FALSE(b.refusals.empty());
  EXPECT_EQ(a.largest().bytes(), b.largest().bytes());
}

}  // namespace
}  // namespace megatron::testing
