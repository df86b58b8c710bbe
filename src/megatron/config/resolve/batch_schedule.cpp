#include "megatron/config/resolve/batch_schedule.h"

#include <algorithm>
#include <charconv>

#include "megatron/base/error.h"

namespace megatron {
namespace {

int64_t read_number(std::string_view text) {
  double scale = 1;
  const std::string_view digits = text.substr(0, text.find_last_not_of("KMBTkmbt") + 1);
  if (digits.size() + 1 == text.size()) {
    switch (text.back() | 0x20) {
      case 'k':
        scale = 1e3;
        break;
      case 'm':
        scale = 1e6;
        break;
      case 'b':
        scale = 1e9;
        break;
      default:
        scale = 1e12;
        break;
    }
  }
  double value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = !digits.empty() && error == std::errc() && stop == digits.data() + digits.size();
  require(whole && digits.size() + 1 >= text.size() && value >= 0 && value * scale < 0x1p62,
          "batch schedule: '{}' is not a number such as 512, 1.5K or 10B", text);
  return static_cast<int64_t>(value * scale);
}

}  // namespace

std::vector<BatchStep> parse_batch_schedule(std::string_view text, int64_t seq_length) {
  std::vector<BatchStep> steps;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(" ,"), text.size());
    const std::string_view entry = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty()) continue;
    const size_t colon = entry.find(':');
    require(colon != std::string_view::npos, "batch schedule: '{}' is not TOKENS:BATCH", entry);
    steps.push_back({read_number(entry.substr(0, colon)) / seq_length, read_number(entry.substr(colon + 1))});
    require(steps.back().batch_size > 0, "batch schedule: '{}' has an empty batch", entry);
  }
  require(!steps.empty(), "batch schedule: it is empty");
  std::sort(steps.begin(), steps.end(),
            [](const BatchStep& a, const BatchStep& b) { return a.samples < b.samples; });
  require(steps.front().samples == 0, "batch schedule: it must begin at 0");
  for (size_t i = 1; i < steps.size(); ++i)
    require(steps[i].samples > steps[i - 1].samples, "batch schedule: two entries begin at {} samples",
            steps[i].samples);
  return steps;
}

}  // namespace megatron
