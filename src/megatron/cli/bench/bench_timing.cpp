#include "megatron/cli/bench/bench_timing.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "megatron/base/seconds_since.h"

namespace megatron {
namespace {

double seconds_of(int64_t calls, const std::function<void()>& body) {
  auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) body();
  return seconds_since(start);
}

// The mean over as many calls as a measurement needs. The first, unmeasured, fills caches and wakes threads.
double measured_seconds(const std::function<void()>& body) {
  constexpr double wanted = 1e-3;
  double first = std::max(seconds_of(1, body), 1e-9);
  auto calls = static_cast<int64_t>(std::clamp(wanted / first, 1.0, 1e5));
  return seconds_of(calls, body) / static_cast<double>(calls);
}

}  // namespace

double fastest_seconds(int64_t repeat, const std::function<void()>& body) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < repeat; ++i) fastest = std::min(fastest, measured_seconds(body));
  return fastest;
}

std::vector<double> fastest_in_turn(int64_t repeat, std::span<const std::function<void()>> bodies) {
  std::vector<double> fastest(bodies.size(), std::numeric_limits<double>::infinity());
  for (int64_t i = 0; i < repeat; ++i)
    for (size_t b = 0; b < bodies.size(); ++b) {
      if (bodies.size() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      fastest[b] = std::min(fastest[b], measured_seconds(bodies[b]));
    }
  return fastest;
}

}  // namespace megatron
