#include "megatron/autotune/report/simulation_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "megatron/report/page.h"

namespace megatron::autotune {
namespace {

bool computes(SpanKind kind) {
  return kind == SpanKind::forward || kind == SpanKind::backward || kind == SpanKind::weight ||
         kind == SpanKind::update;
}

double end_of(const SimulatedIteration& run) {
  double end = 1e-12;
  for (const auto& spans : run.stages)
    for (const SimulatedSpan& span : spans) end = std::max(end, span.end);
  return end;
}

bool chunked(const SimulatedIteration& run) {
  for (const auto& spans : run.stages)
    for (const SimulatedSpan& span : spans)
      if (span.chunk > 0) return true;
  return false;
}

std::string span_text(const SimulatedSpan& span, bool chunks) {
  if (span.kind == SpanKind::update) return "update";
  if (span.kind == SpanKind::gather || span.kind == SpanKind::reduce)
    return fmt::format("chunk {}", span.chunk);
  return chunks ? fmt::format("{}.{}", span.microbatch, span.chunk) : fmt::format("{}", span.microbatch);
}

struct StageTimes {
  std::array<double, 7> seconds{};
  double idle = 0;
};

std::vector<StageTimes> times_of(const SimulatedIteration& run) {
  const double end = end_of(run);
  std::vector<StageTimes> result;
  for (const auto& spans : run.stages) {
    StageTimes times;
    double busy = 0;
    for (const SimulatedSpan& span : spans) {
      times.seconds[static_cast<size_t>(span.kind)] += span.end - span.begin;
      if (computes(span.kind)) busy += span.end - span.begin;
    }
    times.idle = std::max(0.0, end - busy);
    result.push_back(times);
  }
  return result;
}

}  // namespace

std::string simulation_lanes(const SimulatedIteration& run, int columns) {
  const double end = end_of(run);
  std::string text;
  for (size_t stage = 0; stage < run.stages.size(); ++stage) {
    std::string line(static_cast<size_t>(columns), '.');
    std::vector<double> most(line.size(), 0.5 * end / columns);
    std::array<std::vector<double>, 7> share;
    for (const SimulatedSpan& span : run.stages[stage]) {
      if (!computes(span.kind)) continue;
      const double scale = columns / end;
      auto& row = share[static_cast<size_t>(span.kind)];
      if (row.empty()) row.resize(line.size());
      for (int cell = static_cast<int>(span.begin * scale);
           cell < columns && cell <= static_cast<int>(span.end * scale); ++cell)
        row[static_cast<size_t>(cell)] +=
            std::max(0.0, std::min(span.end, (cell + 1) / scale) - std::max(span.begin, cell / scale));
    }
    constexpr std::string_view letters = "FBW...U";
    for (size_t kind = 0; kind < share.size(); ++kind)
      for (size_t cell = 0; cell < share[kind].size(); ++cell)
        if (share[kind][cell] > most[cell] * (1 - 1e-9)) {
          most[cell] = share[kind][cell];
          line[cell] = letters[kind];
        }
    text += fmt::format("{:>4} {}\n", stage, line);
  }
  return text;
}

std::string simulation_text(const CostInputs& in, const ParallelPlan& plan, const SimulatedIteration& run) {
  const Prediction closed = predict(in, plan);
  std::string text = fmt::format(
      "{} dp{}: {} ranks as {} stages of {} equal ranks, {} micro-batches\n"
      "{:.1f} ms an iteration as events, {:.1f} ms in closed form; bubble {:.1f} %\n"
      "after the last backward pass: gradients {:.1f} ms, update {:.1f} ms, rest {:.1f} ms\n\n",
      plan_text(plan), plan.dp(), plan.gpus, run.stages.size(), run.ranks_per_stage, run.microbatches,
      run.seconds * 1e3, closed.seconds * 1e3, 100 * run.bubble, run.data_parallel * 1e3, run.update * 1e3,
      run.step * 1e3);
  text += fmt::format("{:>5} {:>11} {:>11} {:>11} {:>11} {:>11} {:>9}\n", "stage", "forward ms", "backward",
                      "weights", "messages", "DP", "waits");
  const std::vector<StageTimes> times = times_of(run);
  for (size_t stage = 0; stage < times.size(); ++stage) {
    // Many stages are shown by the first, the last and some between them.
    const size_t step = std::max<size_t>(1, times.size() / 12);
    if (stage % step != 0 && stage + 1 != times.size()) continue;
    const auto& s = times[stage].seconds;
    text +=
        fmt::format("{:>5} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.1f} {:>11.1f} {:>9.1f}\n", stage, s[0] * 1e3,
                    s[1] * 1e3, s[2] * 1e3, s[3] * 1e3, (s[4] + s[5]) * 1e3, times[stage].idle * 1e3);
  }
  return text + fmt::format("\n0 to {:.1f} ms; F forward, B backward, W weight gradients, U update\n{}",
                            end_of(run) * 1e3, simulation_lanes(run, 74));
}

Json simulation_json(const ParallelPlan& plan, const SimulatedIteration& run) {
  Json json = Json::object();
  json["plan"] = plan_text(plan);
  json["ranks"] = plan.gpus;
  json["stages"] = static_cast<int64_t>(run.stages.size());
  json["ranks_per_stage"] = run.ranks_per_stage;
  json["micro_batches"] = run.microbatches;
  json["iter_ms"] = run.seconds * 1e3;
  json["bubble"] = run.bubble;
  json["exposed_gradients_ms"] = run.data_parallel * 1e3;
  json["update_ms"] = run.update * 1e3;
  Json& stages = json["by_stage"] = Json::array();
  for (const StageTimes& times : times_of(run)) {
    Json row = Json::object();
    for (size_t kind = 0; kind < times.seconds.size(); ++kind)
      row[span_kind_name(static_cast<SpanKind>(kind))] = times.seconds[kind] * 1e3;
    row["waits"] = times.idle * 1e3;
    stages.push_back(std::move(row));
  }
  return json;
}

report::LaneChart simulation_chart(const SimulatedIteration& run, size_t most) {
  report::LaneChart chart{.title = "Timeline of the chosen plan",
                          .unit = fmt::format("ms; a lane stands for {} equal ranks, bubble {:.1f} %",
                                              run.ranks_per_stage, 100 * run.bubble)};
  for (int kind = 0; kind < 7; ++kind) chart.kinds.emplace_back(span_kind_name(static_cast<SpanKind>(kind)));
  const bool chunks = chunked(run);
  for (size_t stage = 0; stage < run.stages.size(); ++stage) {
    report::LaneChart::Lane compute{fmt::format("stage {}", stage), {}}, links{"links", {}};
    for (const SimulatedSpan& span : run.stages[stage]) {
      auto& lane = computes(span.kind) ? compute : links;
      if (lane.spans.size() < most)
        lane.spans.push_back(
            {span.begin * 1e3, span.end * 1e3, static_cast<int>(span.kind), span_text(span, chunks)});
    }
    chart.lanes.push_back(std::move(compute));
    if (!links.spans.empty() && run.stages.size() <= 8) chart.lanes.push_back(std::move(links));
  }
  return chart;
}

std::string simulation_svg(const SimulatedIteration& run, const std::string& title) {
  constexpr std::string_view colors[] = {"#3b82c4", "#e08a2e", "#5aa469", "#9a6fb0",
                                         "#7fb7be", "#c45a5a", "#6b7280"};
  constexpr double width = 1200, left = 64, row = 26, links = 8;
  const double end = end_of(run), scale = (width - left - 12) / end;
  const double height = 64 + static_cast<double>(run.stages.size()) * (row + links) + 40;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"12\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{2}</text>\n",
      width, height, report::escape_html(title));
  double at = 12;
  for (size_t kind = 0; kind < std::size(colors); ++kind) {
    const std::string_view name = span_kind_name(static_cast<SpanKind>(kind));
    text +=
        fmt::format("<rect x=\"{:.0f}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{}\"/>", at, colors[kind]);
    text += fmt::format("<text x=\"{:.0f}\" y=\"44\">{}</text>\n", at + 17, name);
    at += 34 + 7.0 * static_cast<double>(name.size());
  }
  const bool chunks = chunked(run);
  for (size_t stage = 0; stage < run.stages.size(); ++stage) {
    const double y = 60 + static_cast<double>(stage) * (row + links);
    text += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">stage {}</text>\n", left - 8,
                        y + 14, stage);
    for (const SimulatedSpan& span : run.stages[stage]) {
      const bool thin = !computes(span.kind);
      const double x = left + span.begin * scale, w = std::max(0.4, (span.end - span.begin) * scale - 0.3);
      text += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"><title>{} {}: "
          "{:.3f} to {:.3f} ms</title></rect>",
          x, thin ? y + 20 : y, w, thin ? 5.0 : 18.0, colors[static_cast<size_t>(span.kind)],
          span_kind_name(span.kind), span_text(span, chunks), span.begin * 1e3, span.end * 1e3);
      const std::string label = span_text(span, chunks);
      if (!thin && w > 7.0 * static_cast<double>(label.size()) + 4)
        text += fmt::format(
            "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#ffffff\" "
            "font-size=\"11\">{}</text>",
            x + w / 2, y + 13, label);
    }
    text += "\n";
  }
  const double base = 60 + static_cast<double>(run.stages.size()) * (row + links) + 14;
  for (int tick = 0; tick <= 8; ++tick)
    text +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#555\">{:.1f} ms</text>\n",
                    left + tick / 8.0 * end * scale, base, tick / 8.0 * end * 1e3);
  return text + "</svg>\n";
}

report::Trace simulation_trace(const SimulatedIteration& run, int replicas) {
  report::Trace trace;
  const bool chunks = chunked(run);
  // Ranks of a stage are neighbours of each other: rank = stage x ranks of a stage + place in it.
  const int shown = std::clamp(replicas, 1, run.ranks_per_stage);
  for (int place = 0; place < shown; ++place) {
    const auto rank_of = [&](size_t stage) {
      return static_cast<int64_t>(stage) * run.ranks_per_stage + place;
    };
    for (size_t stage = 0; stage < run.stages.size(); ++stage)
      for (const SimulatedSpan& span : run.stages[stage]) {
        const auto lane = computes(span.kind)              ? report::TraceLane::compute
                          : span.kind == SpanKind::message ? report::TraceLane::pipeline
                                                           : report::TraceLane::communication;
        trace.spans.push_back({rank_of(stage), lane,
                               fmt::format("{} {}", span_kind_name(span.kind), span_text(span, chunks)),
                               span.begin * 1e6, span.end * 1e6});
      }
    for (const SimulatedMessage& message : run.messages)
      trace.messages.push_back(
          {rank_of(static_cast<size_t>(message.from)), rank_of(static_cast<size_t>(message.to)),
           message.gradient ? "gradients" : "activations", message.sent * 1e6, message.received * 1e6});
  }
  return trace;
}

}  // namespace megatron::autotune
