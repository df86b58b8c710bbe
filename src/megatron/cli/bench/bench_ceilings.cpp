#include "megatron/cli/bench/bench_ceilings.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "megatron/cli/bench/bench_timing.h"
#include "megatron/kernels/cpu/gemm.h"

namespace megatron {

std::function<void()> library_call(RankContext& ctx, const LibraryGemm& p, int threads) {
  Tensor a = ctx.full({p.m, p.k}, p.in, 0.5), b = ctx.full({p.k, p.n}, p.in, 0.25);
  Tensor c = ctx.full({p.m, p.n}, p.out, 0);
  cpu::GemmProblem problem{.m = p.m,
                           .n = p.n,
                           .k = p.k,
                           .in = p.in,
                           .out = p.out,
                           .a = a.raw(),
                           .a_row = p.transpose_a ? 1 : p.k,
                           .a_column = p.transpose_a ? p.m : 1,
                           .b = b.raw(),
                           .b_row = p.transpose_b ? 1 : p.n,
                           .b_column = p.transpose_b ? p.k : 1,
                           .c = c.raw(),
                           .c_row = p.n,
                           .c_column = 1};
  if (!cpu::library_supports(problem)) return {};
  return [a, b, c, problem, threads] { cpu::library_run(problem, threads); };
}

double Ceilings::copy_rate(double bytes, bool all_threads) {
  constexpr double least = 1 << 16, most = 1 << 27;
  // Sizes are rounded to quarter powers of two: ops of about one size share a measurement.
  auto bucket = static_cast<int64_t>(std::lround(4 * std::log2(std::min(std::max(bytes, least), most))));
  auto [entry, added] = copy_rates_.try_emplace({bucket, all_threads});
  if (!added) return entry->second;
  auto half = static_cast<int64_t>(std::exp2(static_cast<double>(bucket) / 4) / 2);
  Tensor source = ctx_.full({half}, DType::I8, 1), target = ctx_.full({half}, DType::I8, 2);
  int64_t grain = all_threads ? 1 << 15 : half;
  double seconds = fastest_seconds(repeat_, [&] {
    ctx_.pool.parallel_for(half, grain, [&](int64_t begin, int64_t end) {
      std::memcpy(target.data<int8_t>() + begin, source.data<int8_t>() + begin,
                  static_cast<size_t>(end - begin));
    });
  });
  return entry->second = 2.0 * static_cast<double>(half) / seconds;
}

double Ceilings::peak_flops(DType dtype) {
  auto [entry, added] = peaks_.try_emplace(dtype);
  if (!added) return entry->second;
  constexpr int64_t n = 1024;
  auto call = library_call(ctx_, {.m = n, .n = n, .k = n, .in = dtype, .out = dtype}, ctx_.pool.width());
  if (!call) return 0;
  entry->second = 2.0 * n * n * n / fastest_seconds(repeat_, call);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // until the library's threads sleep
  return entry->second;
}

}  // namespace megatron
