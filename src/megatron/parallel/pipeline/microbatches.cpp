#include "megatron/parallel/pipeline/microbatches.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron {
namespace {

template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw ConfigError("batch size: " + fmt::format(format, std::forward<Args>(args)...));
}

int64_t parse_count(std::string_view text, std::string_view entry) {
  double factor = 1;
  std::string_view digits = text;
  if (!digits.empty()) {
    constexpr std::string_view suffixes = "KMBT";
    const size_t place =
        suffixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(digits.back()))));
    if (place != std::string_view::npos) {
      factor = std::pow(1000.0, static_cast<double>(place + 1));
      digits.remove_suffix(1);
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  check(error == std::errc() && end == digits.data() + digits.size() && std::isfinite(value) &&
            std::abs(value * factor) < 9e18,
        "\"{}\" in schedule entry \"{}\" is not a number (K, M, B and T are known suffixes)", text, entry);
  return static_cast<int64_t>(value * factor);
}

}  // namespace

std::vector<BatchStep> parse_batch_schedule(std::string_view text, std::optional<int64_t> seq_length) {
  check(!seq_length || *seq_length > 0, "the sequence length is {}", seq_length.value_or(0));
  std::vector<BatchStep> steps;
  for (size_t at = 0; (at = text.find_first_not_of(" ,\t\n", at)) != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(" ,\t\n", at), text.size());
    const std::string_view entry = text.substr(at, end - at);
    at = end;
    const size_t colon = entry.find(':');
    check(colon != std::string_view::npos, "schedule entry \"{}\" must have the form THRESHOLD:BATCH_SIZE",
          entry);
    BatchStep step{parse_count(entry.substr(0, colon), entry), parse_count(entry.substr(colon + 1), entry)};
    check(step.global_batch > 0, "schedule entry \"{}\" has batch size {}; it must be positive", entry,
          step.global_batch);
    if (seq_length) step.from_sample /= *seq_length;
    steps.push_back(step);
  }
  check(!steps.empty(), "the schedule \"{}\" has no entry", text);
  std::stable_sort(steps.begin(), steps.end(),
                   [](auto& a, auto& b) { return a.from_sample < b.from_sample; });
  check(steps[0].from_sample == 0, "the first schedule entry starts at sample {}; it must start at 0",
        steps[0].from_sample);
  for (size_t i = 1; i < steps.size(); ++i)
    check(steps[i - 1].from_sample < steps[i].from_sample, "two schedule entries start at sample {}",
          steps[i].from_sample);
  return steps;
}

BatchPlan::BatchPlan(const BatchSettings& s)
    : micro_batch_(s.micro_batch), data_parallel_(s.data_parallel), scheduled_(!s.step_schedule.empty()) {
  check(micro_batch_ >= 1 && data_parallel_ >= 1, "micro batch {} and data-parallel size {} must be positive",
        micro_batch_, data_parallel_);
  if (scheduled_) {
    steps_ = parse_batch_schedule(s.step_schedule, s.seq_length);
    return;
  }
  const int64_t share = micro_batch_ * data_parallel_;
  steps_ = {{0, s.global_batch.value_or(share)}};
  if (!s.decrease_if_needed) check_divisible();
  check(at(0).num_microbatches >= 1, "global batch {} is smaller than micro batch {} × data-parallel size {}",
        steps_[0].global_batch, micro_batch_, data_parallel_);
}

BatchPlan::Batch BatchPlan::at(int64_t consumed_samples) const {
  const auto after =
      std::upper_bound(steps_.begin(), steps_.end(), consumed_samples,
                       [](int64_t sample, const BatchStep& step) { return sample < step.from_sample; });
  require(after != steps_.begin(), "batch size: {} consumed samples", consumed_samples);
  const int64_t batch = std::prev(after)->global_batch, share = micro_batch_ * data_parallel_;
  return {batch / share, batch, scheduled_ ? batch : batch / share * share};
}

void BatchPlan::check_divisible() const {
  for (const BatchStep& step : steps_)
    check(step.global_batch % (micro_batch_ * data_parallel_) == 0,
          "global batch {} is not divisible by micro batch {} × data-parallel size {} = {}",
          step.global_batch, micro_batch_, data_parallel_, micro_batch_ * data_parallel_);
}

}  // namespace megatron
