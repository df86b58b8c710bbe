#include "megatron/cli/bench/bench_overhead.h"

#include <chrono>
#include <functional>
#include <limits>

#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

constexpr int kChain = 1000;

using Clock = std::chrono::steady_clock;
using Op = std::function<Tensor(const Tensor&)>;

double nanoseconds_per_op(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::nano>(end - begin).count() / kChain;
}

Tensor chain(Tensor x, const Op& op) {
  for (int i = 0; i < kChain; ++i) x = op(x);
  return x;
}

Overhead measure(RankContext& ctx, std::string name, int64_t repeat, const Op& op) {
  constexpr double never = std::numeric_limits<double>::infinity();
  Overhead least{std::move(name), never, never, never};
  Tensor x = ctx.full({1}, DType::F32, 1), grad = ctx.full({1}, DType::F32, 1);
  for (int64_t i = 0; i <= 10 * repeat; ++i) {
    auto start = Clock::now();
    chain(x, op);
    auto forward = Clock::now();
    Tape tape(ctx);
    Tensor watched = tape.watch(x), y;
    {
      TapeScope scope(ctx, &tape);
      y = chain(watched, op);
    }
    auto recorded = Clock::now();
    tape.backward(ctx, y, grad);
    auto end = Clock::now();
    least.forward_ns = std::min(least.forward_ns, nanoseconds_per_op(start, forward));
    least.recorded_ns = std::min(least.recorded_ns, nanoseconds_per_op(forward, recorded));
    least.backward_ns = std::min(least.backward_ns, nanoseconds_per_op(recorded, end));
  }
  return least;
}

}  // namespace

std::vector<Overhead> measure_overhead(RankContext& ctx, int64_t repeat) {
  Tensor other = ctx.full({1}, DType::F32, 1);
  return {measure(ctx, "scale", repeat, [&](const Tensor& x) { return ops::scale(ctx, x, 1.0); }),
          measure(ctx, "mul", repeat, [&](const Tensor& x) { return ops::mul(ctx, x, other); })};
}

}  // namespace megatron
