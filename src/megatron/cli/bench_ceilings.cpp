#include "megatron/cli/bench_ceilings.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "megatron/cli/bench_timing.h"

namespace megatron {

double Ceilings::copy_rate(double bytes, bool all_threads) {
  constexpr double least = 1 << 16, most = 1 << 28;
  // Sizes are rounded to quarter powers of two: ops of about one size share a measurement.
  auto bucket = static_cast<int64_t>(std::lround(4 * std::log2(std::min(std::max(bytes, least), most))));
  auto [entry, added] = copy_rates_.try_emplace({bucket, all_threads});
  if (!added) return entry->second;
  auto half = static_cast<int64_t>(std::exp2(static_cast<double>(bucket) / 4) / 2);
  std::vector<char> source(static_cast<size_t>(half), 1), target(static_cast<size_t>(half), 2);
  int64_t grain = all_threads ? 1 << 15 : half;
  double seconds = fastest_seconds(repeat_, [&] {
    pool_.parallel_for(half, grain, [&](int64_t begin, int64_t end) {
      std::memcpy(target.data() + begin, source.data() + begin, static_cast<size_t>(end - begin));
    });
  });
  return entry->second = 2.0 * static_cast<double>(half) / seconds;
}

}  // namespace megatron
