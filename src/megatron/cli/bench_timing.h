#pragma once

#include <cstdint>
#include <functional>

namespace megatron {

// Seconds that one call takes: the shortest of `repeat` measurements, since whatever else the machine does
// only ever adds time. Short bodies are called many times per measurement, so that the clock does not count.
double fastest_seconds(int64_t repeat, const std::function<void()>& body);

}  // namespace megatron
