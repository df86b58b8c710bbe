#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "megatron/autotune/report/simulation_report.h"
#include "megatron/autotune/simulate/iteration.h"
#include "megatron/autotune/simulate/stage_layout.h"
#include "megatron/base/json.h"
#include "unit/autotune/models.h"

namespace megatron::autotune {
namespace {

struct Machine {
  ModelShape model;
  Cluster cluster;
  Calibration calibration = shipped_calibration("h100");
  CostInputs in() const {
    return {model, cluster, stack_named("megatron-cpp"), calibration.constants, &calibration};
  }
};

Machine h100(ModelShape model, int gpus) { return {std::move(model), cluster_of(gpu_spec("H100"), gpus)}; }

TEST(Simulate, EventsAgreeWithTheClosedForm) {
  const Machine s = h100(llama_70b(), 64);
  for (const int pp : {1, 2, 4, 8})
    for (const int vpp : {1, 2, 5}) {
      if (pp == 1 && vpp > 1) continue;
      ParallelPlan plan{
          .gpus = 64, .tp = 4, .pp = pp, .vpp = vpp, .mbs = 1, .gbs = 16 / pp * 32, .seq = 4096};
      plan.tp_overlap = true;
      plan.last_stage_layers = balanced_last_stage(s.in(), plan);
      if (plan.last_stage_layers < vpp) plan.last_stage_layers = 0;
      const SimulatedIteration run = simulate_iteration(s.in(), plan);
      EXPECT_NEAR(run.seconds / predict(s.in(), plan).seconds, 1, 0.05) << plan_text(plan);
      EXPECT_EQ(run.ranks_per_stage * pp, 64);
    }
}

TEST(Simulate, WeightGradientsFillTheBubble) {
  const Machine s = h100(llama_70b(), 64);
  for (const int pp : {4, 8}) {
    ParallelPlan plan{.gpus = 64, .tp = 4, .pp = pp, .mbs = 1, .gbs = 16 / pp * 24, .seq = 4096};
    plan.tp_overlap = true;
    plan.last_stage_layers = balanced_last_stage(s.in(), plan);
    const double plain = simulate_iteration(s.in(), plan).seconds;
    double before = plain;
    for (const Schedule schedule : {Schedule::zb_h1, Schedule::zb_v}) {
      plan.schedule = schedule;
      if (schedule == Schedule::zb_v) plan.last_stage_layers = 0;
      const SimulatedIteration run = simulate_iteration(s.in(), plan);
      EXPECT_LT(run.seconds, before) << plan_text(plan);
      EXPECT_NEAR(run.seconds / predict(s.in(), plan).seconds, 1, 0.06) << plan_text(plan);
      before = plain;
    }
  }
}

TEST(Simulate, SteadyStateIsExtrapolated) {
  const Machine s = h100(llama_70b(), 64);
  ParallelPlan plan{.gpus = 64, .tp = 4, .pp = 8, .vpp = 5, .mbs = 1, .gbs = 256, .seq = 4096};
  SimulationOptions few;
  few.most_microbatches = 32;
  const double all = simulate_iteration(s.in(), plan).seconds;
  EXPECT_NEAR(simulate_iteration(s.in(), plan, few).seconds / all, 1, 0.01);
}

TEST(Simulate, SixteenThousandRanksAreOnePipeline) {
  const Machine s = h100(llama_405b(), 16384);
  ParallelPlan plan{.gpus = 16384, .tp = 8, .pp = 16, .vpp = 4, .mbs = 1, .gbs = 4096, .seq = 8192};
  const auto start = std::chrono::steady_clock::now();
  const SimulatedIteration run = simulate_iteration(s.in(), plan);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(run.stages.size(), 16u);
  EXPECT_EQ(run.ranks_per_stage, 1024);
}

TEST(Simulate, ASlowGpuHoldsUpItsPipeline) {
  const Machine s = h100(llama_70b(), 64);
  ParallelPlan plan{.gpus = 64, .tp = 4, .pp = 4, .mbs = 1, .gbs = 128, .seq = 4096};
  SimulationOptions slow;
  slow.slow_stage = 1;
  slow.slowdown = 1.5;
  const double ratio =
      simulate_iteration(s.in(), plan, slow).seconds / simulate_iteration(s.in(), plan).seconds;
  EXPECT_GT(ratio, 1.3);
  EXPECT_LT(ratio, 1.5);
}

TEST(Simulate, SpansOfAStageDoNotMeet) {
  const Machine s = h100(llama_70b(), 64);
  ParallelPlan plan{.gpus = 64, .tp = 4, .pp = 4, .vpp = 2, .mbs = 1, .gbs = 64, .seq = 4096};
  const SimulatedIteration run = simulate_iteration(s.in(), plan);
  for (const auto& spans : run.stages) {
    std::vector<std::pair<double, double>> busy;
    for (const SimulatedSpan& span : spans)
      if (span.kind <= SpanKind::weight || span.kind == SpanKind::update)
        busy.emplace_back(span.begin, span.end);
    std::sort(busy.begin(), busy.end());
    for (size_t i = 1; i < busy.size(); ++i) EXPECT_GE(busy[i].first, busy[i - 1].second - 1e-9);
    EXPECT_EQ(busy.size(), 2u * 2 * 16 + 1);
  }
  const Json trace = Json::parse(report::chrome_trace(simulation_trace(run, 2)), "trace");
  EXPECT_GT(trace.at("traceEvents").size(), 2u * 4 * 64);
  EXPECT_NE(simulation_svg(run, "a < b").find("a &lt; b"), std::string::npos);
  // The first stage begins once its weights are there; every stage has a line of its own.
  const std::string lanes = simulation_lanes(run, 60);
  EXPECT_EQ(std::count(lanes.begin(), lanes.end(), '\n'), 4);
  EXPECT_LT(lanes.find('F'), lanes.find('B'));
}

TEST(StageLayout, IsTheBestOfAllDivisions) {
  const std::vector<double> seconds{1, 1, 1, 3, 3, 3, 3, 2, 2};
  for (const int stages : {1, 2, 3, 4}) {
    LayoutProblem problem;
    problem.seconds = seconds;
    problem.last_seconds = 2.5;
    const std::vector<int> found = best_layout(problem, stages);
    ASSERT_EQ(static_cast<int>(found.size()), stages);
    const auto slowest = [&](const std::vector<int>& sizes) {
      double most = 0;
      size_t layer = 0;
      for (size_t stage = 0; stage < sizes.size(); ++stage) {
        double sum = stage + 1 == sizes.size() ? problem.last_seconds : 0;
        for (int i = 0; i < sizes[stage]; ++i) sum += seconds[layer++];
        most = std::max(most, sum);
      }
      return most;
    };
    double best = 1e9;
    std::vector<int> sizes(static_cast<size_t>(stages), 1);
    const std::function<void(size_t, int)> all = [&](size_t stage, int left) {
      if (stage + 1 == sizes.size()) {
        sizes[stage] = left;
        best = std::min(best, slowest(sizes));
        return;
      }
      for (int count = 1; count <= left - (stages - static_cast<int>(stage) - 1); ++count) {
        sizes[stage] = count;
        all(stage + 1, left - count);
      }
    };
    all(0, static_cast<int>(seconds.size()));
    EXPECT_DOUBLE_EQ(slowest(found), best) << stages;
  }
}

TEST(StageLayout, KeepsToTheLimitOfBytes) {
  LayoutProblem problem;
  problem.seconds.assign(8, 1);
  problem.bytes.assign(8, 1);
  problem.held = {4, 3, 2, 1};
  problem.limit = 7;
  // Four stages of two would hold 8 bytes on the first.
  const std::vector<int> found = best_layout(problem, 4);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0], 1);
  EXPECT_EQ(found[0] + found[1] + found[2] + found[3], 8);
  problem.limit = 1;
  EXPECT_TRUE(best_layout(problem, 4).empty());
  EXPECT_TRUE(best_layout(problem, 9).empty());
}

}  // namespace
}  // namespace megatron::autotune
