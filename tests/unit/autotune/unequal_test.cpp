// Plans for machines that lost GPUs, and for samples shorter than a row.
#include "megatron/autotune/cost/unequal.h"

#include <gtest/gtest.h>

#include "megatron/autotune/search/recipe.h"
#include "megatron/autotune/search/search.h"
#include "unit/autotune/models.h"

namespace megatron::autotune {
namespace {

const Calibration& constants() { return shipped_calibration("h100"); }

TEST(Unequal, AReplicaIsAsSlowAsItsFullestRank) {
  ModelShape model = llama_405b();
  model.kv_heads = 128;
  ParallelPlan plan{.tp = 32, .seq = 16384};
  plan.reduced_replicas = 1;
  plan.tp_spares = 2;
  const double at30 = reduced_slowdown(model, plan);
  plan.tp_spares = 4;
  const double at28 = reduced_slowdown(model, plan);
  // 128 heads give five a rank at 30 and at 28 ranks: attention is a quarter slower at both.
  EXPECT_GT(at30, 32.0 / 30);
  EXPECT_LT(at30, 1.25);
  EXPECT_GT(at28, at30);
  EXPECT_LT(at28, 1.25);
  plan.tp_spares = 16;
  EXPECT_NEAR(reduced_slowdown(model, plan), 2, 1e-9);
}

TEST(Unequal, BatchesAreSharedSoThatTheLaterEndsFirst) {
  for (const int reduced : {1, 3, 8})
    for (const double slow : {1.07, 1.3, 2.0})
      for (const int vpp : {1, 2}) {
        ParallelPlan plan{.gpus = 64, .tp = 4, .pp = 2, .vpp = vpp, .mbs = 2, .gbs = 512};
        plan.tp_spares = 1;
        plan.reduced_replicas = reduced;
        const UnequalBatches split = unequal_batches(plan, slow);
        const int64_t whole = 8 - reduced;
        EXPECT_GE(whole * split.whole + reduced * split.reduced, 256);
        EXPECT_EQ(split.whole % vpp + split.reduced % vpp, 0);  // rounds of pp = 2 where it interleaves
        // No other split is better.
        for (int64_t few = 0; few <= 256; few += vpp)
          for (int64_t many = whole > 0 ? vpp : 0; many <= (whole > 0 ? 256 : 0); many += vpp)
            if (whole * many + reduced * few >= 256)
              EXPECT_LE(split.steps, std::max(double(many), slow * double(few)) + 1e-9);
      }
}

TEST(Unequal, LostGpusCostLessThanTheirReplicas) {
  const ModelShape model = llama_70b();
  const Cluster cluster = cluster_of(gpu_spec("H100"), 512);
  const CostInputs in{model, cluster, stack_named("megatron-cpp"), constants().constants, &constants()};
  SearchRequest request{.in = in, .gbs = 1024, .seq = 8192};
  const double whole = search(request).front[0].prediction.seconds;
  request.lost_gpus = 3;
  const SearchResult lost = search(request);
  ASSERT_FALSE(lost.best.empty());
  int unequal = 0, fewer = 0;
  for (const std::vector<Candidate>* list : {&lost.best, &lost.front})
    for (const Candidate& c : *list) {
      // The lost ones are used by no plan: there are unequal replicas, or GPUs are left.
      EXPECT_TRUE(c.plan.unequal() || c.plan.gpus <= 512 - 3 * 8) << plan_text(c.plan);
      if (c.plan.unequal()) {
        ++unequal;
        EXPECT_GE(c.plan.tp_spares * c.plan.reduced_replicas, 3) << plan_text(c.plan);
        EXPECT_FALSE(c.plan.tp_overlap);
        const Json settings = plan_settings(model, c.plan, {});
        EXPECT_EQ(settings.at("model").at("tp_spares").as_int(), c.plan.tp_spares);
        EXPECT_EQ(settings.at("model").at("num_reduced_tp_dp_ranks").as_int(), c.plan.reduced_replicas);
      } else {
        ++fewer;
      }
      EXPECT_EQ(illegal(model, cluster, c.plan), "") << plan_text(c.plan);
    }
  EXPECT_GT(unequal, 0);
  EXPECT_GT(fewer, 0);
  EXPECT_GT(lost.front[0].prediction.seconds, whole);
  EXPECT_LT(lost.front[0].prediction.seconds, 1.25 * whole);
  // By itself, an unequal plan loses less than leaving its replicas out.
  ParallelPlan plan{.gpus = 512, .tp = 8, .pp = 4, .mbs = 1, .gbs = 1024, .seq = 8192};
  const double all = predict(in, plan).seconds;
  plan.tp_spares = 1;
  plan.reduced_replicas = 3;
  const double reduced = predict(in, plan).seconds;
  EXPECT_GT(reduced, all);
  EXPECT_LT(reduced, all * 16 / 13);
  EXPECT_NEAR(predict(in, plan).breakdown.total(), reduced, 1e-12);
}

TEST(Packing, RowsHoldTheSamples) {
  for (const int64_t samples : {8, 100, 256, 1024})
    for (const int64_t seq : {4096, 8192, 32768}) {
      const PackedRows packed = packed_rows(samples, 700, seq);
      const double held = static_cast<double>(packed.rows * seq) * packed.useful / 700;
      if (packed.rows > 8) EXPECT_NEAR(held / static_cast<double>(samples), 1, 0.13);
      EXPECT_GT(packed.useful, 0.9);
    }
}

TEST(Packing, ShortSamplesShareRows) {
  const ModelShape model = llama_8b();
  const Cluster cluster = cluster_of(gpu_spec("H100"), 8);
  const CostInputs in{model, cluster, stack_named("megatron-cpp"), constants().constants, &constants()};
  SearchRequest request{.in = in, .gbs = 256, .seq = 4096};
  const SearchResult full = search(request);
  request.mean_length = 1024;
  request.max_token_len = 16384;
  const SearchResult found = search(request);
  ASSERT_FALSE(found.best.empty());
  const ParallelPlan& plan = found.best[0].plan;
  EXPECT_EQ(plan.packed, 1024);
  EXPECT_LE(plan.seq, 16384);
  EXPECT_EQ(plan_settings(model, plan, {}).at("dataset").at("packing").as_string(), "offline");
  EXPECT_EQ(plan_settings(model, plan, {}).at("model").at("seq_length").as_int(), plan.seq);
  // A quarter of the tokens, and attention that is shorter; padding and the update remain.
  EXPECT_LT(found.front[0].prediction.seconds, 0.33 * full.front[0].prediction.seconds);
  EXPECT_GT(found.front[0].prediction.seconds, 0.2 * full.front[0].prediction.seconds);
  // Padded rows take what full ones take, and count fewer tokens.
  request.max_token_len = 0;
  const SearchResult again = search(request);
  ASSERT_FALSE(again.best.empty());
  EXPECT_EQ(again.best.size(), full.best.size());
  for (const Candidate& c : again.best) {
    EXPECT_EQ(c.plan.packed, 0);
    EXPECT_NEAR(c.plan.useful, 0.25, 1e-12);
    EXPECT_EQ(plan_settings(model, c.plan, {}).at("dataset").at("packing").as_string(), "none");
  }
  EXPECT_NEAR(again.front[0].prediction.seconds / full.front[0].prediction.seconds, 1, 1e-9);
}

}  // namespace
}  // namespace megatron::autotune
