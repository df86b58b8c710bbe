#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace megatron {

// Seconds that one call takes: the shortest of `repeat` measurements, since whatever else the machine does
// only ever adds time. Short bodies are called many times per measurement, so that the clock does not count.
double fastest_seconds(int64_t repeat, const std::function<void()>& body);

// The same of several bodies in turn, so that they meet the same moods of the machine, with a pause between
// them for threads of a library that look for more work a while before they sleep.
std::vector<double> fastest_in_turn(int64_t repeat, std::span<const std::function<void()>> bodies);

}  // namespace megatron
