#include "megatron/cli/bench/bench_overhead.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

#include "megatron/models/parallel_setup.h"
#include "megatron/ops/elementwise.h"
#include "megatron/parallel/planned_group.h"
#include "megatron/training/plan/blank_batches.h"
#include "megatron/training/run/run.h"
#include "megatron/training/setup/run_settings.h"

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

constexpr const char* kMediumModel =
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings "
    "1024 --vocab-size 50304 --micro-batch-size 1 --global-batch-size 1 --train-iters 1 --lr 1e-4 --bf16 "
    "--attention-dropout 0 --hidden-dropout 0 --mock-data --device cpu";

}  // namespace

HostStep measure_host_step(int64_t repeat) {
  RunSpec spec = run_spec(kMediumModel);
  spec.log = Log(LogLevel::warning, stderr);
  const Config config = resolve_run(spec, {}).config;
  RankContext ctx(kMeta);
  const ParallelSizes sizes = parallel_sizes(config, 1);
  const ParallelContext parallel =
      ParallelContext::from_sizes(planned_world(sizes, 0, std::make_shared<TrafficLog>()), sizes);
  RankTrainer trainer(ctx, config, parallel, model_dtype(config));
  const std::vector<Batch> batches = blank_batches(config, 1);
  std::vector<double> times;
  for (int64_t i = 0; i <= 10 * repeat; ++i) {
    const auto start = Clock::now();
    trainer.step(ctx, batches, 1e-4);
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

std::vector<Overhead> measure_overhead(RankContext& ctx, int64_t repeat) {
  Tensor other = ctx.full({1}, DType::F32, 1);
  return {measure(ctx, "scale", repeat, [&](const Tensor& x) { return ops::scale(ctx, x, 1.0); }),
          measure(ctx, "mul", repeat, [&](const Tensor& x) { return ops::mul(ctx, x, other); })};
}

}  // namespace megatron
