#include <gtest/gtest.h>

#include <cmath>

#include "megatron/report/run_page.h"
#include "megatron/report/svg.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron::report {
namespace {

using testing::error_of;

std::string row(int64_t iteration, double loss) {
  return fmt::format(
      R"({{"iteration":{},"lm_loss":{},"grad_norm":1.5,"learning_rate":0.0003,"iteration_ms":100.0,"data_wait_ms":1.0,)"
      R"("tokens_per_second":5000.0,"model_tflops":400.0,"memory_gib":60.0,"reserved_gib":61.0}})"
      "\n",
      iteration, loss);
}

// The numbers of the page, as its script reads them.
Json data_of(const std::string& page) {
  const std::string begin = "id=\"data\">";
  const size_t from = page.find(begin) + begin.size();
  return Json::parse(page.substr(from, page.find("</script>", from) - from));
}

TEST(Chart, ThinningKeepsPeaksMeansAndEnds) {
  LineSeries series{"loss", 0, {}, {}};
  for (int i = 0; i < 10000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 5003 ? 99 : i % 2);
  }
  const LineSeries thin = thinned(series, 100);
  ASSERT_EQ(thin.x.size(), 100u);
  EXPECT_EQ(thin.x.front(), 0);
  EXPECT_EQ(thin.x.back(), 9999);
  EXPECT_EQ(thin.high[50], 99);
  EXPECT_EQ(thin.low[50], 0);
  EXPECT_DOUBLE_EQ(thin.y[50], (49 + 99) / 100.0);
  EXPECT_DOUBLE_EQ(thin.y[7], 0.5);
  EXPECT_TRUE(thinned(series, 20000).low.empty());
}

TEST(Chart, GapsStayGaps) {
  LineSeries series{"loss", 0, {1, 2, 3, 4}, {1, std::nan(""), INFINITY, 4}};
  const LineSeries thin = thinned(series, 2);
  EXPECT_EQ(thin.y, (std::vector<double>{1, 4}));
  const Json json = chart_json(LineChart{.title = "Loss", .series = {series}});
  EXPECT_EQ(json.at("series")[0].at("y").dump(), "[1,null,null,4]");
}

TEST(Chart, EveryKindIsJson) {
  EXPECT_EQ(chart_json(HeatChart{.title = "load", .x = {1, 2}, .rows = {"0"}, .values = {{0.25, 1}}})
                .at("values")
                .dump(),
            "[[0.25,1]]");
  EXPECT_EQ(
      chart_json(BarChart{.title = "memory", .labels = {"rank 0"}, .parts = {{"weights", {1234567.89}}}})
          .at("parts")
          .dump(),
      R"([{"name":"weights","values":[1234570.0]}])");
  EXPECT_EQ(chart_json(LaneChart{.title = "schedule", .kinds = {"F"}, .lanes = {{"0", {{0, 1.5, 0, "1"}}}}})
                .at("lanes")
                .dump(),
            R"([{"name":"0","spans":[[0,1.5,0,"1"]]}])");
}

TEST(Page, EscapesWhatRunsAreCalled) {
  Page page;
  page.title = "</title><script>alert(1)</script>";
  page.runs = {"</script><b>"};
  page.tiles = {{"<1>", "a & b"}};
  const std::string text = render(page);
  EXPECT_EQ(text.find("alert(1)</script>"), std::string::npos);
  EXPECT_NE(text.find("&lt;1&gt;"), std::string::npos);
  EXPECT_EQ(data_of(text).at("runs")[0].at("name").as_string(), "</script><b>");
  // Nothing is fetched.
  EXPECT_EQ(text.find("src="), std::string::npos);
  for (size_t at = 0; (at = text.find("http", at)) != std::string::npos; ++at)
    EXPECT_EQ(text.compare(at, 23, "http://www.w3.org/2000/"), 0);  // the name of SVG
}

TEST(RunLog, ReadsRowsAndEvents) {
  const testing::TempDir dir;
  std::ofstream(dir / "metrics.jsonl")
      << row(1, 5) << row(2, 4)
      << R"({"iteration":3,"lm_loss":null,"skipped":true,"expert_load":[1,2]})"
         "\n"
      << R"({"iteration":3,"event":"save"})"
         "\n"
      << R"({"iteration":4,"lm_lo)";
  std::ofstream(dir / "progress.txt") << "t\tJob ID: \t# GPUs: 1\tStarting job\n"
                                      << "t\tJob ID: \t# GPUs: 1\tSaved checkpoint\tIteration: 2\tJob\n"
                                      << "t\tJob ID: \t# GPUs: 1\tStarting job\n";
  const RunLog log = read_run_log(dir.path());
  EXPECT_EQ(log.iterations, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(log.find("lm_loss")->at(1), 4);
  EXPECT_TRUE(std::isnan(log.find("lm_loss")->at(2)));
  EXPECT_TRUE(std::isnan(log.find("grad_norm")->at(2)));
  EXPECT_EQ(log.lists.at("expert_load")[2], (std::vector<double>{1, 2}));
  std::vector<std::string> kinds;
  for (const Mark& event : log.events) kinds.push_back(event.kind);
  EXPECT_EQ(kinds, (std::vector<std::string>{"skip", "save", "save", "restart"}));
  EXPECT_EQ(log.events.back().x, 2);
}

TEST(RunLog, NamesFileAndLineOfFaults) {
  const testing::TempDir dir;
  const std::string file = dir / "m.jsonl";
  const auto fault = [&](const std::string& text) {
    std::ofstream(file) << text;
    return error_of([&] { read_run_log(file); });
  };
  EXPECT_EQ(fault(row(1, 5) + "{\"iteration\":\n").find("report: " + file + ":2"), 0u);
  EXPECT_EQ(fault("[1]\n"), "report: " + file + ":1: a row is an object with an iteration");
  EXPECT_EQ(fault(row(2, 5) + row(1, 5)), "report: " + file + ":2: iteration 1 follows 2");
  EXPECT_EQ(fault(""), "report: " + file + ": it has no rows");
  EXPECT_NE(error_of([&] { read_run_log(dir / "none"); }).find("there is no such file or folder"),
            std::string::npos);
}

TEST(RunPage, HundredThousandIterationsFitIntoTwoMegabytes) {
  std::vector<RunLog> runs(3);
  for (size_t r = 0; r < runs.size(); ++r) {
    RunLog& run = runs[r];
    run.name = fmt::format("run {}", r);
    for (int i = 1; i <= 100000; ++i) run.iterations.push_back(i);
    for (const char* key : {"lm_loss", "mtp_1_loss", "load_balancing_loss", "grad_norm", "learning_rate",
                            "loss_scale", "iteration_ms", "data_wait_ms", "tokens_per_second", "model_tflops",
                            "memory_gib", "reserved_gib", "params_norm", "num_zeros"})
      for (int i = 1; i <= 100000; ++i) run.metrics[key].push_back(std::sin(i * 0.7) + 2.000001 * i);
    for (int i = 0; i < 5000; ++i)
      run.events.push_back({double(i), "update of an iteration skipped", "skip", 0});
  }
  EXPECT_LT(render(run_page(runs)).size(), 2'000'000u);
  EXPECT_LT(render(run_page(std::span(runs).first(1))).size(), 2'000'000u);
}

TEST(RunPage, ShowsWhatTheRunHas) {
  const testing::TempDir dir;
  std::ofstream(dir / "metrics.jsonl") << row(1, 5) << row(2, 4);
  const std::vector<RunLog> runs = {read_run_log(dir.path())};
  const Json data = data_of(render(run_page(runs, {.peak_tflops = 1000, .device = "D"})));
  std::vector<std::string> titles;
  const Json* mfu = nullptr;
  for (const Json& section : data.at("sections").as_array())
    for (const Json& chart : section.at("charts").as_array()) {
      titles.push_back(chart.at("title").as_string());
      if (titles.back() == "MFU") mfu = &chart;
    }
  EXPECT_EQ(titles,
            (std::vector<std::string>{"Loss", "Learning rate", "Gradient norm", "Throughput", "Model TFLOP/s",
                                      "MFU", "Iteration", "Waiting for data", "Memory"}));
  ASSERT_NE(mfu, nullptr);
  EXPECT_EQ(mfu->at("series")[0].at("y").dump(), "[40,40]");
}

// Bars, lanes and tables as one picture; text is escaped, and the limit drawn.
TEST(Svg, DrawsBarsLanesAndTables) {
  Page page;
  page.title = "a < b";
  page.tables = {{{"rank", "holds"}, {{"0", "layers 0-3"}}}};
  BarChart bars{.title = "Memory", .unit = "GiB"};
  bars.labels = {"rank 0", "rank 1"};
  bars.parts = {{"parameters", {1, 2}}, {"activations", {3, 2}}};
  bars.limit = 8;
  LaneChart lanes{.title = "Schedule", .unit = "time"};
  lanes.kinds = {"forward", "backward"};
  lanes.lanes = {{"0", {{0, 1, 0, "0"}, {1, 3, 1, "0"}}}};
  page.sections = {{"x", {bars, lanes}}};
  const std::string svg = render_svg(page);
  EXPECT_TRUE(svg.starts_with("<svg xmlns=")) << svg.substr(0, 40);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("limit 8"), std::string::npos);
  EXPECT_NE(svg.find("layers 0-3"), std::string::npos);
  EXPECT_NE(svg.find("<title>activations: 3</title>"), std::string::npos);
  // Both ranks hold 4: their bars end at the same place.
  const auto sums = [&](const std::string& text) {
    size_t count = 0;
    for (size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(sums("font-size=\"11\">4</text>"), 2u);
}

// As many lines as the tiles need: none runs out of the picture.
TEST(Svg, BreaksLinesOfTiles) {
  Page page;
  page.title = "Plan";
  for (int i = 0; i < 12; ++i) page.tiles.push_back({std::to_string(i), "what the number says"});
  const std::string svg = render_svg(page), end = ">what the number says: ";
  size_t tiles = 0;
  for (size_t at = svg.find(end); at != std::string::npos; at = svg.find(end, at + 1), ++tiles) {
    const size_t begin = svg.rfind("x=\"", at) + 3;
    EXPECT_LT(std::stod(svg.substr(begin)) + 23 * 6.6, 960);
  }
  EXPECT_EQ(tiles, page.tiles.size());
}

}  // namespace
}  // namespace megatron::report
