#include <gtest/gtest.h>

#include <cmath>

#include "megatron/autotune/cost/cost_model.h"
#include "megatron/autotune/cost/kernel_cost.h"
#include "unit/autotune/models.h"

namespace megatron::autotune {
namespace {

struct Priced {
  ModelShape model;
  Cluster cluster;
  Calibration calibration = shipped_calibration("h100");
  Stack stack = stack_named("megatron-core");
  CostInputs in() const { return {model, cluster, stack, calibration.constants, &calibration}; }
};

Priced on(ModelShape model, const char* gpu, int gpus) {
  return {std::move(model), cluster_of(gpu_spec(gpu), gpus)};
}

TEST(Cost, ParametersAreThoseOfThePublishers) {
  EXPECT_NEAR(llama_8b().params() / 1e9, 8.03, 0.01);
  EXPECT_NEAR(llama_70b().params() / 1e9, 70.55, 0.05);
  EXPECT_NEAR(llama_405b().params() / 1e9, 405.8, 0.3);
  EXPECT_NEAR(deepseek_v3().params() / 1e9, 671, 1);
  EXPECT_NEAR(qwen3_235b().params() / 1e9, 235, 1);
}

TEST(Cost, FlopsAreThoseOfThePublishers) {
  // tokens/s and TFLOP/s of one published row each.
  EXPECT_NEAR(llama_8b().flops_per_token(8192) * 14451 / 744e12, 1, 0.04);
  EXPECT_NEAR(llama_70b().flops_per_token(8192) * 1639 / 736e12, 1, 0.04);
  EXPECT_NEAR(llama_405b().flops_per_token(8192) * 326 / 822e12, 1, 0.04);
  EXPECT_NEAR(qwen3_235b().flops_per_token(4096) * 1686 / 250e12, 1, 0.04);
  // By hand: 3 x (2 x (h x (q + 2 kv + q) + 3 h f) x L + 2 S q L) + 6 h V.
  const double by_hand =
      3 * 32 * (2 * (4096.0 * (4096 + 2048 + 4096) + 3 * 4096.0 * 14336) + 2 * 8192 * 4096.0) +
      6 * 4096.0 * 128256;
  EXPECT_NEAR(llama_8b().flops_per_token(8192), by_hand, 1e-9 * by_hand);
}

TEST(Cost, GemmOccupancyCountsTilesAndWaves) {
  // 132 tiles of 128 x 256 fill 132 SMs once; K alone costs.
  EXPECT_NEAR(gemm_occupancy(128 * 12, 256 * 11, 4096, 132), 4096.0 / (4096 + 256), 1e-12);
  // One tile more is a second wave.
  EXPECT_LT(gemm_occupancy(128 * 133, 256, 4096, 132), 0.9);
  EXPECT_LT(gemm_occupancy(16, 4096, 4096, 132), 0.15);
  // Grouped GEMMs share waves.
  EXPECT_GT(gemm_occupancy(128, 256, 4096, 132, 132), 10 * gemm_occupancy(128, 256, 4096, 132, 1));
}

TEST(Cost, GemmIsBoundByArithmeticOrMemory) {
  const GpuSpec& gpu = gpu_spec("H100");
  const CostConstants c;
  const double large = gemm_seconds(gpu, c, GemmType::bits16, 8192, 8192, 8192);
  EXPECT_NEAR(2 * std::pow(8192.0, 3) / large / 989e12, c.gemm16 * gemm_occupancy(8192, 8192, 8192, 132),
              1e-9);
  const double thin = gemm_seconds(gpu, c, GemmType::bits16, 1, 8192, 8192);
  EXPECT_GE(thin, 2 * 8192.0 * 8192 / (c.memory * 3.35e12));
  EXPECT_EQ(gemm_seconds(gpu, c, GemmType::bits16, 0, 8192, 8192), 0);
}

TEST(Cost, CollectivesFollowTheTopology) {
  Priced s = on(llama_8b(), "H100", 64);
  const CostConstants& c = s.calibration.constants;
  const double bytes = 1e9;
  EXPECT_EQ(collective_seconds(s.in(), bytes, 1, 1), 0);
  EXPECT_NEAR(collective_seconds(s.in(), bytes, 8, 1),
              c.latency_us * 1e-6 + bytes * 7 / 8 / (c.nvlink * 450e9), 1e-9);
  // Eight ranks, one on each node: the NIC. Sixteen with two on each: two NICs.
  const double one = collective_seconds(s.in(), bytes, 8, 8), two = collective_seconds(s.in(), bytes, 16, 4);
  EXPECT_NEAR(one, bytes * 7 / 8 / (c.nic * 50e9), 1e-4);
  EXPECT_NEAR(two, one / 2, 1e-4);
  // Beyond its pod a group gets less.
  s.cluster.pod_nodes = 4;
  s.cluster.oversubscription = 2;
  EXPECT_NEAR(collective_seconds(s.in(), bytes, 8, 8), 2 * one, 1e-3);
}

TEST(Cost, ExposedCommunicationIsAShareOrTheRest) {
  CostConstants c;
  c.exposed = 0.25;
  EXPECT_DOUBLE_EQ(exposed_seconds(c, 1.0, 100), 0.25);
  EXPECT_DOUBLE_EQ(exposed_seconds(c, 10.0, 5), 10 - 4.5);
}

// One-forward-one-backward as events: stage i holds pp - i micro-batches at most and prefers backward passes.
double simulate_1f1b(const std::vector<double>& forward, const std::vector<double>& backward,
                     int microbatches) {
  const size_t stages = forward.size();
  std::vector<std::vector<double>> f(stages, std::vector<double>(microbatches, -1)), b = f;
  std::vector<double> free(stages, 0);
  std::vector<int> next_f(stages, 0), next_b(stages, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < stages; ++i)
      for (;;) {
        const int warm = static_cast<int>(stages - i);
        const bool wants_b = next_f[i] - next_b[i] >= warm || next_f[i] == microbatches;
        if (wants_b && next_b[i] < microbatches) {
          const int k = next_b[i];
          const double ready = i + 1 == stages ? f[i][k] : b[i + 1][k];
          if (ready < 0) break;
          free[i] = b[i][k] = std::max(free[i], ready) + backward[i];
          ++next_b[i];
        } else if (next_f[i] < microbatches) {
          const int k = next_f[i];
          const double ready = i == 0 ? 0 : f[i - 1][k];
          if (ready < 0) break;
          free[i] = f[i][k] = std::max(free[i], ready) + forward[i];
          ++next_f[i];
        } else {
          break;
        }
        moved = true;
      }
  }
  return *std::max_element(free.begin(), free.end());
}

TEST(Cost, PipelineIsWhatEventsGive) {
  Priced s = on(llama_70b(), "H100", 64);
  s.calibration.constants.host_forward_ms = s.calibration.constants.host_backward_ms = 0;
  for (const int pp : {2, 4, 8})
    for (const int last : {0, 80 / pp - 2, 80 / pp + 1}) {
      ParallelPlan plan{.gpus = 64, .tp = 4, .pp = pp, .mbs = 1, .gbs = 64 / 4 / pp * 24, .seq = 4096};
      plan.last_stage_layers = last;
      const Prediction p = predict(s.in(), plan);
      const PassPair layer = layer_cost(s.in(), plan), embedding = embedding_cost(s.in(), plan),
                     head = head_cost(s.in(), plan);
      const LayerSplit split = layer_split(s.model, plan);
      const double exchange = p.breakdown.pp / 24;
      std::vector<double> forward(pp, split.larger * layer.forward.gpu() + exchange / 2),
          backward(pp, split.larger * layer.backward.gpu() + exchange / 2);
      for (int stage = 0; stage < split.first_larger; ++stage) {
        forward[stage] = split.first * layer.forward.gpu() + exchange / 2;
        backward[stage] = split.first * layer.backward.gpu() + exchange / 2;
      }
      forward[0] += embedding.forward.gpu(), backward[0] += embedding.backward.gpu();
      forward[pp - 1] = split.last * layer.forward.gpu() + head.forward.gpu() + exchange / 2;
      backward[pp - 1] = split.last * layer.backward.gpu() + head.backward.gpu() + exchange / 2;
      const Breakdown& b = p.breakdown;
      const double pipeline = p.seconds - b.dp - b.optimizer - b.step;
      EXPECT_NEAR(pipeline / simulate_1f1b(forward, backward, 24), 1, 0.015)
          << "pp " << pp << " last " << last;
    }
}

TEST(Cost, PartsAddUp) {
  const Priced s = on(qwen3_235b(), "H100", 256);
  ParallelPlan plan{.gpus = 256, .tp = 2, .pp = 8, .vpp = 4, .ep = 32, .mbs = 1, .gbs = 2048, .seq = 4096};
  const Prediction p = predict(s.in(), plan);
  EXPECT_NEAR(p.breakdown.total(), p.seconds, 1e-12);
  EXPECT_GE(p.breakdown.host, -1e-9);
  EXPECT_GT(p.uncertainty, 0.02);
  EXPECT_LT(p.uncertainty, 0.5);
}

TEST(Cost, MeasuredLayersScaleTheLayerAlone) {
  Priced s = on(llama_8b(), "H100", 8);
  ParallelPlan plan{.gpus = 8, .mbs = 1, .gbs = 64, .seq = 8192};
  const double before = layer_cost(s.in(), plan).forward.gpu(), head = head_cost(s.in(), plan).forward.gpu();
  s.calibration.layers = {{layer_shape(s.model, plan), 1.25}};
  EXPECT_NEAR(layer_cost(s.in(), plan).forward.gpu(), 1.25 * before, 1e-12);
  EXPECT_EQ(head_cost(s.in(), plan).forward.gpu(), head);
  plan.mbs = 2;
  EXPECT_EQ(s.calibration.layer_factor(layer_shape(s.model, plan)), 1);
}

}  // namespace
}  // namespace megatron::autotune
