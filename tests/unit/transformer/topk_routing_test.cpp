#include "megatron/transformer/moe/topk_routing.h"

#include <gtest/gtest.h>

#include "megatron/comm/run_ranks.h"
#include "megatron/transformer/moe/aux_loss.h"
#include "megatron/transformer/moe/capacity.h"
#include "megatron/transformer/moe/sinkhorn.h"
#include "support/golden.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::is_close;
using testing::kElementwise;
using testing::kExact;
using testing::random_tensor;
using Tensors = std::vector<Tensor>;
using Weights = std::vector<Weight>;

MicrobatchShare alone(int64_t tokens, int64_t sequences = 1) {
  return {.begin = 0,
          .rows = tokens,
          .max_rows = tokens,
          .tokens = tokens,
          .sequences = sequences,
          .group = ProcessGroup::self()};
}

TEST(TopkRouting, GroupLimitedSigmoidMatchesTheFixture) {
  RankContext ctx;
  SafetensorsFile golden = testing::golden_tensors("numerics", "moe_router");
  Tensor logits = testing::to_device(ctx, golden.tensor("logits")),
         bias = testing::to_device(ctx, golden.tensor("corr"));
  ChoiceOptions options{.score = RouterScore::sigmoid, .k = 2, .scaling = 2.5};
  Routing plain = choose_experts(ctx, logits, options, bias);
  EXPECT_TRUE(is_close(ctx, "experts", plain.experts, golden.tensor("sigmoid_corr.idx"), kExact));
  EXPECT_TRUE(is_close(ctx, "probs", plain.probs, golden.tensor("sigmoid_corr.w"), kElementwise));
  options.groups = 4, options.open_groups = 2, options.group_score_k = 2;
  Routing limited = choose_experts(ctx, logits, options, bias);
  EXPECT_TRUE(is_close(ctx, "experts", limited.experts, golden.tensor("group_limited.idx"), kExact));
  EXPECT_TRUE(is_close(ctx, "probs", limited.probs, golden.tensor("group_limited.w"), kElementwise));
}

TEST(TopkRouting, SoftmaxBeforeAndAfterMatchTheFixture) {
  RankContext ctx;
  SafetensorsFile golden = testing::golden_tensors("numerics", "moe_router");
  Tensor logits = testing::to_device(ctx, golden.tensor("logits"));
  for (int64_t k : {1, 2, 4}) {
    Routing after = choose_experts(ctx, logits, {.k = k}),
            before = choose_experts(ctx, logits, {.pre_softmax = true, .k = k});
    EXPECT_TRUE(is_close(ctx, "after", after.probs,
                         golden.tensor(fmt::format("softmax_top{}.post_softmax", k)), kElementwise));
    EXPECT_TRUE(is_close(ctx, "before", before.probs, golden.tensor(fmt::format("softmax_top{}.prob", k)),
                         kElementwise));
    EXPECT_TRUE(
        is_close(ctx, "experts", after.experts, golden.tensor(fmt::format("softmax_top{}.idx", k)), kExact));
    EXPECT_TRUE(
        is_close(ctx, "experts", before.experts, golden.tensor(fmt::format("softmax_top{}.idx", k)), kExact));
  }
}

// The gradient of a loss with respect to the logits.
Tensor gradient_of(RankContext& ctx, const Tensor& logits, const std::function<Tensor(const Tensor&)>& loss,
                   double* value) {
  Tape tape(ctx);
  Tensor watched = tape.watch(logits), y;
  {
    TapeScope scope(ctx, &tape);
    y = loss(watched);
  }
  *value = ctx.item(y);
  tape.backward(ctx, y);
  return tape.grad(watched);
}

TEST(Balancing, AuxAndZLossMatchTheFixture) {
  RankContext ctx;
  SafetensorsFile golden = testing::golden_tensors("numerics", "moe_router");
  Tensor logits = testing::to_device(ctx, golden.tensor("logits"));
  AuxLossUnits all{ctx.full({48}, DType::I64, 0), 1, 48};
  double value = 0;
  Tensor gradient = gradient_of(
      ctx, logits,
      [&](const Tensor& x) {
        Tensor map = routing_map(ctx, choose_experts(ctx, x, {.k = 2}).experts, 8, DType::F32);
        return load_balancing_loss(ctx, aux_loss_scores(ctx, x, RouterScore::softmax),
                                   expert_load(ctx, map, all, ProcessGroup::self()), all, 1, 2);
      },
      &value);
  EXPECT_NEAR(value, testing::to_doubles(golden.tensor("aux.loss"))[0], 1e-5);
  EXPECT_TRUE(is_close(ctx, "aux.dlogits", gradient, golden.tensor("aux.dlogits"), kElementwise));
  gradient = gradient_of(
      ctx, logits, [&](const Tensor& x) { return z_loss(ctx, x, 1, 48); }, &value);
  EXPECT_NEAR(value, testing::to_doubles(golden.tensor("z.loss"))[0], 1e-4);
  EXPECT_TRUE(is_close(ctx, "z.dlogits", gradient, golden.tensor("z.dlogits"), kElementwise));
}

TEST(TopkRouting, GradientsMatchDifferences) {
  RankContext ctx;
  ChoiceOptions groups{
      .score = RouterScore::sigmoid, .k = 2, .groups = 2, .open_groups = 1, .group_score_k = 2};
  for (const ChoiceOptions& options :
       {ChoiceOptions{.k = 2}, ChoiceOptions{.pre_softmax = true, .k = 3},
        ChoiceOptions{.score = RouterScore::sqrtsoftplus, .k = 2, .scaling = 1.5},
        ChoiceOptions{.score = RouterScore::sigmoid, .k = 1}, groups})
    gradcheck(ctx,
              [&](RankContext& ctx, const Tensors& x, const Weights&) {
                return Tensors{choose_experts(ctx, x[0], options).probs};
              },
              {random_tensor(ctx, {5, 6}, 3, DType::F64, 2)});
}

TEST(Balancing, GradientsMatchDifferences) {
  RankContext ctx;
  AuxLossUnits units{ctx.from_vector<int64_t>({0, 0, 0, 1, 1}, {5}), 2, 3};
  Tensor load = random_tensor(ctx, {2, 6}, 9);
  for (RouterScore score : {RouterScore::softmax, RouterScore::sigmoid, RouterScore::sqrtsoftplus})
    gradcheck(ctx,
              [&](RankContext& ctx, const Tensors& x, const Weights&) {
                return Tensors{
                    load_balancing_loss(ctx, aux_loss_scores(ctx, x[0], score), load, units, 0.3, 2),
                    z_loss(ctx, x[0], 0.7, 5)};
              },
              {random_tensor(ctx, {5, 6}, 3, DType::F64, 2)});
}

TEST(Balancing, AnAttachedLossGetsItsWeight) {
  RankContext ctx;
  Tensor x = random_tensor(ctx, {3, 2}, 1);
  Tape tape(ctx);
  Tensor watched = tape.watch(x), y;
  {
    TapeScope scope(ctx, &tape);
    y = attach_aux_loss(ctx, watched, z_loss(ctx, watched, 1, 1), ctx.full({1}, DType::F64, 0.25));
  }
  EXPECT_EQ(ctx.to_vector<double>(y), ctx.to_vector<double>(x));
  tape.backward_data(ctx, std::vector{y}, std::vector{ctx.full({3, 2}, DType::F64, 2)});
  double value = 0;
  auto alone = ctx.to_vector<double>(gradient_of(
           ctx, x, [&](const Tensor&t) { return z_loss(ctx, t, 1, 1); }, &value)),
       both = ctx.to_vector<double>(tape.grad(watched));
  for (size_t i = 0; i < both.size(); ++i) EXPECT_NEAR(both[i], 2 + 0.25 * alone[i], 1e-12);
}

// Among equals the lower expert wins, and the earlier token keeps its place.
TEST(TopkRouting, TiesAreBrokenByOrder) {
  RankContext ctx;
  Routing routing = choose_experts(ctx, ctx.zeros({4, 6}, DType::F64), {.k = 2});
  EXPECT_EQ(ctx.to_vector<int64_t>(routing.experts), (std::vector<int64_t>{0, 1, 0, 1, 0, 1, 0, 1}));
  Tensor positions = ctx.from_vector<int64_t>({0, 1, 2, 3}, {4});
  // 4 · 2 / 6 · 1.5 = 2 tokens each.
  for (TokenDropPolicy policy : {TokenDropPolicy::probs, TokenDropPolicy::position})
    EXPECT_EQ(ctx.to_vector<int64_t>(within_capacity(ctx, routing, 6, {1.5, policy}, alone(4), positions)),
              (std::vector<int64_t>{0, 1, 0, 1, -1, -1, -1, -1}));
}

// Sequences that are cut in zigzag over ranks: the first of equal tokens is that of the micro-batch, not of
// the ranks in turn.
TEST(Capacity, TiesDoNotDependOnWhoHoldsTheTokens) {
  const std::vector<int64_t> places[] = {{0, 3}, {1, 2}}, kept[] = {{1, -1}, {1, -1}};
  run_ranks(2, [&](int rank, ProcessGroup& world) {
    RankContext ctx;
    Routing routing{ctx.full({2, 1}, DType::I64, 1), ctx.full({2, 1}, DType::F64, 0.5)};
    MicrobatchShare share = alone(2);
    share.group = world;
    share.parts = 2;
    Tensor place = ctx.from_vector<int64_t>(places[rank], {2});
    // Four tokens to expert 1, which takes two.
    EXPECT_EQ(ctx.to_vector<int64_t>(
                  within_capacity(ctx, routing, 2, {1, TokenDropPolicy::probs}, share, place, place)),
              kept[rank]);
  });
}

TEST(Capacity, KeepsTheMostProbableOrTheFirstPositions) {
  RankContext ctx;
  EXPECT_EQ(expert_capacity(64, 2, 4, 1.0), 32);
  EXPECT_EQ(expert_capacity(10, 1, 4, 1.0), 3);
  // Two sequences of three tokens, all to expert 1, which takes three.
  Routing routing{ctx.full({6, 1}, DType::I64, 1),
                  ctx.from_vector<double>({0.1, 0.9, 0.3, 0.5, 0.2, 0.4}, {6, 1})};
  Tensor positions = ctx.from_vector<int64_t>({0, 1, 2, 0, 1, 2}, {6});
  EXPECT_EQ(ctx.to_vector<int64_t>(
                within_capacity(ctx, routing, 2, {1, TokenDropPolicy::probs}, alone(6, 2), positions)),
            (std::vector<int64_t>{-1, 1, -1, 1, -1, 1}));
  EXPECT_EQ(ctx.to_vector<int64_t>(
                within_capacity(ctx, routing, 2, {1, TokenDropPolicy::position}, alone(6, 2), positions)),
            (std::vector<int64_t>{1, 1, -1, 1, -1, -1}));
  EXPECT_EQ(ctx.to_vector<int64_t>(
                within_capacity(ctx, routing, 2, {9, TokenDropPolicy::probs}, alone(6, 2), positions)),
            (std::vector<int64_t>{1, 1, 1, 1, 1, 1}));
}

// All tokens like expert 0 best, yet the plan gives every expert the same weight.
TEST(Sinkhorn, EvensOutTheExperts) {
  RankContext ctx;
  Tensor logits = random_tensor(ctx, {12, 4}, 5);
  for (int64_t row = 0; row < 12; ++row) logits.data<double>()[row * 4] += 1.5;
  auto plan = ctx.to_vector<double>(sinkhorn(ctx, logits, alone(12)));
  for (size_t e = 0; e < 4; ++e) {
    double sum = 0;
    for (size_t row = 0; row < 12; ++row) sum += plan[row * 4 + e];
    EXPECT_NEAR(sum, 0.25, 1e-3);
  }
}

}  // namespace
}  // namespace megatron
