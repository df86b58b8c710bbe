#pragma once

#include <string>
#include <vector>

#include "megatron/report/chart.h"

namespace megatron::report {

// A figure at the top of a page.
struct Tile {
  std::string value;  // "2.316"
  std::string label;  // "last loss"
};

// The first cell of a row is its name.
struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

struct PageSection {
  std::string title;
  std::vector<Chart> charts;
};

// A page of charts, whatever they are of.
struct Page {
  std::string title, subtitle;
  std::vector<std::string> runs;  // that charts compare; more than one get colours and a legend
  std::vector<Tile> tiles;
  std::vector<Table> tables;
  std::vector<PageSection> sections;
};

// The page as one HTML file that needs nothing else: no network, no library, light and dark.
std::string render(const Page& page);

// Text as HTML shows it.
std::string escape_html(std::string_view text);

}  // namespace megatron::report
