#include "megatron/server/marker_scanner.h"

#include <algorithm>
#include <utility>

namespace megatron {

MarkerScanner::Found MarkerScanner::push(std::string_view part) {
  pending_ += part;
  size_t first = std::string::npos;
  int marker = -1;
  for (size_t i = 0; i < markers_.size(); ++i) {
    const size_t at = pending_.find(markers_[i]);
    if (at == std::string::npos || at > first) continue;
    if (at == first && markers_[i].size() <= markers_[static_cast<size_t>(marker)].size()) continue;
    first = at;
    marker = static_cast<int>(i);
  }
  if (marker >= 0) {
    Found found{pending_.substr(0, first), marker,
                pending_.substr(first + markers_[static_cast<size_t>(marker)].size())};
    pending_.clear();
    return found;
  }
  // The longest end of the text with which a marker begins stays here.
  size_t held = 0;
  for (const std::string& text : markers_)
    for (size_t length = std::min(text.size() - 1, pending_.size()); length > held; --length)
      if (std::string_view(pending_).ends_with(std::string_view(text).substr(0, length))) held = length;
  Found found{pending_.substr(0, pending_.size() - held), -1, ""};
  pending_.erase(0, pending_.size() - held);
  return found;
}

std::string MarkerScanner::flush() { return std::exchange(pending_, ""); }

}  // namespace megatron
