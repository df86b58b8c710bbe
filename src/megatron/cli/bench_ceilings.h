#pragma once

#include <map>

#include "megatron/device/cpu_pool.h"

namespace megatron {

// What this machine does at best, measured when first asked for: the yardstick of the kernels.
class Ceilings {
 public:
  Ceilings(CpuPool& pool, int64_t repeat) : pool_(pool), repeat_(repeat) {}

  // Bytes per second, read plus written, of a plain copy that touches `bytes` in all; small ones stay in
  // caches. One thread, or all of the pool.
  double copy_rate(double bytes, bool all_threads = true);

 private:
  CpuPool& pool_;
  int64_t repeat_;
  std::map<std::pair<int64_t, bool>, double> copy_rates_;
};

}  // namespace megatron
