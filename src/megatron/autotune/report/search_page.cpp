#include "megatron/autotune/report/search_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "megatron/autotune/cost/layer_ops.h"
#include "megatron/autotune/report/plan_report.h"
#include "megatron/autotune/report/simulation_report.h"

namespace megatron::autotune {
namespace {

constexpr double kPageGib = 1073741824.0;
constexpr size_t kRows = 10;

report::Table best_table(const SearchRequest& request, const SearchResult& r) {
  const bool planned =
      std::any_of(r.best.begin(), r.best.end(), [](const Candidate& c) { return c.planned.has_value(); });
  const bool measured =
      std::any_of(r.best.begin(), r.best.end(), [](const Candidate& c) { return c.measured.has_value(); });
  report::Table table{
      {"#", "plan", "dp", "ms", "±", "tokens/s/GPU", "TFLOP/s", "MFU", "GiB", "binds", "against the first"},
      {}};
  if (planned) table.head.insert(table.head.begin() + 9, "planned GiB");
  if (measured) table.head.push_back("measured ms");
  for (size_t i = 0; i < std::min(kRows, r.best.size()); ++i) {
    const Candidate& c = r.best[i];
    const Prediction& p = c.prediction;
    std::vector<std::string> row = {fmt::format("{}", i + 1),
                                    plan_text(c.plan),
                                    fmt::format("{}", c.plan.dp()),
                                    fmt::format("{:.1f}", p.seconds * 1e3),
                                    fmt::format("{:.0f} %", 100 * p.uncertainty),
                                    fmt::format("{:.0f}", p.tokens_per_second_per_gpu),
                                    fmt::format("{:.0f}", p.tflops_per_gpu),
                                    fmt::format("{:.1f} %", 100 * p.mfu),
                                    fmt::format("{:.1f}", c.bytes / kPageGib),
                                    std::string(what_binds(request.in, c.plan, p)),
                                    i == 0 ? "" : why_faster(r.best[0].prediction, p)};
    if (planned)
      row.insert(row.begin() + 9, c.planned ? fmt::format("{:.1f}", *c.planned / kPageGib) : std::string());
    if (measured) row.push_back(c.measured ? fmt::format("{:.1f}", *c.measured * 1e3) : std::string());
    table.rows.push_back(std::move(row));
  }
  return table;
}

report::ScatterChart front_chart(const SearchResult& r) {
  report::ScatterChart chart{.title = "Front of time and memory",
                             .unit = "no other plan is both faster and smaller than one on the line",
                             .x_name = "GiB of a GPU",
                             .y_name = "ms an iteration"};
  chart.groups = {"ten best", "front"};
  chart.wide = true;
  const auto point = [](const Candidate& c, int group) {
    return report::ScatterChart::Point{c.bytes / kPageGib, c.prediction.seconds * 1e3, group,
                                       plan_text(c.plan)};
  };
  for (size_t i = 0; i < std::min(kRows, r.best.size()); ++i) chart.points.push_back(point(r.best[i], 0));
  report::ScatterChart::Line line{"front", {}, {}};
  // The whole front would hide what is near its fast end.
  for (const Candidate& c : r.front) {
    if (c.prediction.seconds > 3 * r.front[0].prediction.seconds) break;
    chart.points.push_back(point(c, 1));
    line.x.push_back(c.bytes / kPageGib);
    line.y.push_back(c.prediction.seconds * 1e3);
  }
  chart.lines.push_back(std::move(line));
  return chart;
}

report::BarChart time_chart(const SearchResult& r) {
  report::BarChart chart{.title = "Where the time goes", .unit = "ms an iteration"};
  chart.wide = true;
  for (const auto& [name, seconds] : parts_of(r.best[0].prediction.breakdown))
    chart.parts.push_back({std::string(name), {}});
  for (size_t i = 0; i < std::min(kRows, r.best.size()); ++i) {
    chart.labels.push_back(fmt::format("{} {}", i + 1, plan_text(r.best[i].plan)));
    const auto parts = parts_of(r.best[i].prediction.breakdown);
    for (size_t part = 0; part < parts.size(); ++part)
      chart.parts[part].values.push_back(parts[part].second * 1e3);
  }
  std::erase_if(chart.parts, [](const report::BarChart::Part& part) {
    return std::all_of(part.values.begin(), part.values.end(), [](double v) { return v < 1e-6; });
  });
  return chart;
}

report::BarChart memory_bars(const SearchRequest& request, const SearchResult& r) {
  report::BarChart chart{.title = "Memory of the fullest GPU", .unit = "GiB; the line is what fits"};
  chart.wide = true;
  chart.limit = 0.94 * request.in.cluster.gpu.memory_gib;
  chart.parts = {{"weights", {}},     {"gradients", {}}, {"optimizer", {}},
                 {"activations", {}}, {"logits", {}},    {"other", {}}};
  for (size_t i = 0; i < std::min(kRows, r.best.size()); ++i) {
    const MemoryUse use = memory_use(request.in, r.best[i].plan);
    chart.labels.push_back(fmt::format("{}", i + 1));
    const double bytes[] = {use.weights,     use.gradients, use.optimizer,
                            use.activations, use.logits,    use.other};
    for (size_t part = 0; part < std::size(bytes); ++part)
      chart.parts[part].values.push_back(bytes[part] / kPageGib);
  }
  return chart;
}

report::ScatterChart roofline(const SearchRequest& request, const ParallelPlan& plan) {
  const GpuSpec& gpu = request.in.cluster.gpu;
  report::ScatterChart chart{.title = "Roofline of the first plan's kernels",
                             .unit = "one micro-batch through a layer and the head, as priced",
                             .x_name = "FLOP a byte",
                             .y_name = "TFLOP/s"};
  chart.groups = {"GEMM", "attention"};
  chart.log_x = chart.log_y = true;
  chart.wide = true;
  double low = 1e300, high = 0;
  for (const OpPrice& op : layer_ops(request.in, plan)) {
    if (op.flops <= 0 || op.bytes <= 0 || op.seconds <= 0) continue;
    const double intensity = op.flops / op.bytes;
    low = std::min(low, intensity);
    high = std::max(high, intensity);
    std::string name = op.name;
    if (op.gemm)
      name += fmt::format(" {} x {} x {}{}", op.m, op.n, op.k,
                          op.groups > 1 ? fmt::format(", {} groups", op.groups) : "");
    chart.points.push_back({intensity, op.flops / op.seconds / 1e12, op.gemm ? 0 : 1, std::move(name)});
  }
  const double peak = plan.fp8() && gpu.tflops8 > 0 ? gpu.tflops8 : gpu.tflops16;
  const double knee = peak / gpu.memory_tbs;
  chart.lines.push_back({fmt::format("{:.0f} TFLOP/s, {:.1f} TB/s", peak, gpu.memory_tbs),
                         {std::min(low, knee / 4), knee, std::max(high, 4 * knee)},
                         {std::min(low, knee / 4) * gpu.memory_tbs, peak, peak}});
  return chart;
}

report::ScatterChart measured_chart(const SearchResult& r) {
  report::ScatterChart chart{.title = "Predicted against measured",
                             .unit = "ms an iteration; a perfect prediction lies on the line",
                             .x_name = "measured",
                             .y_name = "predicted"};
  chart.groups = {"plans that were run"};
  double most = 0;
  for (const Candidate& c : r.best) {
    if (!c.measured) continue;
    chart.points.push_back({*c.measured * 1e3, c.prediction.seconds * 1e3, 0, plan_text(c.plan)});
    most = std::max({most, *c.measured * 1e3, c.prediction.seconds * 1e3});
  }
  if (!chart.points.empty()) chart.lines.push_back({"equal", {0, most}, {0, most}});
  return chart;
}

}  // namespace

report::Page search_page(const SearchRequest& request, const SearchResult& r,
                         const std::string& recipe_file) {
  report::Page page;
  page.title = fmt::format("Plans for {:.3g}B parameters on {}", request.in.model.params() / 1e9,
                           request.in.cluster.name);
  page.subtitle =
      fmt::format("{} plans priced, {} fit, in {:.2f} s. {} x {} tokens a step. The recipe of the first: {}",
                  r.plans, r.fitting, r.seconds, request.gbs, request.seq, recipe_file);
  if (r.best.empty()) return page;
  const Candidate& first = r.best[0];
  const Prediction& p = first.prediction;
  page.tiles = {{plan_text(first.plan), "first plan; within 1 % of the fastest that fits"},
                {fmt::format("{:.1f} ms", p.seconds * 1e3), "an iteration"},
                {fmt::format("±{:.0f} %", 100 * p.uncertainty), "uncertainty"},
                {fmt::format("{:.0f}", p.tokens_per_second_per_gpu), "tokens/s/GPU"},
                {fmt::format("{:.1f} %", 100 * p.mfu), "MFU"},
                {fmt::format("{:.1f} GiB", first.planned.value_or(first.bytes) / kPageGib), "of a GPU"},
                {std::string(what_binds(request.in, first.plan, p)), "binds"}};
  page.tables.push_back(best_table(request, r));
  report::Table changes{{"what if", "time", ""}, {}};
  for (const WhatIf& other : what_if(request.in, first.plan)) {
    if (changes.rows.size() == 12) break;
    changes.rows.push_back({other.change, fmt::format("{:+.1f} %", 100 * (other.seconds / p.seconds - 1)),
                            other.machine ? "another machine"
                            : other.fits  ? "another plan"
                                          : "does not fit"});
  }
  page.tables.push_back(std::move(changes));
  page.sections.push_back({"Plans", {front_chart(r), time_chart(r), memory_bars(request, r)}});
  SimulationOptions options;
  options.most_microbatches = 4 * first.plan.pp;
  if (!first.stage_layers.empty()) options.chunk_layers = first.stage_layers;
  const SimulatedIteration run = simulate_iteration(request.in, first.plan, options);
  page.sections.push_back({"The first plan", {simulation_chart(run, 200), roofline(request, first.plan)}});
  if (report::ScatterChart measured = measured_chart(r); !measured.points.empty())
    page.sections.push_back({"Validation", {std::move(measured)}});
  return page;
}

}  // namespace megatron::autotune
