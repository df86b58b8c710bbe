#include "megatron/cli/bench_timing.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace megatron {
namespace {

double seconds_of(int64_t calls, const std::function<void()>& body) {
  auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double fastest_seconds(int64_t repeat, const std::function<void()>& body) {
  constexpr double wanted = 1e-3;  // per measurement
  body();                          // touches memory, fills caches and allocators
  double once = std::max(seconds_of(1, body), 1e-9);
  auto calls = static_cast<int64_t>(std::clamp(wanted / once, 1.0, 1e5));
  double fastest = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < repeat; ++i)
    fastest = std::min(fastest, seconds_of(calls, body) / static_cast<double>(calls));
  return fastest;
}

}  // namespace megatron
