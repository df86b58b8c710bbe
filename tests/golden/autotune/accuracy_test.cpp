// The tuner's targets on figures that others published and measured. Constants are fitted on half of the
// configurations and judged on the other, twenty times.
#include <gtest/gtest.h>

#include "megatron/autotune/fit/evaluate.h"
#include "megatron/autotune/report/table_report.h"

namespace megatron::autotune {
namespace {

Table golden_table(const std::string& name) { return read_table(MEGATRON_GOLDEN_DIR "/autotune/" + name); }

TEST(Accuracy, PublishedFigures) {
  const Table table = golden_table("published-performance.json");
  const Evaluation e = evaluate(table, shipped_calibration("h100"), 20, 1234);
  const ErrorSummary& dense = e.held_out.at("H100 dense");
  const ErrorSummary& moe = e.held_out.at("H100 MoE");
  EXPECT_GE(dense.count, 200);
  EXPECT_GE(moe.count, 100);
  EXPECT_LE(dense.median, 0.04);
  EXPECT_LE(dense.p95, 0.10);
  EXPECT_LE(moe.median, 0.05);
  EXPECT_LE(moe.p95, 0.20);
  EXPECT_LE(dense.p95, e.baseline.at("H100 dense").p95 / 2);
  EXPECT_LE(moe.p95, e.baseline.at("H100 MoE").p95 / 2);
  // H200 was never fitted.
  const ErrorSummary& h200 = e.shipped.at("H200 dense");
  EXPECT_EQ(h200.count, 10);
  EXPECT_LE(h200.median, 0.05);
  EXPECT_LE(h200.p95, 0.09);
  EXPECT_GE(e.ordering.spearman.at("dense 8-bit"), 0.75);
  EXPECT_GE(e.ordering.spearman.at("MoE"), 0.9);
  EXPECT_GE(e.ordering.same_precision.right, 0.95 * e.ordering.same_precision.all);
  EXPECT_GE(e.ordering.cross_precision.right, 0.85 * e.ordering.cross_precision.all);
  // A terminal of 80 columns shows it whole, with every row that is not judged.
  const std::string text = predict_text("published-performance.json", table, e, 20);
  for (size_t start = 0, end; (end = text.find('\n', start)) != std::string::npos; start = end + 1)
    EXPECT_LE(end - start, 80u) << text.substr(start, end - start);
  for (const char* name :
       {"token drop", "gpt-oss before 26.06", "AutoModel", "llmq FP8", "Qwen3-30B", "rowwise"})
    EXPECT_NE(text.find(name), std::string::npos) << name;
}

TEST(Accuracy, MeasuredPlans) {
  const Table table = golden_table("measured-plans-a100.json");
  EXPECT_EQ(table.rows.size(), 195u);
  const Evaluation e = evaluate(table, shipped_calibration("a100"), 20, 1234);
  const ErrorSummary& node = e.held_out.at("single node");
  EXPECT_LE(node.median, 0.06);
  EXPECT_LE(node.p95, 0.15);
  EXPECT_LE(e.held_out.at("multi node").median, 0.10);
  EXPECT_LE(e.loss, 0.02);
}

TEST(Accuracy, DrawsAreTheSameEachTime) {
  const Table table = golden_table("measured-plans-a100.json");
  const Evaluation a = evaluate(table, shipped_calibration("a100"), 1, 7),
                   b = evaluate(table, shipped_calibration("a100"), 1, 7);
  EXPECT_EQ(a.held_out.at("single node").median, b.held_out.at("single node").median);
  const Evaluation c = evaluate(table, shipped_calibration("a100"), 1, 8);
  EXPECT_NE(a.held_out.at("single node").median, c.held_out.at("single node").median);
}

// The shipped constants are those of the tables.
TEST(Accuracy, ShippedConstantsWereFittedHere) {
  const Table table = golden_table("published-performance.json");
  const Evaluation e = evaluate(table, shipped_calibration("h100"), 0, 1);
  EXPECT_NEAR(e.calibration.constants.gemm16, shipped_calibration("h100").constants.gemm16, 1e-3);
  EXPECT_NEAR(e.calibration.constants.host_moe_ms, shipped_calibration("h100").constants.host_moe_ms, 1e-2);
}

}  // namespace
}  // namespace megatron::autotune
