#include <gtest/gtest.h>

#include <deque>
#include <functional>

#include "megatron/comm/run_ranks.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/reduce.h"
#include "megatron/parallel/pipeline/executor.h"
#include "megatron/parallel/planned_group.h"
#include "parity/pass_through.h"
#include "support/gradcheck.h"

// What the executor holds and computes where its steps are captured. A CUDA graph sees no message end, so
// these groups do not, either.
namespace megatron::testing {
namespace {

class SeesNothingEnd final : public PassThrough {
 public:
  using PassThrough::PassThrough;

 private:
  bool operations_are_seen_to_end() override { return false; }
  std::shared_ptr<GroupBackend> part(ProcessGroup group) override {
    return std::make_shared<SeesNothingEnd>(std::move(group));
  }
};

ProcessGroup sees_nothing_end(const ProcessGroup& group) {
  return ProcessGroup(std::make_shared<SeesNothingEnd>(group));
}

constexpr int64_t kRows = 32, kWidth = 16;

struct Outcome {
  size_t peak = 0;
  std::vector<double> numbers;  // losses and gradients, where there are any
};

// One GEMM per stage, and the sum of what comes out of the last.
Outcome run(RankContext& ctx, const PipelineShape& shape, const ProcessGroup& group, bool captured) {
  std::deque<GradAccumulator> sinks(static_cast<size_t>(shape.vpp));
  std::vector<Weight> weights;
  for (int chunk = 0; chunk < shape.vpp; ++chunk) {
    GradAccumulator& accumulator = sinks[static_cast<size_t>(chunk)];
    accumulator.main_grad = ctx.zeros({kWidth, kWidth}, DType::F64);
    const auto seed = static_cast<uint64_t>(model_stage(shape, group.rank(), chunk));
    weights.push_back({ctx.device.is_meta() ? ctx.empty({kWidth, kWidth}, DType::F64)
                                            : random_tensor(ctx, {kWidth, kWidth}, seed),
                       &accumulator});
  }
  PipelineWork work;
  work.dtype = DType::F64;
  work.captured = captured;
  work.input_shapes = [](int, int) { return std::vector{Shape{kRows, kWidth}}; };
  work.forward = [&](RankContext& rank, int chunk, int microbatch, const std::vector<Tensor>& input) {
    Tensor x = input.empty() ? rank.full({kRows, kWidth}, DType::F64, 0.1 * (microbatch + 1)) : input[0];
    return std::vector{ops::linear(rank, x, weights[static_cast<size_t>(chunk)], {})};
  };
  work.last = [](RankContext& rank, int, const std::vector<Tensor>& y) { return ops::sum(rank, y[0]); };
  Outcome outcome;
  const std::vector<Tensor> losses = run_pipeline(ctx, plan_step(shape, group.rank()), work, group);
  outcome.peak = ctx.allocator->statistics().total.peak;
  if (ctx.device.is_meta()) return outcome;
  for (const Tensor& loss : losses) outcome.numbers.push_back(ctx.item(loss));
  for (const GradAccumulator& accumulator : sinks)
    for (double value : ctx.to_vector<double>(accumulator.main_grad)) outcome.numbers.push_back(value);
  return outcome;
}

const PipelineShape kShapes[] = {
    {PipelineKind::gpipe, 2, 1, 4},       {PipelineKind::one_f_one_b, 2, 1, 8},
    {PipelineKind::one_f_one_b, 4, 1, 6}, {PipelineKind::interleaved, 2, 2, 8},
    {PipelineKind::interleaved, 4, 3, 8}, {PipelineKind::zb_h1, 4, 1, 8},
    {PipelineKind::zb_v, 2, 2, 6},        {PipelineKind::zb_v, 4, 2, 8},
};

std::string name_of(const PipelineShape& shape) {
  return fmt::format("{} pp={} vpp={} micro-batches={}", pipeline_kind_name(shape.kind), shape.pp, shape.vpp,
                     shape.microbatches);
}

TEST(CapturedPipeline, HoldsWhatThePlanPromises) {
  for (const PipelineShape& shape : kShapes) {
    SCOPED_TRACE(name_of(shape));
    const auto peaks = [&](const auto& seen, bool captured) {
      std::vector<size_t> by_rank;
      for (int rank = 0; rank < shape.pp; ++rank) {
        RankContext ctx(kMeta, 1, rank);
        const ProcessGroup group =
            planned_world({.world = shape.pp, .pp = shape.pp}, rank, std::make_shared<TrafficLog>());
        by_rank.push_back(run(ctx, shape, seen(group), captured).peak);
      }
      return by_rank;
    };
    const std::vector<size_t> plan = peaks(std::identity(), false);
    EXPECT_EQ(peaks(sees_nothing_end, true), plan);
    EXPECT_GT(peaks(sees_nothing_end, false), plan);  // at its first rank: the test would show it
  }
}

// Each rank waits for its messages before it sends the next: all come to their end, with the same numbers.
TEST(CapturedPipeline, SchedulesEnd) {
  for (const PipelineShape& shape : kShapes) {
    SCOPED_TRACE(name_of(shape));
    run_ranks(shape.pp,
              [&](int rank, const ProcessGroup& world) {
                const auto numbers = [&](const ProcessGroup& group, bool captured) {
                  RankContext ctx(kCpu, 1, rank);
                  return run(ctx, shape, group, captured).numbers;
                };
                const std::vector<double> plain = numbers(world, false);
                EXPECT_FALSE(plain.empty());
                EXPECT_EQ(plain, numbers(sees_nothing_end(world), true));
              },
              {std::chrono::seconds(30)});
  }
}

}  // namespace
}  // namespace megatron::testing
