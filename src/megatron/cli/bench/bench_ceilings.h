#pragma once

#include <functional>
#include <map>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// A GEMM c[m, n] = a[m, k] · b[k, n] of matrices without gaps; a transposed one is stored as [k, m] or
// [n, k].
struct LibraryGemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType in = DType::F32, out = DType::F32;
};

// The GEMM as the CPU's matrix library computes it by itself on this many threads of its own, on memory
// made here; empty where it does not take it.
std::function<void()> library_call(RankContext& ctx, const LibraryGemm& gemm, int threads);

// What this machine does at best, measured when first asked for: the yardstick of kernels that are not just
// GEMMs.
class Ceilings {
 public:
  Ceilings(RankContext& ctx, int64_t repeat) : ctx_(ctx), repeat_(repeat) {}

  // Bytes per second, read plus written, of a plain copy that touches `bytes` in all; small ones stay in
  // caches. One thread, or all of the rank's.
  double copy_rate(double bytes, bool all_threads = true);

  // The library's FLOP/s on a large GEMM; 0 where it takes none of the dtype.
  double peak_flops(DType dtype);

 private:
  RankContext& ctx_;
  int64_t repeat_;
  std::map<std::pair<int64_t, bool>, double> copy_rates_;
  std::map<DType, double> peaks_;
};

}  // namespace megatron
