#include "megatron/report/chart.h"

#include <algorithm>
#include <cmath>

namespace megatron::report {
namespace {

// Six digits are more than a screen shows, and half the bytes of all.
Json number(double value) {
  if (!std::isfinite(value)) return {};
  if (value == 0) return 0;
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(scale) && scale > 0 ? std::round(value * scale) / scale : value;
}

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (double value : values) list.push_back(number(value));
  return list;
}

Json texts(const std::vector<std::string>& values) {
  Json list = Json::array();
  for (const std::string& value : values) list.push_back(value);
  return list;
}

Json head(std::string_view kind, const std::string& title, const std::string& unit, bool wide) {
  Json json = Json::object();
  json["kind"] = kind;
  json["title"] = title;
  json["unit"] = unit;
  if (wide) json["wide"] = true;
  return json;
}

Json to_json(const LineChart& chart) {
  Json json = head("line", chart.title, chart.unit, chart.wide);
  json["x"] = chart.x;
  if (chart.log) json["log"] = true;
  if (chart.zero) json["zero"] = true;
  if (chart.smooth) json["smooth"] = true;
  Json& list = json["series"] = Json::array();
  for (const LineSeries& series : chart.series) {
    Json row = Json::object();
    row["name"] = series.name;
    row["run"] = series.run;
    row["x"] = numbers(series.x);
    row["y"] = numbers(series.y);
    if (!series.low.empty()) {
      row["low"] = numbers(series.low);
      row["high"] = numbers(series.high);
    }
    list.push_back(std::move(row));
  }
  Json& marks = json["marks"] = Json::array();
  for (const Mark& mark : chart.marks) {
    Json row = Json::object();
    row["x"] = number(mark.x);
    row["label"] = mark.label;
    row["kind"] = mark.kind;
    row["run"] = mark.run;
    marks.push_back(std::move(row));
  }
  return json;
}

Json to_json(const HeatChart& chart) {
  Json json = head("heat", chart.title, chart.unit, chart.wide);
  json["xname"] = chart.x_name;
  json["x"] = numbers(chart.x);
  json["rows"] = texts(chart.rows);
  Json& values = json["values"] = Json::array();
  for (const std::vector<double>& row : chart.values) values.push_back(numbers(row));
  return json;
}

Json to_json(const BarChart& chart) {
  Json json = head("bars", chart.title, chart.unit, chart.wide);
  json["labels"] = texts(chart.labels);
  if (chart.limit > 0) json["limit"] = number(chart.limit);
  Json& parts = json["parts"] = Json::array();
  for (const BarChart::Part& part : chart.parts) {
    Json row = Json::object();
    row["name"] = part.name;
    row["values"] = numbers(part.values);
    parts.push_back(std::move(row));
  }
  return json;
}

Json to_json(const LaneChart& chart) {
  Json json = head("lanes", chart.title, chart.unit, chart.wide);
  json["kinds"] = texts(chart.kinds);
  Json& lanes = json["lanes"] = Json::array();
  for (const LaneChart::Lane& lane : chart.lanes) {
    Json row = Json::object();
    row["name"] = lane.name;
    Json& spans = row["spans"] = Json::array();
    for (const LaneChart::Span& span : lane.spans) {
      Json one = Json::array();
      one.push_back(number(span.from));
      one.push_back(number(span.to));
      one.push_back(span.kind);
      one.push_back(span.name);
      spans.push_back(std::move(one));
    }
    lanes.push_back(std::move(row));
  }
  return json;
}

Json to_json(const ScatterChart& chart) {
  Json json = head("scatter", chart.title, chart.unit, chart.wide);
  json["xname"] = chart.x_name;
  json["yname"] = chart.y_name;
  if (chart.log_x) json["logx"] = true;
  if (chart.log_y) json["logy"] = true;
  json["groups"] = texts(chart.groups);
  Json& points = json["points"] = Json::array();
  for (const ScatterChart::Point& point : chart.points) {
    Json one = Json::array();
    one.push_back(number(point.x));
    one.push_back(number(point.y));
    one.push_back(point.group);
    one.push_back(point.name);
    points.push_back(std::move(one));
  }
  Json& lines = json["lines"] = Json::array();
  for (const ScatterChart::Line& line : chart.lines) {
    Json one = Json::object();
    one["name"] = line.name;
    one["x"] = numbers(line.x);
    one["y"] = numbers(line.y);
    lines.push_back(std::move(one));
  }
  return json;
}

}  // namespace

Json chart_json(const Chart& chart) {
  return std::visit([](const auto& own) { return to_json(own); }, chart);
}

LineSeries thinned(const LineSeries& series, size_t points) {
  const size_t size = series.x.size();
  if (size <= points || points == 0) return series;
  LineSeries result{series.name, series.run, {}, {}};
  for (size_t stretch = 0; stretch < points; ++stretch) {
    const size_t from = stretch * size / points, to = (stretch + 1) * size / points;
    double sum = 0, low = 0, high = 0;
    size_t count = 0;
    for (size_t i = from; i < to; ++i) {
      const double y = series.y[i];
      if (!std::isfinite(y)) continue;
      low = count == 0 ? y : std::min(low, y);
      high = count == 0 ? y : std::max(high, y);
      sum += y;
      ++count;
    }
    const double none = std::nan("");
    result.x.push_back(series.x[(from + to - 1) / 2]);
    result.y.push_back(count == 0 ? none : sum / static_cast<double>(count));
    result.low.push_back(count == 0 ? none : low);
    result.high.push_back(count == 0 ? none : high);
  }
  // The ends of the run are its ends on paper, too.
  result.x.front() = series.x.front();
  result.x.back() = series.x.back();
  return result;
}

}  // namespace megatron::report
