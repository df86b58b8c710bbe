#include <gtest/gtest.h>

#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/kv_replication.h"
#include "megatron/parallel/tensor/linear_route.h"
#include "support/ranks_gradcheck.h"

namespace megatron::testing {
namespace {

uint64_t seed_of(const ProcessGroup& world, uint64_t which) {
  return 10 * which + static_cast<uint64_t>(world.rank());
}

// Every combination of what may run beside a GEMM.
std::vector<TensorOverlap> overlaps() {
  std::vector<TensorOverlap> all;
  for (int bits = 0; bits < 8; ++bits)
    all.push_back({.on = true,
                   .gather = (bits & 1) != 0,
                   .scatter = (bits & 1) != 0,
                   .scatter_data = (bits & 2) != 0,
                   .gather_under_data = (bits & 4) != 0,
                   .reduce_under_weight = (bits & 4) != 0});
  return all;
}

void check_column(int ranks, bool sequence_parallel, const TensorOverlap& overlap, bool defer) {
  ranks_gradcheck(
      ranks,
      [&](RankContext& ctx, const ProcessGroup& world) {
        RankOp op;
        op.same_inputs = !sequence_parallel;
        op.inputs = {random_tensor(ctx, {2, 3}, sequence_parallel ? seed_of(world, 1) : 1)};
        op.weights = {random_tensor(ctx, {2, 3}, seed_of(world, 2)),
                      random_tensor(ctx, {2}, seed_of(world, 3))};
        op.run = [&ctx, tp = TensorParallel{world, sequence_parallel, overlap}](
                     const std::vector<Tensor>& x, const std::vector<Weight>& w) {
          return ops::call_linear(ctx, x[0], w[0], {.bias = w[1], .route = column_route(tp)}).y;
        };
        return op;
      },
      defer);
}

TEST(ColumnParallelLinear, GradientsOfGatheredTokens) {
  for (const TensorOverlap& overlap : overlaps()) check_column(2, true, overlap, false);
  check_column(4, true, overlaps()[7], false);
  check_column(4, true, overlaps()[5], true);
}

TEST(ColumnParallelLinear, GradientsOfWholeTokens) {
  check_column(2, false, {}, false);
  check_column(4, false, {}, true);
}

void check_row(int ranks, const TensorOverlap& overlap, bool defer) {
  ranks_gradcheck(
      ranks,
      [&](RankContext& ctx, const ProcessGroup& world) {
        RankOp op;
        op.inputs = {random_tensor(ctx, {2 * ranks, 3}, seed_of(world, 1))};
        op.weights = {random_tensor(ctx, {2, 3}, seed_of(world, 2))};
        op.run = [&ctx, tp = TensorParallel{world, true, overlap}](const std::vector<Tensor>& x,
                                                                   const std::vector<Weight>& w) {
          return ops::call_linear(ctx, x[0], w[0], {.route = row_route(tp)}).y;
        };
        return op;
      },
      defer);
}

TEST(RowParallelLinear, Gradients) {
  for (const TensorOverlap& overlap : overlaps()) check_row(2, overlap, false);
  check_row(4, overlaps()[7], false);
  check_row(4, overlaps()[7], true);
}

// Parts are multiples of 16 rows, which fp8 needs, where each gets as many.
TEST(RowParallelLinear, PartsOfRows) {
  run_ranks(2, [](int, const ProcessGroup& world) {
    TensorParallel tp{world, true, {.on = true, .scatter_data = true, .splits = 4}};
    EXPECT_EQ(row_route(tp)->block_rows(128), 16);
    EXPECT_EQ(row_route(tp)->block_rows(160), 16);  // parts of 16, 16, 16 and 32
    EXPECT_EQ(row_route(tp)->block_rows(132), 1);   // 66 rows on each rank
    EXPECT_EQ(row_route(tp)->block_rows(96), 1);    // fewer than 16 rows in a part
    EXPECT_EQ(column_route(tp)->block_rows(80), 16);
    EXPECT_EQ(column_route(tp)->block_rows(66), 1);
    tp.overlap.splits = 0;
    EXPECT_EQ(row_route(tp)->block_rows(132), 66);
    EXPECT_EQ(column_route(tp)->block_rows(66), 66);
    // 48 rows on each rank in parts of 16 and 32.
    RankContext ctx(kCpu, 1, world.rank());
    tp.overlap.splits = 2;
    std::vector<double> rows(96);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<double>(i);
    const Weight one{ctx.full({1, 1}, DType::F64, 1), nullptr};
    const Tensor y = ops::call_linear(ctx, ctx.from_vector(rows, {96, 1}), one, {.route = row_route(tp)}).y;
    const std::vector<double> sums = ctx.to_vector<double>(y);
    ASSERT_EQ(sums.size(), 48u);
    for (size_t i = 0; i < sums.size(); ++i)
      EXPECT_EQ(sums[i], 2 * static_cast<double>(i + 48 * static_cast<size_t>(world.rank())));
  });
}

TEST(RowParallelLinear, RefusesTokensThatDoNotDivide) {
  run_ranks(2, [](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    const TensorParallel tp{world, true, {.on = true}};
    EXPECT_THROW(ops::call_linear(ctx, ctx.zeros({3, 2}, DType::F64),
                                  {ctx.zeros({2, 2}, DType::F64), nullptr}, {.route = row_route(tp)}),
                 Error);
  });
}

// Two ranks with two query heads each share one key and one value of two channels.
TEST(ShareKeys, ValuesAndGradients) {
  run_ranks(2, [](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    std::vector<double> part(6);
    for (size_t i = 0; i < 6; ++i) part[i] = static_cast<double>(6 * world.rank()) + static_cast<double>(i);
    Tensor own = share_keys(ctx, ctx.from_vector(part, {1, 6}), world, 2, 2);
    EXPECT_EQ(ctx.to_vector<double>(own), world.rank() == 0
                                              ? (std::vector<double>{0, 1, 2, 3, 8, 9, 10, 11})
                                              : (std::vector<double>{4, 5, 6, 7, 8, 9, 10, 11}));
  });
  ranks_gradcheck(2, [](RankContext& ctx, const ProcessGroup& world) {
    RankOp op;
    op.inputs = {random_tensor(ctx, {3, 6}, seed_of(world, 1))};
    op.run = [&ctx, world](const std::vector<Tensor>& x, const std::vector<Weight>&) {
      return share_keys(ctx, x[0], world, 2, 2);
    };
    return op;
  });
}

}  // namespace
}  // namespace megatron::testing
