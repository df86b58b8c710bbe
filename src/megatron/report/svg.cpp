#include "megatron/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace megatron::report {
namespace {

constexpr double kWidth = 960, kMargin = 24, kLabels = 110, kRow = 20, kGap = 18;
constexpr std::array kColours{"#4e79a7", "#f28e2b", "#59a14f", "#e15759",
                              "#76b7b2", "#edc948", "#b07aa1", "#9c755f"};

const char* colour(size_t part) { return kColours[part % kColours.size()]; }

// Draws from the top down.
class Drawing {
 public:
  void text(double x, double y, std::string_view words, int size = 12, std::string_view extra = "") {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\"{}>{}</text>\n", x, y, size, extra,
                         escape_html(words));
  }
  void box(double x, double y, double width, double height, std::string_view fill, std::string_view title) {
    body_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"{}\"><title>{}</title></rect>\n",
        x, y, std::max(0.0, width), height, fill, escape_html(title));
  }
  void line(double x, double from, double to) {
    body_ += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#c00\" "
        "stroke-dasharray=\"4 3\"/>\n",
        x, from, to);
  }
  void heading(std::string_view title, std::string_view unit) {
    y += kGap;
    text(kMargin, y, title, 14, " font-weight=\"bold\"");
    y += 16;
    if (!unit.empty()) text(kMargin, y, unit, 11, " fill=\"#555\"");
    y += 8;
  }
  void legend(const std::vector<std::string>& names) {
    double x = kMargin + kLabels;
    for (size_t i = 0; i < names.size(); ++i) {
      box(x, y, 10, 10, colour(i), names[i]);
      text(x + 14, y + 9, names[i], 11);
      x += 30 + 6.6 * static_cast<double>(names[i].size());
    }
    y += kRow;
  }
  std::string finish() const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"system-ui, sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"#fff\"/>\n{2}</svg>\n",
        kWidth, y + kMargin, body_);
  }

  double y = kMargin;

 private:
  std::string body_;
};

void draw(Drawing& out, const BarChart& chart) {
  out.heading(chart.title, chart.unit);
  std::vector<std::string> names;
  for (const BarChart::Part& part : chart.parts) names.push_back(part.name);
  out.legend(names);
  double most = chart.limit;
  for (size_t row = 0; row < chart.labels.size(); ++row) {
    double sum = 0;
    for (const BarChart::Part& part : chart.parts) sum += row < part.values.size() ? part.values[row] : 0;
    most = std::max(most, sum);
  }
  const double left = kMargin + kLabels, scale = most > 0 ? (kWidth - left - 90) / most : 0, top = out.y;
  for (size_t row = 0; row < chart.labels.size(); ++row, out.y += kRow) {
    out.text(kMargin, out.y + 13, chart.labels[row]);
    double sum = 0;
    for (size_t part = 0; part < chart.parts.size(); ++part) {
      const double value = row < chart.parts[part].values.size() ? chart.parts[part].values[row] : 0;
      out.box(left + sum * scale, out.y + 2, value * scale, kRow - 5, colour(part),
              fmt::format("{}: {:.4g}", names[part], value));
      sum += value;
    }
    out.text(left + sum * scale + 6, out.y + 13, fmt::format("{:.4g}", sum), 11);
  }
  if (chart.limit <= 0) return;
  out.line(left + chart.limit * scale, top, out.y);
  out.text(left + chart.limit * scale + 4, top - 4, fmt::format("limit {:.4g}", chart.limit), 10,
           " fill=\"#c00\"");
}

void draw(Drawing& out, const LaneChart& chart) {
  out.heading(chart.title, chart.unit);
  out.legend(chart.kinds);
  double most = 0;
  for (const LaneChart::Lane& lane : chart.lanes)
    for (const LaneChart::Span& span : lane.spans) most = std::max(most, span.to);
  const double left = kMargin + kLabels, scale = most > 0 ? (kWidth - left - kMargin) / most : 0;
  for (const LaneChart::Lane& lane : chart.lanes) {
    out.text(kMargin, out.y + 13, "stage " + lane.name);
    for (const LaneChart::Span& span : lane.spans) {
      const double wide = (span.to - span.from) * scale;
      out.box(left + span.from * scale, out.y + 2, wide - 0.5, kRow - 4,
              colour(static_cast<size_t>(span.kind)), span.name);
      if (wide > 7.0 * static_cast<double>(span.name.size()))
        out.text(left + span.from * scale + wide / 2, out.y + 14, span.name, 10,
                 " fill=\"#fff\" text-anchor=\"middle\"");
    }
    out.y += kRow;
  }
}

void draw(Drawing&, const LineChart&) {}
void draw(Drawing&, const HeatChart&) {}
void draw(Drawing&, const ScatterChart&) {}

void draw(Drawing& out, const Table& table) {
  out.y += kGap;
  std::vector<size_t> widths;
  const auto measure = [&](const std::vector<std::string>& row) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  };
  measure(table.head);
  for (const auto& row : table.rows) measure(row);
  const auto write = [&](const std::vector<std::string>& row, std::string_view extra) {
    double x = kMargin;
    for (size_t i = 0; i < row.size(); ++i) {
      out.text(x, out.y, row[i], 11, extra);
      x += 24 + 6.4 * static_cast<double>(widths[i]);
    }
    out.y += kRow - 4;
  };
  write(table.head, " font-weight=\"bold\"");
  for (const auto& row : table.rows) write(row, "");
}

}  // namespace

std::string render_svg(const Page& page) {
  Drawing out;
  out.text(kMargin, out.y, page.title, 18, " font-weight=\"bold\"");
  out.y += 18;
  if (!page.subtitle.empty()) out.text(kMargin, out.y, page.subtitle, 12, " fill=\"#555\"");
  out.y += 20;
  double x = kMargin;  // tiles in lines that end within the picture
  for (const Tile& tile : page.tiles) {
    const std::string words = fmt::format("{}: {}", tile.label, tile.value);
    const double wide = 20 + 6.6 * static_cast<double>(words.size());
    if (x > kMargin && x + wide > kWidth) x = kMargin, out.y += kRow - 4;
    out.text(x, out.y, words, 11);
    x += wide;
  }
  for (const Table& table : page.tables) draw(out, table);
  for (const PageSection& section : page.sections)
    for (const Chart& chart : section.charts) std::visit([&](const auto& each) { draw(out, each); }, chart);
  return out.finish();
}

}  // namespace megatron::report
