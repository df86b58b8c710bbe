#pragma once

#include <algorithm>
#include <chrono>

namespace megatron {

// A time-out that passes only while this process runs. A machine that is paused, or a process that is
// stopped, makes nobody else late: what passed meanwhile is added to the end. Whoever waits sleeps until
// next() at most, and then asks.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Patience(Clock::duration timeout) : seen_(Clock::now()), end_(seen_ + timeout) {}
  static Patience endless() { return Patience(Clock::duration::zero(), true); }

  Clock::time_point next() const { return endless_ ? end_ + kLong : std::min(end_, seen_ + kSlice); }
  bool over() {
    if (endless_) return false;
    const Clock::time_point now = Clock::now();
    if (now - seen_ > kPause) end_ += now - seen_ - kSlice;
    seen_ = now;
    return now >= end_;
  }

 private:
  Patience(Clock::duration timeout, bool endless) : Patience(timeout) { endless_ = endless; }

  static constexpr auto kLong = std::chrono::hours(24 * 365);
  static constexpr auto kSlice = std::chrono::milliseconds(200), kPause = std::chrono::milliseconds(400);

  Clock::time_point seen_, end_;
  bool endless_ = false;
};

}  // namespace megatron
