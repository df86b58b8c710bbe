// The cost of an op itself (one element), and memory-bound kernels beside a plain copy.
#include <benchmark/benchmark.h>

#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/rope.h"

namespace megatron {
namespace {

// Forward without a tape, then with recording and its share of the backward pass.
void one_element_forward(benchmark::State& state) {
  RankContext ctx;
  Tensor x = ctx.full({1}, DType::F32, 1);
  for (auto _ : state) benchmark::DoNotOptimize(ops::scale(ctx, x, 1.5));
}
BENCHMARK(one_element_forward);

void one_element_autograd(benchmark::State& state) {
  RankContext ctx;
  constexpr int kOps = 1000;
  Tensor x = ctx.full({1}, DType::F32, 1), seed = ctx.full({1}, DType::F32, 1);
  for (auto _ : state) {
    Tape tape(ctx);
    Tensor y = tape.watch(x);
    {
      TapeScope scope(ctx, &tape);
      for (int i = 0; i < kOps; ++i) y = ops::scale(ctx, y, 1.001);
    }
    tape.backward(ctx, y, seed);
  }
  state.counters["per op"] =
      benchmark::Counter(kOps, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(one_element_autograd);

constexpr int64_t kTokens = 8192, kWidth = 1024;

void bandwidth(benchmark::State& state, double bytes) {
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

struct Fixture {
  explicit Fixture(DType dtype)
      : ctx(kCpu, available_cores()),
        x(ctx.full({kTokens, kWidth}, dtype, 0.5)),
        y(ctx.full({kTokens, kWidth}, dtype, 0.25)),
        w(ctx.full({kWidth}, dtype, 1)) {}
  RankContext ctx;
  Tensor x, y, w;
};

template <class Body>
void run(benchmark::State& state, double tensors, Body body) {
  Fixture f(static_cast<DType>(state.range(0)));
  for (auto _ : state) body(f);
  bandwidth(state, tensors * static_cast<double>(f.x.bytes()));
}

void copy(benchmark::State& state) {
  run(state, 2, [](Fixture& f) { f.ctx.kernels->copy(f.ctx.kernel_context(), {f.x, f.y}); });
}
void add(benchmark::State& state) {
  run(state, 3, [](Fixture& f) { benchmark::DoNotOptimize(ops::add(f.ctx, f.x, f.y)); });
}
void add_row(benchmark::State& state) {
  run(state, 2, [](Fixture& f) { benchmark::DoNotOptimize(ops::add(f.ctx, f.x, f.w)); });
}
void rmsnorm(benchmark::State& state) {
  run(state, 2, [](Fixture& f) { benchmark::DoNotOptimize(ops::norm(f.ctx, f.x, {f.w})); });
}
void layernorm_residual(benchmark::State& state) {
  run(state, 4, [](Fixture& f) {
    benchmark::DoNotOptimize(
        ops::norm_with_residual(f.ctx, f.x, f.y, {f.w}, {f.w}, {.kind = NormKind::Layer}));
  });
}
void rmsnorm_backward(benchmark::State& state) {
  Fixture f(static_cast<DType>(state.range(0)));
  Tensor dx = f.ctx.empty_like(f.x), rstd = f.ctx.full({kTokens}, DType::F32, 1);
  Tensor dw = f.ctx.empty({kWidth}, DType::F32);
  for (auto _ : state)
    f.ctx.kernels->norm_backward(f.ctx.kernel_context(),
                                 {.dy = f.y, .x = f.x, .weight = f.w, .rstd = rstd, .dx = dx, .dweight = dw});
  bandwidth(state, 3.0 * static_cast<double>(f.x.bytes()));
}
void gelu(benchmark::State& state) {
  run(state, 2, [](Fixture& f) { benchmark::DoNotOptimize(ops::activation(f.ctx, Unary::Gelu, f.x)); });
}
void swiglu(benchmark::State& state) {
  run(state, 1.5, [](Fixture& f) { benchmark::DoNotOptimize(ops::gated_activation(f.ctx, {}, f.x)); });
}
void swiglu_backward(benchmark::State& state) {
  Fixture f(static_cast<DType>(state.range(0)));
  Tensor dx = f.ctx.empty_like(f.x), dy = f.ctx.full({kTokens, kWidth / 2}, f.x.dtype(), 1);
  for (auto _ : state) f.ctx.kernels->gated_backward(f.ctx.kernel_context(), {.x = f.x, .dy = dy, .dx = dx});
  bandwidth(state, 2.5 * static_cast<double>(f.x.bytes()));
}
void rope(benchmark::State& state) {
  Fixture f(static_cast<DType>(state.range(0)));
  std::vector<int64_t> positions(kTokens);
  for (int64_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = i;
  auto rotation = ops::rope_tables(f.ctx, f.ctx.from_vector(positions, {kTokens}),
                                   ops::rope_frequencies(64, 10000), f.x.dtype());
  Tensor heads = f.x.view({kTokens, kWidth / 64, 64});
  for (auto _ : state) benchmark::DoNotOptimize(ops::rope(f.ctx, heads, rotation));
  bandwidth(state, 2.0 * static_cast<double>(f.x.bytes()));
}
void column_sum(benchmark::State& state) {
  run(state, 1, [](Fixture& f) { benchmark::DoNotOptimize(ops::sum(f.ctx, f.x, 0)); });
}
void adam(benchmark::State& state) {
  Fixture f(static_cast<DType>(state.range(0)));
  AdamTensor t{.parameter = f.x};
  Shape shape = f.x.shape();
  if (f.x.dtype() != DType::F32) t.master = f.ctx.full(shape, DType::F32, 1);
  t.gradient = f.ctx.full(shape, DType::F32, 1);
  t.first = f.ctx.zeros(shape, DType::F32);
  t.second = f.ctx.zeros(shape, DType::F32);
  for (auto _ : state) f.ctx.kernels->adam(f.ctx.kernel_context(), {.tensors = {&t, 1}, .lr = 1e-4});
  double bytes = 5 * 4.0 + 2 * 4.0;  // read and write three states, read the gradient
  if (f.x.dtype() != DType::F32) bytes += 2;
  bandwidth(state, bytes * static_cast<double>(f.x.numel()));
}

void dtypes(benchmark::internal::Benchmark* bench) {
  bench->Arg(static_cast<int>(DType::F32))->Arg(static_cast<int>(DType::BF16))->ArgName("dtype");
  bench->Unit(benchmark::kMillisecond)->UseRealTime();
}
BENCHMARK(copy)->Apply(dtypes);
BENCHMARK(add)->Apply(dtypes);
BENCHMARK(add_row)->Apply(dtypes);
BENCHMARK(rmsnorm)->Apply(dtypes);
BENCHMARK(layernorm_residual)->Apply(dtypes);
BENCHMARK(rmsnorm_backward)->Apply(dtypes);
BENCHMARK(gelu)->Apply(dtypes);
BENCHMARK(swiglu)->Apply(dtypes);
BENCHMARK(swiglu_backward)->Apply(dtypes);
BENCHMARK(rope)->Apply(dtypes);
BENCHMARK(column_sum)->Apply(dtypes);
BENCHMARK(adam)->Apply(dtypes);

}  // namespace
}  // namespace megatron
