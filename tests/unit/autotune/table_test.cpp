#include "megatron/autotune/fit/table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "megatron/autotune/fit/evaluate.h"
#include "megatron/autotune/report/table_report.h"
#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

// Plans of a small model with times that the cost model itself gives, under constants that are not its
// priors.
Table planted_table(const Calibration& truth) {
  Json document = Json::object();
  Json& rows = document["rows"] = Json::array();
  int64_t id = 0;
  for (const int64_t hidden : {1024, 2048, 4096})
    for (const int64_t tp : {1, 2, 4, 8})
      for (const int64_t pp : {1, 2})
        for (const int64_t mbs : {1, 2, 4}) {
          if (tp * pp > 8) continue;
          Json row = Json::object();
          row["id"] = id++;
          row["kind"] = "single node";
          row["gpus"] = 8;
          row["gbs"] = 64;
          row["mbs"] = mbs;
          row["hidden"] = hidden;
          row["heads"] = 16;
          row["layers"] = 16;
          row["seq"] = 1024;
          row["tp"] = tp;
          row["pp"] = pp;
          row["dp"] = 8 / tp / pp;
          row["iteration_ms"] = 1.0;
          rows.push_back(std::move(row));
        }
  Table table = parse_table(document, "planted");
  for (TableRow& row : table.rows) row.measured = row.predicted(truth);
  return table;
}

TEST(Fit, FindsPlantedConstants) {
  Calibration truth{a100_constants(), {}};
  truth.constants.gemm16 = 0.62;
  truth.constants.host_backward_ms = 1.5;
  truth.constants.nvlink = 0.5;
  const Table table = planted_table(truth);
  std::vector<const TableRow*> rows;
  for (const TableRow& row : table.rows) rows.push_back(&row);
  const Calibration found = fit_constants(rows, a100_constants(), measured_constants(), false);
  double worst = 0;
  for (const TableRow* row : rows)
    worst = std::max(worst, std::abs(row->predicted(found) / row->measured - 1));
  EXPECT_LT(worst, 0.02);
  EXPECT_NEAR(found.constants.gemm16, 0.62, 0.05);
  EXPECT_NEAR(found.constants.host_backward_ms, 1.5, 0.25);
}

TEST(Fit, GivesLayersTheirFactor) {
  Calibration truth{a100_constants(), {}};
  Table table = planted_table(truth);
  const LayerShape odd = layer_shape(*table.rows[0].model, table.rows[0].plan);
  truth.layers = {{odd, 1.3}};
  std::vector<const TableRow*> rows;
  for (TableRow& row : table.rows) {
    row.measured = row.predicted(truth);
    rows.push_back(&row);
  }
  const Calibration found = fit_constants(rows, a100_constants(), measured_constants(), true);
  EXPECT_GT(found.layer_factor(odd), 1.15);
  EXPECT_LT(found.layer_factor(odd), 1.35);
}

TEST(Calibration, RoundTripsAndRefuses) {
  const Calibration& shipped = shipped_calibration("a100");
  EXPECT_GT(shipped.layers.size(), 20u);
  const Calibration again = parse_calibration(to_json(shipped), "again");
  EXPECT_EQ(again.layers.size(), shipped.layers.size());
  EXPECT_NEAR(again.constants.gemm16, shipped.constants.gemm16, 1e-6);
  EXPECT_EQ(again.layer_factor(shipped.layers[3].shape), shipped.layers[3].factor);
  for (const char* text : {R"([])", R"({"constants": {"gem": 1}})", R"({"constants": {"gemm16": "x"}})",
                           R"({"layers": [{"shape": [1], "factor": 1}]})", R"({"layers": [3]})"})
    EXPECT_THROW(parse_calibration(Json::parse(text), "t"), ConfigError) << text;
}

TEST(Table, RefusesMalformedRows) {
  const std::string good =
      R"({"id": 1, "kind": "x", "gpus": 8, "gbs": 8, "mbs": 1, "hidden": 64, "heads": 4, "layers": 2, "seq": 32,
          "tp": 2, "dp": 2, "pp": 2, "iteration_ms": 5})";
  EXPECT_EQ(parse_table(Json::parse(R"({"rows": [)" + good + "]}"), "t").rows.size(), 1u);
  for (const char* key :
       {"gpus", "gbs", "mbs", "hidden", "heads", "layers", "seq", "tp", "dp", "pp", "iteration_ms"})
    for (const char* value : {"-1", "\"x\"", "[]", "4611686018427387904"}) {
      Json row = Json::parse(good);
      row[key] = Json::parse(value);
      Json document = Json::object();
      document["rows"] = Json::array();
      document["rows"].push_back(row);
      if (std::string_view(key) == "iteration_ms" && std::string_view(value).starts_with("46")) continue;
      try {
        parse_table(document, "t.json");
        ADD_FAILURE() << key << " " << value;
      } catch (const ConfigError& error) {
        EXPECT_TRUE(std::string_view(error.what()).starts_with("t.json: row 1: ")) << error.what();
      }
    }
  for (const char* text : {"[]", "{}", R"({"rows": 3})", R"({"rows": [[]]})", R"({"rows": [{}]})"})
    EXPECT_THROW(parse_table(Json::parse(text), "t"), ConfigError) << text;
}

TEST(Table, PredictsRowsWithoutAMeasurement) {
  const Table table =
      parse_table(Json::parse(R"({"rows": [{"id": 1, "kind": "x", "gpus": 8, "gbs": 8, "mbs": 1,
      "hidden": 1024, "heads": 16, "layers": 16, "seq": 1024, "tp": 2, "dp": 2, "pp": 2}]})"),
                  "t");
  const Calibration& given = shipped_calibration("a100");
  const Evaluation e = evaluate(table, given, 2, 1);
  const Json json = predict_json(table, e, given, 2);
  EXPECT_GT(json.at("rows")[0].at("predicted").as_double(), 10);
  EXPECT_TRUE(json.at("rows")[0].at("error").is_null());
  EXPECT_TRUE(json.at("rows")[0].at("measured").is_null());
}

TEST(Evaluate, SummaryIsByRank) {
  const ErrorSummary s = summarize({-0.1, 0.2, 0.0, 0.3, -0.4});
  EXPECT_EQ(s.count, 5);
  EXPECT_DOUBLE_EQ(s.median, 0.2);
  EXPECT_DOUBLE_EQ(s.max, 0.4);
  EXPECT_NEAR(s.bias, 0.0, 1e-12);
  EXPECT_NEAR(s.p95, 0.38, 1e-12);
  EXPECT_EQ(summarize({}).count, 0);
}

TEST(Evaluate, SpearmanKnowsTies) {
  const double a[] = {1, 2, 3, 4}, b[] = {10, 20, 30, 40}, c[] = {4, 3, 2, 1}, d[] = {1, 1, 2, 2};
  EXPECT_DOUBLE_EQ(spearman(a, b), 1);
  EXPECT_DOUBLE_EQ(spearman(a, c), -1);
  EXPECT_NEAR(spearman(a, d), 0.894427, 1e-6);
}

TEST(Rank, LossIsAgainstTheBestMeasured) {
  const Calibration truth{a100_constants(), {}};
  Table table = planted_table(truth);
  std::vector<const TableRow*> rows;
  for (TableRow& row : table.rows) rows.push_back(&row);
  for (const RankedGroup& group : rank_groups(rows, truth)) EXPECT_EQ(group.loss, 0);
  // What is predicted first was measured to take twice as long.
  TableRow* first = const_cast<TableRow*>(rank_groups(rows, truth)[0].order[0]);
  const double next = rank_groups(rows, truth)[0].order[1]->measured;
  first->measured *= 2;
  EXPECT_NEAR(rank_groups(rows, truth)[0].loss, first->measured / next - 1, 1e-9);
}

TEST(TableReport, FitsEightyColumns) {
  const Table table = planted_table({a100_constants(), {}});
  const Calibration& given = shipped_calibration("a100");
  const Evaluation e = evaluate(table, given, 2, 1);
  for (const std::string& text : {predict_text("/a/b/planted.json", table, e, 2), rows_text(table, given),
                                  rank_text("planted.json", table, e, given, 2)}) {
    for (size_t start = 0, end; (end = text.find('\n', start)) != std::string::npos; start = end + 1)
      EXPECT_LE(end - start, 80u) << text.substr(start, end - start);
  }
  EXPECT_NE(predict_text("planted.json", table, e, 2).find("held out: single node"), std::string::npos);
}

}  // namespace
}  // namespace megatron::autotune
