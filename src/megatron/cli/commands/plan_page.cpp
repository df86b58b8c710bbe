#include "megatron/cli/commands/plan_page.h"

#include <algorithm>

namespace megatron {
namespace {

constexpr double kPageGib = 1 << 30;

report::BarChart memory_chart(const RunPlan& plan, double limit_bytes) {
  constexpr std::string_view names[kMemoryTags] = {"parameters",  "gradients",     "optimizer",
                                                   "activations", "communication", "workspace"};
  report::BarChart chart{.title = "Memory", .unit = "GiB, the most of each kind"};
  chart.limit = limit_bytes / kPageGib;
  chart.wide = true;
  for (const std::string_view& name : names) chart.parts.push_back({std::string(name), {}});
  for (const RankPlan& rank : plan.ranks) {
    chart.labels.push_back(fmt::format("rank {}", rank.rank));
    for (size_t tag = 0; tag < kMemoryTags; ++tag)
      chart.parts[tag].values.push_back(static_cast<double>(rank.memory.by_tag[tag].peak) / kPageGib);
  }
  return chart;
}

report::BarChart arithmetic_chart(const RunPlan& plan) {
  report::BarChart chart{.title = "Arithmetic", .unit = "TFLOP a step"};
  chart.parts = {{"forward", {}}, {"backward", {}}, {"weight gradients", {}}};
  for (const RankPlan& rank : plan.ranks) {
    chart.labels.push_back(fmt::format("rank {}", rank.rank));
    for (size_t part = 0; part < 3; ++part) chart.parts[part].values.push_back(rank.flops[part] / 1e12);
  }
  return chart;
}

// One part for each group that ranks talk in.
report::BarChart traffic_chart(const RunPlan& plan) {
  report::BarChart chart{.title = "What leaves a rank", .unit = "GiB a step, by group"};
  for (size_t at = 0; at < plan.ranks.size(); ++at) {
    chart.labels.push_back(fmt::format("rank {}", plan.ranks[at].rank));
    for (const auto& [key, entry] : plan.ranks[at].traffic.by_group) {
      auto part =
          std::find_if(chart.parts.begin(), chart.parts.end(),
                       [&name = key.first](const report::BarChart::Part& p) { return p.name == name; });
      if (part == chart.parts.end()) part = chart.parts.insert(part, {std::string(key.first), {}});
      part->values.resize(at + 1);
      part->values[at] += entry.bytes / kPageGib;
    }
  }
  for (report::BarChart::Part& part : chart.parts) part.values.resize(plan.ranks.size());
  return chart;
}

// The first of many micro-batches show how it goes on.
report::LaneChart schedule_chart(const RunPlan& plan) {
  constexpr size_t most = 160;
  const PipelineShape& shape = plan.pipeline;
  report::LaneChart chart{
      .title = fmt::format("Schedule {}", pipeline_kind_name(shape.kind)),
      .unit = fmt::format("units of time; {:.1f} % are spent waiting", 100 * plan.simulation.bubble)};
  chart.kinds = {"forward", "backward", "weight gradients"};
  for (size_t rank = 0; rank < plan.simulation.timelines.size(); ++rank) {
    report::LaneChart::Lane lane{fmt::format("{}", rank), {}};
    for (const TimedStep& timed : plan.simulation.timelines[rank]) {
      const StepKind kind = timed.step.kind;
      if (kind == StepKind::send || kind == StepKind::recv || lane.spans.size() >= most) continue;
      const int place = kind == StepKind::forward ? 0 : kind == StepKind::backward_weight ? 2 : 1;
      lane.spans.push_back({timed.start, timed.end, place,
                            shape.vpp > 1 ? fmt::format("{}.{}", timed.step.microbatch, timed.step.chunk)
                                          : fmt::format("{}", timed.step.microbatch)});
    }
    chart.lanes.push_back(std::move(lane));
  }
  return chart;
}

}  // namespace

report::Page plan_page(const RunPlan& plan, std::span<const std::string> held, const std::string& title,
                       double limit_bytes) {
  const ParallelSizes& s = plan.sizes;
  report::Page page;
  page.title = title;
  page.subtitle = "One pipeline's ranks; each of the others is like one of these.";
  const RankPlan& largest = plan.largest();
  page.tiles = {{fmt::format("{}", s.world), "ranks"},
                {fmt::format("{} · {} · {} · {}", s.tp, s.pp, s.cp, s.dp()), "tp · pp · cp · dp"},
                {fmt::format("{:.3g} B", static_cast<double>(plan.parameters) / 1e9), "parameters"},
                {fmt::format("{:.4g} GiB", largest.bytes() / kPageGib), "largest rank"},
                {fmt::format("{:.3g}", plan.flops_per_step / 1e12), "model TFLOP a step"},
                {fmt::format("{}", plan.tokens_per_step), "tokens a step"},
                {fmt::format("{}", plan.pipeline.microbatches), "micro-batches"},
                {fmt::format("{:.1f} %", 100 * plan.simulation.bubble), "bubble"}};
  page.sections.push_back({"Ranks", {memory_chart(plan, limit_bytes), arithmetic_chart(plan)}});
  if (report::BarChart traffic = traffic_chart(plan); !traffic.parts.empty())
    page.sections.back().charts.emplace_back(std::move(traffic));
  if (plan.pipeline.pp > 1) page.sections.push_back({"Pipeline", {schedule_chart(plan)}});
  report::Table layout{{"rank", "parameters", "holds"}, {}};
  for (size_t at = 0; at < plan.ranks.size(); ++at)
    layout.rows.push_back({fmt::format("{}", plan.ranks[at].rank),
                           fmt::format("{}", plan.ranks[at].parameters), at < held.size() ? held[at] : ""});
  page.tables.push_back(std::move(layout));
  return page;
}

}  // namespace megatron
