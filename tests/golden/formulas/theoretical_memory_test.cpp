#include "megatron/training/plan/theoretical_memory.h"

#include <gtest/gtest.h>

#include "golden/formulas/upstream_arguments.h"
#include "support/golden.h"

namespace megatron {
namespace {

// The case's model under its layout.
std::pair<Config, ParallelSizes> laid_out(const Json& models, const Json& entry) {
  Json arguments = models.at(entry.at("model").as_string());
  for (const auto& [key, value] : entry.at("parallel_args").as_object()) arguments[key] = value;
  const auto integer = [&](const char* name) {
    const Json& value = arguments.at(name);
    return value.is_null() ? 0 : static_cast<int>(value.as_int());
  };
  Config config = testing::config_of(arguments);
  config.train.micro_batch_size = integer("micro_batch_size");
  config.parallel.sequence_parallel = arguments.at("sequence_parallel").as_bool();
  config.parallel.virtual_pipeline_model_parallel_size = integer("virtual_pipeline_model_parallel_size");
  config.ddp.use_distributed_optimizer = arguments.at("use_distributed_optimizer").as_bool();
  if (arguments.at("recompute_granularity") == Json("selective"))
    config.execution.recompute_granularity = RecomputeGranularity::selective;
  ParallelSizes sizes;
  sizes.world = integer("world_size");
  sizes.tp = integer("tensor_model_parallel_size");
  sizes.pp = integer("pipeline_model_parallel_size");
  sizes.cp = integer("context_parallel_size");
  sizes.ep = integer("expert_model_parallel_size");
  sizes.etp = integer("expert_tensor_parallel_size");
  EXPECT_EQ(sizes.dp(), integer("data_parallel_size"));
  return {config, sizes};
}

void expect_as(double value, double expected, const std::string& what) {
  EXPECT_NEAR(value / expected, 1, 1e-12) << what;
}

TEST(TheoreticalMemory, IsMegatronLMs) {
  const Json golden = testing::golden_json("megatron_parallel", "memory");
  const auto& cases = golden.at("cases").as_array();
  ASSERT_GE(cases.size(), 285u);
  for (const Json& entry : cases) {
    const std::string what = entry.at("model").as_string() + " " + entry.at("parallel").as_string();
    const auto [config, sizes] = laid_out(golden.at("models"), entry);
    std::optional<int64_t> microbatches;
    if (!entry.at("num_microbatches").is_null()) microbatches = entry.at("num_microbatches").as_int();
    const auto expected = [&](const char* key) { return entry.at(key).at("ok").at("float").as_double(); };
    expect_as(theoretical_weight_bytes(config, sizes), expected("weight_and_optimizer_bytes"), what);
    expect_as(theoretical_activation_bytes_sp(config, sizes, microbatches), expected("activation_bytes_sp"),
              what);
    expect_as(theoretical_activation_bytes_no_sp(config, sizes, microbatches),
              expected("activation_bytes_no_sp"), what);
    const Json& report = entry.at("report_mb").at("ok");
    const auto memory = theoretical_memory(config, sizes, microbatches);
    ASSERT_TRUE(memory) << what;
    expect_as(memory->weights_and_optimizer / (1 << 20), report[0].as_double(), what);
    expect_as(memory->activations / (1 << 20), report[1].as_double(), what);
  }
}

TEST(TheoreticalMemory, HasMegatronLMsLine) {
  const TheoreticalMemory memory{.weights_and_optimizer = 4606267392.0, .activations = 1125244108.8};
  EXPECT_EQ(memory.line(),
            "Theoretical memory footprints: weight and optimizer=4392.88 MB, activation=1073.12 MB, "
            "total=5466.00 MB\n");
}

TEST(TheoreticalMemory, HybridModelsHaveNone) {
  Config config;
  config.model.is_hybrid_model = true;
  EXPECT_FALSE(theoretical_memory(config, ParallelSizes{}, {}));
}

}  // namespace
}  // namespace megatron
