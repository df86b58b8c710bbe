// Linear layers, forward and backward, beside oneDNN alone on the same shapes: the engine's overhead is the
// difference.
#include <benchmark/benchmark.h>

#include <thread>

#ifdef MEGATRON_WITH_ONEDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.h>
#endif

#include "megatron/ops/linear.h"

namespace megatron {
namespace {

void shapes(benchmark::internal::Benchmark* bench) {
  for (auto [in, out] : {std::pair{256, 768}, {256, 256}, {256, 1408}, {704, 256}, {256, 14336}})
    bench->Args({2048, in, out});
  bench->Unit(benchmark::kMillisecond)->UseRealTime()->MeasureProcessCPUTime();
}

double flops(const benchmark::State& state) {
  return 6.0 * static_cast<double>(state.range(0) * state.range(1) * state.range(2));
}

void report(benchmark::State& state) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops(state) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void linear(benchmark::State& state, DType dtype) {
  RankContext ctx(kCpu, available_cores());
  int64_t tokens = state.range(0), in = state.range(1), out = state.range(2);
  Tensor x = ctx.full({tokens, in}, dtype, 0.5), w = ctx.full({out, in}, dtype, 0.25);
  Tensor dy = ctx.full({tokens, out}, dtype, 1);
  GradAccumulator sink;
  sink.main_grad = ctx.zeros({out, in}, DType::F32);
  auto step = [&] {
    Tape tape(ctx);
    Tensor watched = tape.watch(x), y;
    {
      TapeScope scope(ctx, &tape);
      y = ops::linear(ctx, watched, {w, &sink});
    }
    tape.backward(ctx, y, dy);
  };
  step();  // first touch of all memory
  for (auto _ : state) step();
  report(state);
}

void linear_fp32(benchmark::State& state) { linear(state, DType::F32); }
void linear_bf16(benchmark::State& state) { linear(state, DType::BF16); }
BENCHMARK(linear_fp32)->Apply(shapes);
BENCHMARK(linear_bf16)->Apply(shapes);

#ifdef MEGATRON_WITH_ONEDNN
void onednn_fp32(benchmark::State& state) {
  omp_set_num_threads(available_cores());
  int64_t m = state.range(0), k = state.range(1), n = state.range(2);
  RankContext ctx;
  Tensor x = ctx.full({m, k}, DType::F32, 0.5), w = ctx.full({n, k}, DType::F32, 0.25);
  Tensor y = ctx.full({m, n}, DType::F32, 1), dw = ctx.zeros({n, k}, DType::F32);
  auto *xp = x.data<float>(), *wp = w.data<float>(), *yp = y.data<float>(), *dwp = dw.data<float>();
  Tensor dx = ctx.empty({m, k}, DType::F32);
  for (auto _ : state) {
    dnnl_sgemm('N', 'T', m, n, k, 1, xp, k, wp, k, 0, yp, n);
    dnnl_sgemm('N', 'N', m, k, n, 1, yp, n, wp, k, 0, dx.data<float>(), k);
    dnnl_sgemm('T', 'N', n, k, m, 1, yp, n, xp, k, 1, dwp, k);
  }
  report(state);
  omp_set_num_threads(1);
}
BENCHMARK(onednn_fp32)->Apply(shapes);
#endif

}  // namespace
}  // namespace megatron
