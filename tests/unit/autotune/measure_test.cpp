#include <gtest/gtest.h>

#include <cmath>

#include "megatron/autotune/fit/correct.h"
#include "megatron/autotune/measure/op_database.h"
#include "megatron/base/error.h"
#include "unit/autotune/models.h"

namespace megatron::autotune {
namespace {

TEST(OpDatabase, MeasuredFirstThenTheNearest) {
  OpDatabase db;
  for (const double us : {9.0, 10.0, 30.0}) db.add("linear forward a", "linear", "forward", 1e6, 1e3, us);
  db.add("linear forward b", "linear", "forward", 4e6, 2e3, 40);
  EXPECT_DOUBLE_EQ(*db.measured("linear forward a"), 10);
  EXPECT_FALSE(db.measured("linear forward c").has_value());
  EXPECT_DOUBLE_EQ(*db.seconds("linear forward a", "linear", "forward", 1e6, 1e3), 10e-6);
  // Between the two, both of which have 80 us per unit of work or so.
  const double between = *db.seconds("linear forward c", "linear", "forward", 2e6, 1.5e3) * 1e6;
  EXPECT_GT(between, 15);
  EXPECT_LT(between, 25);
  EXPECT_FALSE(db.estimated("linear", "backward", 1e6, 1e3).has_value());
}

TEST(OpDatabase, IsAFileOfJsonLines) {
  OpDatabase db;
  db.device = "CPU";
  db.library = "1.2";
  for (int i = 1; i <= 11; ++i) db.add("norm forward x", "norm", "forward", 5, 7, i);
  const OpDatabase again = OpDatabase::parse(db.text(), "db.jsonl");
  EXPECT_EQ(again.device, "CPU");
  EXPECT_EQ(again.library, "1.2");
  ASSERT_EQ(again.samples().size(), 1u);
  const OpSample& sample = again.samples().begin()->second;
  EXPECT_DOUBLE_EQ(sample.median(), 6);
  EXPECT_DOUBLE_EQ(sample.quantile(0), 2);
  EXPECT_DOUBLE_EQ(sample.quantile(1), 10);
  EXPECT_EQ(sample.op, "norm");
  EXPECT_EQ(sample.phase, "forward");
  EXPECT_EQ(sample.flops, 5);
  EXPECT_THROW(OpDatabase::parse("{\"key\": \"a\"}\n", "db.jsonl"), ConfigError);
  EXPECT_THROW(OpDatabase::parse("{\"key\": \"a\", \"op\": \"b\", \"us\": -1}\n", "db.jsonl"), ConfigError);
}

TEST(Correct, AgreesWithWhatWasMeasured) {
  const ModelShape model = llama_8b();
  const Cluster cluster = cluster_of(gpu_spec("H100"), 8);
  const Calibration& shipped = shipped_calibration("h100");
  const CostInputs in{model, cluster, stack_named("megatron-cpp"), shipped.constants, &shipped};
  // A machine that is half as fast, and slower still with two tensor ranks.
  std::vector<Candidate> plans;
  for (const int tp : {1, 2, 4}) {
    ParallelPlan plan{.gpus = 8, .tp = tp, .mbs = 1, .gbs = 64, .seq = 4096};
    plan.tp_overlap = tp > 1;
    Candidate c{plan, predict(in, plan), 0, {}, {}, {}};
    c.measured = c.prediction.seconds * (tp == 2 ? 2.4 : 2.0);
    plans.push_back(c);
  }
  const Calibration better = corrected(in, plans);
  const CostInputs again{model, cluster, in.stack, better.constants, &better};
  for (const Candidate& c : plans)
    EXPECT_NEAR(predict(again, c.plan).seconds / *c.measured, 1, 0.01) << plan_text(c.plan);
  // A plan of another shape is slower by what all have in common.
  ParallelPlan other{.gpus = 8, .tp = 1, .mbs = 2, .gbs = 64, .seq = 4096};
  const double ratio = predict(again, other).seconds / predict(in, other).seconds;
  EXPECT_GT(ratio, 1.9);
  EXPECT_LT(ratio, 2.3);
}

}  // namespace
}  // namespace megatron::autotune
