#include "megatron/report/run_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "megatron/base/counted.h"
#include "megatron/base/median.h"

namespace megatron::report {
namespace {

struct ChartPlan {
  const char* section;
  const char* title;
  const char* unit;
  std::vector<std::string> keys;  // in one chart
  bool zero = false, smooth = false, log = false;
};

bool is_expert_loss(const std::string& key) {
  for (const char* word : {"balancing", "aux", "z_loss", "moe", "expert"})
    if (key.find(word) != std::string::npos) return true;
  return false;
}

// The charts of the metrics that are known, then one for each that is not.
std::vector<ChartPlan> chart_plans(std::span<const RunLog> runs) {
  std::vector<ChartPlan> plans = {
      {"Training", "Loss", "", {"lm_loss"}, false, true},
      {"Training", "Learning rate", "", {"learning_rate"}, true},
      {"Training", "Gradient norm", "", {"grad_norm"}, false, true, true},
      {"Training", "Loss scale", "", {"loss_scale"}, false, false, true},
      {"Speed and memory", "Throughput", "tokens/s of a rank", {"tokens_per_second"}, true, true},
      {"Speed and memory", "Model TFLOP/s", "of a rank", {"model_tflops"}, true, true},
      {"Speed and memory", "MFU", "% of the peak", {"mfu"}, true, true},
      {"Speed and memory", "Iteration", "ms", {"iteration_ms"}, true, true},
      {"Speed and memory", "Waiting for data", "ms", {"data_wait_ms"}, true, true},
      {"Speed and memory", "Memory", "GiB, most so far", {"memory_gib", "reserved_gib"}, true},
  };
  std::set<std::string> placed = {"consumed_samples"};
  for (const ChartPlan& plan : plans) placed.insert(plan.keys.begin(), plan.keys.end());
  ChartPlan experts{"Experts", "Auxiliary losses", "", {}, false, true};
  for (const RunLog& run : runs)
    for (const auto& [key, values] : run.metrics) {
      if (!placed.insert(key).second) continue;
      if (key.ends_with("loss") && is_expert_loss(key))
        experts.keys.push_back(key);
      else if (key.ends_with("loss"))
        plans.front().keys.push_back(key);
      else
        plans.push_back({is_expert_loss(key) ? "Experts" : "More", "", "", {key}, false, true});
    }
  if (!experts.keys.empty()) plans.push_back(std::move(experts));
  std::stable_sort(plans.begin(), plans.end(), [](const ChartPlan& a, const ChartPlan& b) {
    const auto order = [](std::string_view section) {
      return section == "Training" ? 0 : section == "Speed and memory" ? 1 : section == "Experts" ? 2 : 3;
    };
    return order(a.section) < order(b.section);
  });
  return plans;
}

bool has_numbers(const std::vector<double>* values) {
  return values && std::any_of(values->begin(), values->end(), [](double v) { return std::isfinite(v); });
}

std::string show_number(double value, int digits = 4) { return fmt::format("{:.{}g}", value, digits); }

double finite_median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  return values.empty() ? std::nan("") : median(std::move(values));
}

std::string show_duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= 3600) return fmt::format("{} h {:02}", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{:.1f} s", seconds);
}

// The figures of one run that a page begins with, always in the same order.
std::vector<Tile> summary(const RunLog& run) {
  std::vector<Tile> tiles;
  const auto add = [&](std::string label, double value, auto show) {
    tiles.push_back({std::isfinite(value) ? show(value) : "–", std::move(label)});
  };
  const auto last = [&](const char* key) {
    const std::vector<double>* values = run.find(key);
    if (!values) return std::nan("");
    for (auto at = values->rbegin(); at != values->rend(); ++at)
      if (std::isfinite(*at)) return *at;
    return std::nan("");
  };
  const auto fold = [&](const char* key, double start, auto join) {
    double result = start;
    if (const std::vector<double>* values = run.find(key))
      for (double value : *values)
        if (std::isfinite(value)) result = join(result, value);
    return result;
  };
  const auto typical = [&](const char* key) {
    const std::vector<double>* values = run.find(key);
    return values ? finite_median(*values) : std::nan("");
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const auto plain = [](double v) { return show_number(v); };
  add("iterations", run.iterations.back(), [](double v) { return fmt::format("{:.0f}", v); });
  const std::vector<double>* losses = run.find("lm_loss");
  if (losses && !losses->empty() && !std::isfinite(losses->back()))
    tiles.push_back({"NaN", "last loss"});
  else
    add("last loss", last("lm_loss"), plain);
  add("lowest loss", fold("lm_loss", infinity, [](double a, double b) { return std::min(a, b); }), plain);
  add("tokens/s/rank", typical("tokens_per_second"), [](double v) { return fmt::format("{:.0f}", v); });
  add("model TFLOP/s", typical("model_tflops"), plain);
  const double mfu = typical("mfu");
  if (std::isfinite(mfu)) add("MFU", mfu, [](double v) { return fmt::format("{:.1f} %", v); });
  add("memory, GiB", fold("memory_gib", -infinity, [](double a, double b) { return std::max(a, b); }), plain);
  const auto sum = [](double a, double b) { return a + b; };
  const double milliseconds = fold("iteration_ms", 0, sum), waited = fold("data_wait_ms", 0, sum);
  add("in iterations", milliseconds > 0 ? milliseconds / 1e3 : std::nan(""), show_duration);
  add("of it data wait", milliseconds > 0 ? 100 * waited / milliseconds : std::nan(""),
      [](double v) { return fmt::format("{:.1f} %", v); });
  const auto skipped =
      std::count_if(run.events.begin(), run.events.end(), [](const Mark& m) { return m.kind == "skip"; });
  add("skipped", static_cast<double>(skipped), [](double v) { return fmt::format("{:.0f}", v); });
  return tiles;
}

// Evenly chosen where there are too many to tell apart.
std::vector<Mark> marks_of(std::span<const RunLog> runs) {
  constexpr size_t most = 150;
  std::vector<Mark> marks;
  for (size_t run = 0; run < runs.size(); ++run) {
    const std::vector<Mark>& events = runs[run].events;
    const size_t step = events.size() / most + 1;
    for (size_t i = 0; i < events.size(); i += step) {
      marks.push_back(events[i]);
      marks.back().run = static_cast<int>(run);
    }
  }
  return marks;
}

HeatChart heat_of(const RunLog& run, const std::string& key, const std::vector<std::vector<double>>& lists,
                  bool named) {
  constexpr size_t columns = 96, most_rows = 64;
  size_t rows = 0;
  for (const std::vector<double>& list : lists) rows = std::max(rows, list.size());
  rows = std::min(rows, most_rows);
  HeatChart chart;
  chart.title = named ? fmt::format("{} of {}", key, run.name) : key;
  chart.unit = "darker is more";
  chart.values.resize(rows);
  for (size_t row = 0; row < rows; ++row) chart.rows.push_back(fmt::format("{}", row));
  const size_t step = lists.size() / columns + 1;
  for (size_t i = 0; i < lists.size(); i += step) {
    if (lists[i].empty()) continue;
    chart.x.push_back(run.iterations[i]);
    for (size_t row = 0; row < rows; ++row)
      chart.values[row].push_back(row < lists[i].size() && std::isfinite(lists[i][row]) ? lists[i][row] : 0);
  }
  return chart;
}

// A run's model FLOPs as a share of the device's peak, where that is known.
RunLog with_mfu(RunLog run, double peak) {
  const std::vector<double>* tflops = run.find("model_tflops");
  if (peak <= 0 || !tflops || run.find("mfu")) return run;
  std::vector<double> share = *tflops;
  for (double& value : share) value *= 100 / peak;
  run.metrics["mfu"] = std::move(share);
  return run;
}

}  // namespace

Page run_page(std::span<const RunLog> given, const RunPageOptions& options) {
  std::vector<RunLog> runs;
  for (const RunLog& run : given) runs.push_back(with_mfu(run, options.peak_tflops));
  Page page;
  for (const RunLog& run : runs) page.runs.push_back(run.name);
  page.title = !options.title.empty() ? options.title : runs.size() == 1 ? runs[0].name : "Training runs";
  page.subtitle = fmt::format("{}, {} iterations{}", counted(runs.size(), "run"),
                              std::max_element(runs.begin(), runs.end(),
                                               [](const RunLog& a, const RunLog& b) {
                                                 return a.iterations.size() < b.iterations.size();
                                               })
                                  ->iterations.size(),
                              options.device.empty() ? ""
                                                     : fmt::format("; peak of {}: {:g} TFLOP/s",
                                                                   options.device, options.peak_tflops));
  if (runs.size() == 1) {
    page.tiles = summary(runs[0]);
  } else {
    Table table;
    table.head.push_back("run");
    for (const RunLog& run : runs) {
      std::vector<std::string> row = {run.name};
      for (const Tile& tile : summary(run)) {
        if (table.rows.empty()) table.head.push_back(tile.label);
        row.push_back(tile.value);
      }
      table.rows.push_back(std::move(row));
    }
    page.tables.push_back(std::move(table));
  }

  const std::vector<ChartPlan> plans = chart_plans(runs);
  size_t curves = 1;
  for (const ChartPlan& plan : plans)
    for (const std::string& key : plan.keys)
      for (const RunLog& run : runs) curves += has_numbers(run.find(key));
  // A point is four numbers of about eight letters; more than two a pixel would not be seen.
  const size_t points = std::clamp<size_t>(options.bytes / 36 / curves, 100, 1500);
  const std::vector<Mark> marks = marks_of(runs);
  for (const ChartPlan& plan : plans) {
    LineChart chart;
    chart.title = *plan.title ? plan.title : plan.keys.front();
    chart.unit = plan.unit;
    chart.zero = plan.zero;
    chart.smooth = plan.smooth;
    chart.log = plan.log;
    for (const std::string& key : plan.keys)
      for (size_t run = 0; run < runs.size(); ++run)
        if (const std::vector<double>* values = runs[run].find(key); has_numbers(values))
          chart.series.push_back(
              thinned({key, static_cast<int>(run), runs[run].iterations, *values}, points));
    if (chart.series.empty()) continue;
    if (std::string_view(plan.title) == "Loss") {
      chart.marks = marks;
      chart.wide = true;
    }
    if (page.sections.empty() || page.sections.back().title != plan.section)
      page.sections.push_back({plan.section, {}});
    page.sections.back().charts.emplace_back(std::move(chart));
  }
  PageSection loads{"Load of experts", {}};
  for (const RunLog& run : runs)
    for (const auto& [key, lists] : run.lists)
      loads.charts.emplace_back(heat_of(run, key, lists, runs.size() > 1));
  if (!loads.charts.empty()) page.sections.push_back(std::move(loads));
  return page;
}

}  // namespace megatron::report
