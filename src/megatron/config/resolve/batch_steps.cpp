#include "megatron/config/resolve/batch_steps.h"

#include <charconv>

#include "megatron/base/counted.h"
#include "megatron/base/error.h"

namespace megatron {
namespace {

// "10M": a number with a suffix for thousands, millions, billions or trillions; -1 where it is none.
int64_t scaled_number(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || !(value >= 0) || value > 1e15) return -1;
  const std::string_view suffix = word.substr(static_cast<size_t>(end - word.data()));
  if (suffix.empty()) return static_cast<int64_t>(value);
  constexpr std::string_view suffixes = "KMBT";
  const size_t at = suffix.size() == 1 ? suffixes.find(suffix[0] & ~0x20) : std::string_view::npos;
  if (at == std::string_view::npos) return -1;
  for (size_t i = 0; i <= at; ++i) value *= 1e3;
  return value < 9e18 ? static_cast<int64_t>(value) : -1;
}

[[noreturn]] void refuse_steps(std::string_view why) {
  throw ConfigError(
      fmt::format("{}; write TOKENS:SIZE entries that begin at 0, such as '0:64 10M:128'", why));
}

}  // namespace

std::vector<BatchSize> parse_batch_steps(const std::vector<std::string>& words, int64_t seq_length) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  std::vector<BatchSize> steps;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" ,", at), text.size());
    const std::string_view entry = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (entry.empty()) continue;
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) refuse_steps(fmt::format("'{}' has no ':'", entry));
    const int64_t tokens = scaled_number(entry.substr(0, colon)),
                  size = scaled_number(entry.substr(colon + 1));
    if (tokens < 0 || size < 1) refuse_steps(fmt::format("'{}' is no pair of numbers", entry));
    steps.push_back({tokens / std::max<int64_t>(1, seq_length), size});
    if (steps.size() > 1 && steps.back().from <= steps[steps.size() - 2].from)
      refuse_steps(fmt::format("'{}' does not begin later than the entry before it, in whole sequences of {}",
                               entry, counted(seq_length, "token")));
  }
  if (steps.empty() || steps[0].from != 0) refuse_steps("its first entry is not at 0");
  return steps;
}

std::vector<BatchSize> batch_sizes(const BatchGrowth& batch) {
  if (!batch.steps.empty()) return parse_batch_steps(batch.steps, batch.seq_length);
  const std::vector<int64_t>& ramp = batch.ramp;
  if (ramp.empty()) return {{0, batch.global_batch_size}};
  const auto refuse = [&](std::string_view why) {
    throw ConfigError(fmt::format("{}; give START INCREMENT SAMPLES", why));
  };
  if (ramp.size() != 3) refuse(fmt::format("{} numbers are given, not 3", ramp.size()));
  const int64_t start = ramp[0], increment = ramp[1], samples = ramp[2],
                growth = batch.global_batch_size - start;
  if (start < 1 || increment < 1 || samples < 0 || growth < 0 || growth % increment != 0)
    refuse(fmt::format("batches do not grow from {} by steps of {} to {}", start, increment,
                       batch.global_batch_size));
  std::vector<BatchSize> steps = {{0, start}};
  // Megatron-LM divides the samples among the steps as real numbers, and compares whole consumed samples.
  const double each =
      static_cast<double>(samples) / static_cast<double>(std::max<int64_t>(1, growth / increment));
  for (int64_t i = 1; i * increment <= growth; ++i) {
    const double from = each * static_cast<double>(i);
    const auto whole = static_cast<int64_t>(from);
    const int64_t at = static_cast<double>(whole) == from ? whole : whole + 1;
    if (at == steps.back().from)
      steps.back().size = start + i * increment;
    else
      steps.push_back({at, start + i * increment});
  }
  return steps;
}

}  // namespace megatron
