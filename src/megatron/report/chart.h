#pragma once

#include <string>
#include <variant>
#include <vector>

#include "megatron/base/json.h"

// Charts as values. A page (page.h) carries their numbers; its script draws them as SVG.
namespace megatron::report {

// A curve. x grows; a y that is NaN or infinite leaves a gap.
struct LineSeries {
  std::string name;  // "lm_loss"
  int run = 0;       // place in the page's list of runs
  std::vector<double> x, y;
  std::vector<double> low = {}, high = {};  // what a thinned curve's points stand for; drawn as a band
};

// Something that happened at x: a vertical line with a label.
struct Mark {
  double x = 0;
  std::string label;  // "saved, iteration 500"
  std::string kind;   // "save", "skip", "restart" choose a colour
  int run = 0;
};

struct LineChart {
  std::string title, unit, x = "iteration";  // charts of the same x share zoom and cursor
  std::vector<LineSeries> series;
  std::vector<Mark> marks;
  bool log = false;     // begin with a logarithmic scale
  bool zero = false;    // the scale begins at 0
  bool smooth = false;  // the page's slider smooths it
  bool wide = false;    // as wide as the page
};

// values[row][column] as shades.
struct HeatChart {
  std::string title, unit, x_name = "iteration";
  std::vector<double> x;          // of the columns
  std::vector<std::string> rows;  // their names
  std::vector<std::vector<double>> values;
  bool wide = true;
};

// Bars of stacked parts: part.values has one number a label.
struct BarChart {
  struct Part {
    std::string name;
    std::vector<double> values;
  };
  std::string title, unit;
  std::vector<std::string> labels;
  std::vector<Part> parts;
  double limit = 0;  // drawn as a line where it is above 0
  bool wide = false;
};

// Spans on lanes over time.
struct LaneChart {
  struct Span {
    double from = 0, to = 0;
    int kind = 0;  // place in kinds
    std::string name;
  };
  struct Lane {
    std::string name;
    std::vector<Span> spans;
  };
  std::string title, unit;
  std::vector<std::string> kinds;
  std::vector<Lane> lanes;
  bool wide = true;
};

// Points in a plane, by group, and lines between them: a front, ceilings of a roofline.
struct ScatterChart {
  struct Point {
    double x = 0, y = 0;
    int group = 0;  // place in groups
    std::string name;
  };
  struct Line {
    std::string name;
    std::vector<double> x, y;
  };
  std::string title, unit, x_name, y_name;
  std::vector<std::string> groups;
  std::vector<Point> points;
  std::vector<Line> lines;
  bool log_x = false, log_y = false;
  bool wide = false;
};

using Chart = std::variant<LineChart, HeatChart, BarChart, LaneChart, ScatterChart>;

// What the page's script reads; numbers of six digits, gaps as null.
Json chart_json(const Chart& chart);

// At most `points` of a curve: the means of as many stretches, with the lowest and the highest of each, so
// that peaks stay.
LineSeries thinned(const LineSeries& series, size_t points);

}  // namespace megatron::report
