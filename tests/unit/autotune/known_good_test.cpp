// The checks that any cost model of large models must pass.
#include <gtest/gtest.h>

#include "megatron/autotune/search/search.h"
#include "unit/autotune/models.h"

namespace megatron::autotune {
namespace {

const Calibration& hopper() { return shipped_calibration("h100"); }

Prediction price(const ModelShape& model, const Cluster& cluster, const ParallelPlan& plan,
                 const Stack& stack = stack_named("megatron-core")) {
  return predict({model, cluster, stack, hopper().constants, &hopper()}, plan);
}

TEST(KnownGood, ContextAndShardedPlansOf8bAreClose) {
  const Cluster cluster = cluster_of(gpu_spec("H100"), 8);
  ParallelPlan ring{.gpus = 8, .cp = 2, .mbs = 1, .gbs = 128, .seq = 8192, .precision = Precision::fp8};
  ParallelPlan sharded = ring;
  sharded.cp = 1, sharded.shards = 8;
  const double a = price(llama_8b(), cluster, ring).seconds, b = price(llama_8b(), cluster, sharded).seconds;
  EXPECT_NEAR(a / b, 1, 0.05);
}

TEST(KnownGood, LayoutOf70bGainsOverEvenStages) {
  const Cluster cluster = cluster_of(gpu_spec("H100"), 64);
  ParallelPlan plan{
      .gpus = 64, .tp = 4, .pp = 8, .vpp = 5, .mbs = 1, .gbs = 256, .seq = 8192, .precision = Precision::fp8};
  plan.tp_overlap = true;
  const double even = price(llama_70b(), cluster, plan).seconds;
  const ModelShape model = llama_70b();
  plan.last_stage_layers =
      balanced_last_stage({model, cluster, stack_named("megatron-core"), hopper().constants, nullptr}, plan);
  EXPECT_LT(plan.last_stage_layers, 10);
  const double gain = even / price(llama_70b(), cluster, plan).seconds - 1;
  EXPECT_GT(gain, 0.03);
  EXPECT_LT(gain, 0.06);
}

TEST(KnownGood, SinksWithoutAFusedKernelCostHalfAsMuchAgain) {
  const Cluster cluster = cluster_of(gpu_spec("H100"), 64);
  const ParallelPlan plan{.gpus = 64, .pp = 4, .ep = 8, .mbs = 1, .gbs = 1280, .seq = 4096};
  Stack stack = stack_named("megatron-core");
  stack.host = 0;  // the host would hide the difference
  const double fused = price(gpt_oss_120b(), cluster, plan, stack).seconds;
  stack.fused_sinks = false;
  EXPECT_GT(price(gpt_oss_120b(), cluster, plan, stack).seconds / fused, 1.5);
}

TEST(KnownGood, PlainAllToAllBeyondTheDomainIsBoundByTheNic) {
  const Cluster cluster = cluster_of(gpu_spec("H100"), 256);
  ParallelPlan plan{.gpus = 256, .tp = 2, .pp = 8, .vpp = 4, .ep = 32, .mbs = 1, .gbs = 8192, .seq = 4096};
  plan.precision = Precision::fp8;
  const Stack& stack = stack_named("megatron-core");
  const ModelShape model = qwen3_235b();
  const CostInputs lasting{model, cluster, stack, hopper().constants, nullptr};
  const Prediction wide = predict(lasting, plan);
  EXPECT_TRUE(wide.network_binds_experts);
  EXPECT_EQ(what_binds(lasting, plan, wide), "NIC");
  plan.ep = 8;
  EXPECT_FALSE(predict(lasting, plan).network_binds_experts);
}

struct RecipeCase {
  ModelShape model;
  ParallelPlan plan;
};

TEST(KnownGood, PublishedPlansFitAndAreNearTheBest) {
  RecipeCase cases[] = {
      {llama_8b(), {.gpus = 8, .mbs = 1, .gbs = 128, .seq = 8192, .shards = 8}},
      {llama_70b(), {.gpus = 64, .tp = 4, .pp = 8, .vpp = 5, .mbs = 1, .gbs = 128, .seq = 8192}},
      {llama_405b(), {.gpus = 1024, .tp = 8, .pp = 8, .vpp = 8, .cp = 2, .mbs = 1, .gbs = 1536, .seq = 8192}},
  };
  for (RecipeCase& c : cases) {
    const Cluster cluster = cluster_of(gpu_spec("H100"), c.plan.gpus);
    const CostInputs in{c.model, cluster, stack_named("megatron-core"), hopper().constants, nullptr};
    c.plan.precision = Precision::fp8;
    c.plan.tp_overlap = c.plan.tp > 1;
    c.plan.last_stage_layers = balanced_last_stage(in, c.plan);
    // Against all plans of all schedules.
    const SearchRequest request{.in = in, .gbs = c.plan.gbs, .seq = c.plan.seq, .precision = Precision::fp8};
    const SearchResult found = search(request);
    ASSERT_FALSE(found.best.empty()) << c.model.name;
    EXPECT_TRUE(fits(in, memory_use(in, c.plan))) << c.model.name;
    const double ratio = predict(in, c.plan).seconds / found.front[0].prediction.seconds;
    EXPECT_LT(ratio, 1.06) << c.model.name << ": best is " << plan_text(found.front[0].plan);
    for (const Candidate& candidate : found.best) EXPECT_LE(candidate.plan.tp, 8);
  }
}

}  // namespace
}  // namespace megatron::autotune
