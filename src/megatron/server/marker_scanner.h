#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {

// Looks for markers in a text that comes in parts: stop strings, or the tags around reasoning and calls of
// tools.
class MarkerScanner {
 public:
  // Markers are not empty.
  explicit MarkerScanner(std::vector<std::string> markers) : markers_(std::move(markers)) {}

  struct Found {
    std::string before;  // text that is certain to be no marker
    int marker = -1;     // which of them stands behind it; -1: none yet
    std::string after;   // what came behind the marker
  };
  // The first marker that this part completes; of several at one place the longest.
  Found push(std::string_view part);
  // What was held back because a marker might have begun there.
  std::string flush();

 private:
  std::vector<std::string> markers_;
  std::string pending_;
};

}  // namespace megatron
