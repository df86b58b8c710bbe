#include "megatron/comm/flight_recorder.h"

#include <fmt/ranges.h>

namespace megatron {

uint64_t FlightRecorder::begin(std::shared_ptr<const std::string> group, uint64_t sequence,
                               const CommRequest& request) {
  Entry entry{std::move(group), sequence, CommCall(request), Clock::now(), {}, false};
  if (entries_.size() < kRemembered)
    entries_.push_back(std::move(entry));
  else
    entries_[begun_ % kRemembered] = std::move(entry);
  return begun_++;
}

void FlightRecorder::finish(uint64_t number) {
  if (number + kRemembered < begun_) return;  // overwritten since
  Entry& entry = entries_[number % kRemembered];
  entry.done = true;
  entry.finished = Clock::now();
}

std::string FlightRecorder::tell(const Entry& entry) {
  const std::chrono::duration<double> ago = Clock::now() - (entry.done ? entry.finished : entry.begun);
  return fmt::format("{} #{} on group {} at {}, {} {:.1f} s ago", describe(entry.call), entry.sequence,
                     *entry.group, describe(entry.call.where), entry.done ? "done" : "begun", ago.count());
}

std::string FlightRecorder::last() const {
  return begun_ == 0 ? "nothing" : tell(entries_[(begun_ - 1) % kRemembered]);
}

std::string FlightRecorder::last_in(const std::string& group) const {
  for (uint64_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[(begun_ - 1 - i) % kRemembered];
    if (*entry.group == group) return tell(entry);
  }
  return "nothing";
}

std::string tell_ranks(const std::vector<int>& missing, const std::set<int>& culprits) {
  std::string text = fmt::format("{}", fmt::join(missing, " "));
  if (!culprits.empty() && culprits != std::set<int>(missing.begin(), missing.end()))
    text += fmt::format("; held up by rank{} {}", culprits.size() == 1 ? "" : "s", fmt::join(culprits, " "));
  return text;
}

std::string FlightRecorder::text() const {
  std::string text;
  for (uint64_t i = entries_.size(); i > 0; --i)
    text += fmt::format("  {}\n", tell(entries_[(begun_ - i) % kRemembered]));
  return text;
}

}  // namespace megatron
