#include "megatron/parallel/expert/expert_dispatcher.h"

#include <gtest/gtest.h>

#include "megatron/comm/run_ranks.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/parallel_context.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

// Expert e multiplies its tokens by e + 1; with split experts each part by a half of that.
Tensor run_experts(RankContext& ctx, const Dispatched& sent, const ExpertParallel& parallel, int64_t local) {
  auto experts = ctx.to_vector<int64_t>(sent.expert_of_row);
  std::vector<double> factors;
  for (int64_t e : experts)
    factors.push_back(e < 0 ? 0
                            : static_cast<double>(parallel.rank() * local + e + 1) /
                                  static_cast<double>(parallel.tensor.size()));
  Tensor column = ctx.from_vector(factors, {static_cast<int64_t>(factors.size()), 1});
  return ops::mul(ctx, sent.tokens, column);
}

struct Case {
  const char* name;
  int world, ep, etp;
};

// Ranks with 0, 1, 2 … tokens; choices that leave experts without tokens, and dropped ones.
TEST(ExpertDispatcher, EveryTokenComesBackFromItsExperts) {
  const int64_t experts = 4, hidden = 3, k = 2;
  for (const Case& c : {Case{"alone", 1, 1, 1}, Case{"ep2", 2, 2, 1}, Case{"ep4", 4, 4, 1},
                        Case{"etp2", 2, 1, 2}, Case{"ep2 etp2", 4, 2, 2}})
    for (bool all_to_all : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", c.name, all_to_all ? "all-to-all" : "all-gather"));
      run_ranks(c.world, [&](int, ProcessGroup& world) {
        RankContext ctx;
        ParallelContext groups =
            ParallelContext::from_sizes(world, {.world = c.world, .tp = 1, .ep = c.ep, .etp = c.etp});
        ExpertParallel parallel = ExpertParallel::of(groups);
        ExpertDispatcher dispatcher(experts, parallel, {.all_to_all = all_to_all, .expert_of_row = true});
        int64_t tokens = world.rank() + (c.world == 1 ? 3 : 0);
        std::vector<double> values, probs;
        std::vector<int64_t> chosen;
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t h = 0; h < hidden; ++h) values.push_back(static_cast<double>(t * hidden + h + 1));
          chosen.insert(chosen.end(), {t % 3, t == 1 ? -1 : 0});  // nobody wants expert 3
          probs.insert(probs.end(), {0.25, 0.5});
        }
        Tape tape(ctx);
        Tensor x = tape.watch(ctx.from_vector(values, {tokens, hidden})),
               p = tape.watch(ctx.from_vector(probs, {tokens, k})), y;
        {
          TapeScope scope(ctx, &tape);
          Dispatched sent =
              dispatcher.dispatch(ctx, x, {ctx.from_vector(chosen, {tokens, k}), p}, c.world + 2);
          y = sent.combine(ctx, run_experts(ctx, sent, parallel, dispatcher.local_experts()));
        }
        tape.backward_data(ctx, std::vector{y}, std::vector{ctx.full({tokens, hidden}, DType::F64, 1)});
        auto result = ctx.to_vector<double>(y), dx = ctx.to_vector<double>(tape.grad(x)),
             dp = ctx.to_vector<double>(tape.grad(p));
        for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
          double first = static_cast<double>(t % 3 + 1), second = t == 1 ? 0 : 1;
          double factor = 0.25 * first + 0.5 * second, sum = 0;
          for (size_t h = 0; h < hidden; ++h) {
            EXPECT_DOUBLE_EQ(result[t * hidden + h], factor * values[t * hidden + h]);
            EXPECT_DOUBLE_EQ(dx[t * hidden + h], factor);
            sum += values[t * hidden + h];
          }
          EXPECT_DOUBLE_EQ(dp[t * k], first * sum);
          EXPECT_DOUBLE_EQ(dp[t * k + 1], second * sum);
        }
      });
    }
}

// Rows are ordered by expert, then by the rank they come from, then as they were there.
// A weight behind the exchange has its gradient once gradients have travelled back, without a step of its
// own.
TEST(ExpertDispatcher, WaitingWeightGradientsFillTheExchange) {
  for (const bool fill : {false, true})
    run_ranks(2, [&](int, ProcessGroup& world) {
      RankContext ctx;
      const auto groups = ParallelContext::from_sizes(world, {.world = 2, .tp = 1, .ep = 2, .etp = 1});
      ExpertDispatcher dispatcher(2, ExpertParallel::of(groups), {.all_to_all = true, .fill_backward = fill});
      testing::TestWeight weight(ctx, testing::random_tensor(ctx, {3, 3}, 1));
      Tape tape(ctx);
      const Tensor x = tape.watch(testing::random_tensor(ctx, {4, 3}, 2));
      Tensor y;
      {
        TapeScope scope(ctx, &tape);
        const Dispatched sent =
            dispatcher.dispatch(ctx, x, {ctx.from_vector<int64_t>({0, 1, 1, 0}, {4, 1}), {}}, 4);
        y = ops::linear(ctx, sent.combine(ctx, sent.tokens), weight.get());
      }
      const auto size = [&] {
        double sum = 0;
        for (double value : ctx.to_vector<double>(weight.accumulator.main_grad)) sum += std::abs(value);
        return sum;
      };
      ctx.defer_weight_grads = true;
      tape.backward_data(ctx, std::vector{y}, std::vector{ctx.full(y.shape(), DType::F64, 1)});
      EXPECT_EQ(size() > 0, fill);
      tape.backward_weight(ctx);
      EXPECT_GT(size(), 0);
    });
}

TEST(ExpertDispatcher, RowsAreOrderedByExpertAndToken) {
  run_ranks(2, [&](int, ProcessGroup& world) {
    RankContext ctx;
    ExpertParallel parallel =
        ExpertParallel::of(ParallelContext::from_sizes(world, {.world = 2, .tp = 1, .ep = 2, .etp = 1}));
    for (bool all_to_all : {true, false}) {
      ExpertDispatcher dispatcher(4, parallel, {.all_to_all = all_to_all});
      double base = 10 * world.rank();
      Tensor x = ctx.from_vector<double>({base + 0, base + 1, base + 2}, {3, 1});
      Tensor chosen = ctx.from_vector<int64_t>({1, 3, 0, 1, 1, 2}, {3, 2});
      Dispatched sent = dispatcher.dispatch(ctx, x, {chosen, ctx.full({3, 2}, DType::F64, 1)}, 3);
      auto offsets = ctx.to_vector<int32_t>(sent.offsets);
      auto rows = ctx.to_vector<double>(sent.tokens);
      rows.resize(static_cast<size_t>(offsets.back()));
      EXPECT_EQ(rows, world.rank() == 0 ? (std::vector<double>{1, 11, 0, 1, 2, 10, 11, 12})
                                        : (std::vector<double>{2, 12, 0, 10}));
      EXPECT_EQ(offsets,
                world.rank() == 0 ? (std::vector<int32_t>{0, 2, 8}) : (std::vector<int32_t>{0, 2, 4}));
    }
  });
}

// Shapes that do not depend on the choices: whoever is chosen, as many rows, and the host asks for no count.
// What an exchange gives comes out of it.
TEST(ExpertDispatcher, FixedShapes) {
  run_ranks(2, [&](int, ProcessGroup& world) {
    RankContext ctx;
    ExpertParallel parallel =
        ExpertParallel::of(ParallelContext::from_sizes(world, {.world = 2, .tp = 1, .ep = 2, .etp = 1}));
    ExpertDispatcher exchanges(4, parallel, {.expert_of_row = true}),
        fixed(4, parallel, {.expert_of_row = true});
    fixed.fix_shapes();
    const Tensor x = ctx.from_vector<double>({1.0 + world.rank(), 2, 3}, {3, 1}),
                 probs = ctx.from_vector<double>({0.3, 0.7, 0.6, 0.4, 0.9, 0.1}, {3, 2});
    std::vector<int64_t> rows;
    for (const std::vector<int64_t>& choices :
         {std::vector<int64_t>{0, 1, 0, 1, 1, 0}, {0, 2, 1, 3, 2, 3}, {2, 3, 3, 2, -1, 3}}) {
      const auto through = [&](ExpertDispatcher& dispatcher) {
        Dispatched sent = dispatcher.dispatch(ctx, x, {ctx.from_vector(choices, {3, 2}), probs}, 3);
        if (&dispatcher == &fixed) rows.push_back(sent.tokens.size(0));
        return ctx.to_vector<double>(
            sent.combine(ctx, run_experts(ctx, sent, parallel, dispatcher.local_experts())));
      };
      const std::vector<double> wanted = through(exchanges), got = through(fixed);
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-14);
    }
    EXPECT_EQ(rows, std::vector<int64_t>(3, rows[0]));
    // Fixed after it has exchanged, too.
    const Tensor chosen = ctx.from_vector<int64_t>({0, 2, 1, 3, 2, 3}, {3, 2});
    const auto result = [&](ExpertDispatcher& dispatcher) {
      Dispatched sent = dispatcher.dispatch(ctx, x, {chosen, probs}, 3);
      return ctx.to_vector<double>(
          sent.combine(ctx, run_experts(ctx, sent, parallel, dispatcher.local_experts())));
    };
    const std::vector<double> wanted = result(exchanges);
    exchanges.fix_shapes();
    const std::vector<double> got = result(exchanges);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-14);
  });
}

}  // namespace
}  // namespace megatron
