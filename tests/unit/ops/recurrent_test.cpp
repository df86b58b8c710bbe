// Convolution, scans and gated norms: against what their definitions say token by token, and their gradients.
#include <gtest/gtest.h>

#include "megatron/ops/causal_conv.h"
#include "megatron/ops/channel_delta.h"
#include "megatron/ops/delta_rule.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/ssd.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;
using Doubles = std::vector<double>;

constexpr double kTight = 1e-8;

// Three sequences of 4, 1 and 5 tokens.
SequenceRows packed(RankContext& ctx) {
  return {.count = 3, .cu = ctx.from_vector<int32_t>({0, 4, 5, 10}, {4})};
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(x)); }

void expect_near(const Doubles& a, const Doubles& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "element " << i;
}

TEST(CausalConv, IsItsDefinitionAndItsGradientsFollow) {
  RankContext ctx(testing::test_device());
  Tensor x = random_tensor(ctx, {10, 3}, 1), w = random_tensor(ctx, {3, 1, 4}, 2),
         bias = random_tensor(ctx, {3}, 3);
  auto xs = ctx.to_vector<double>(x), ws = ctx.to_vector<double>(w), bs = ctx.to_vector<double>(bias);
  Doubles expected;
  const int begins[] = {0, 0, 0, 0, 4, 5, 5, 5, 5, 5};
  for (int t = 0; t < 10; ++t)
    for (int c = 0; c < 3; ++c) {
      double sum = bs[c];
      for (int j = 0; j < 4; ++j)
        if (t - 3 + j >= begins[t]) sum += ws[c * 4 + j] * xs[(t - 3 + j) * 3 + c];
      expected.push_back(sum * sigmoid(sum));
    }
  expect_near(ctx.to_vector<double>(ops::causal_conv(ctx, x, {w}, {bias}, packed(ctx))), expected, 1e-14);

  for (bool biased : {false, true})
    gradcheck(
        ctx,
        [&](RankContext& c, const auto& in, const auto& weights) {
          // Columns of a wider matrix, as a projection leaves them.
          const int64_t sizes[] = {2, 3};
          Tensor part = ops::split(c, in[0], sizes, 1)[1];
          return std::vector{
              ops::causal_conv(c, part, weights[0], biased ? weights[1] : Weight{}, packed(c))};
        },
        {random_tensor(ctx, {10, 5}, 4)}, biased ? std::vector{w, bias} : std::vector{w}, kTight);
}

TEST(GatedNorm, BothOrdersGroupsAndSharedWeights) {
  RankContext ctx(testing::test_device());
  for (bool gate_first : {true, false})
    for (int64_t groups : {1, 3})
      for (int64_t weights : {6, 2}) {
        if (groups == 1 && weights == 2) continue;
        gradcheck(
            ctx,
            [&](RankContext& c, const auto& in, const auto& w) {
              return std::vector{ops::gated_norm(
                  c, in[0], in[1], w[0], {.groups = groups, .gate_first = gate_first, .sum_over_ranks = {}})};
            },
            {random_tensor(ctx, {4, 6}, 1), random_tensor(ctx, {4, 6}, 2)},
            {random_tensor(ctx, {weights}, 3)}, kTight);
      }
}

ops::SsdOptions small_ssd(int64_t chunk) {
  return {.heads = 4, .channels = 3, .groups = 2, .states = 2, .chunk = chunk};
}

Tensor run_ssd(RankContext& ctx, const std::vector<Tensor>& in, const std::vector<Weight>& w,
               const ops::SsdOptions& options, const SequenceRows& rows) {
  return ops::ssd(ctx, in[0], in[1], {w[0], w[1], w[2]}, options, rows);
}

// R ← exp(−Δ e^a) R + Δ x Bᵀ; y = R C + D x, one token after the other.
Doubles ssd_by_definition(RankContext& ctx, const std::vector<Tensor>& in, const std::vector<Tensor>& w,
                          double step_min, double step_max) {
  auto xbc = ctx.to_vector<double>(in[0]), dt = ctx.to_vector<double>(in[1]);
  auto a_log = ctx.to_vector<double>(w[0]), d = ctx.to_vector<double>(w[1]),
       bias = ctx.to_vector<double>(w[2]);
  Doubles y;
  double state[4][3][2] = {};
  for (int t = 0; t < 10; ++t) {
    if (t == 4 || t == 5)
      for (auto& head : state)
        for (auto& row : head) row[0] = row[1] = 0;
    const double *x = &xbc[t * 20], *b = x + 12, *c = b + 4;
    for (int h = 0; h < 4; ++h) {
      double step = std::min(std::max(softplus(dt[t * 4 + h] + bias[h]), step_min), step_max);
      for (int p = 0; p < 3; ++p) {
        double sum = d[h] * x[h * 3 + p];
        for (int n = 0; n < 2; ++n) {
          double& r = state[h][p][n];
          r = std::exp(-step * std::exp(a_log[h])) * r + step * x[h * 3 + p] * b[h / 2 * 2 + n];
          sum += r * c[h / 2 * 2 + n];
        }
        y.push_back(sum);
      }
    }
  }
  return y;
}

TEST(Ssd, ChunksGiveWhatTheRecurrenceSaysAndItsGradients) {
  RankContext ctx(testing::test_device());
  std::vector<Tensor> inputs = {random_tensor(ctx, {10, 20}, 1), random_tensor(ctx, {10, 4}, 2)};
  std::vector<Tensor> weights = {random_tensor(ctx, {4}, 3), random_tensor(ctx, {4}, 4),
                                 random_tensor(ctx, {4}, 5)};
  for (int64_t chunk : {1, 3, 4, 128})
    for (bool clamped : {false, true}) {
      SCOPED_TRACE(fmt::format("chunks of {}, clamped: {}", chunk, clamped));
      ops::SsdOptions options = small_ssd(chunk);
      if (clamped) options.step_min = 0.5, options.step_max = 0.9;
      std::vector<Weight> frozen = {{weights[0]}, {weights[1]}, {weights[2]}};
      expect_near(ctx.to_vector<double>(run_ssd(ctx, inputs, frozen, options, packed(ctx))),
                  ssd_by_definition(ctx, inputs, weights, options.step_min, options.step_max), 1e-13);
      gradcheck(
          ctx,
          [&](RankContext& c, const auto& in, const auto& w) {
            return std::vector{run_ssd(c, in, w, options, packed(c))};
          },
          inputs, weights, kTight);
    }
}

ops::DeltaRuleOptions small_rule(int64_t chunk) {
  return {.key_heads = 2, .value_heads = 4, .key_channels = 2, .value_channels = 3, .chunk = chunk};
}

// R ← e^g R; δ = β (v − Rᵀk); R ← R + k δᵀ; o = Rᵀ q, one token after the other.
Doubles delta_by_definition(RankContext& ctx, const std::vector<Tensor>& in, const std::vector<Tensor>& w) {
  auto qkv = ctx.to_vector<double>(in[0]), b = ctx.to_vector<double>(in[1]), a = ctx.to_vector<double>(in[2]);
  auto a_log = ctx.to_vector<double>(w[0]), bias = ctx.to_vector<double>(w[1]);
  Doubles out;
  double state[4][2][3] = {};
  for (int t = 0; t < 10; ++t)
    for (int h = 0; h < 4; ++h) {
      auto& r = state[h];
      if (t == 4 || t == 5)
        for (auto& row : r) row[0] = row[1] = row[2] = 0;
      const double *q = &qkv[t * 20 + h / 2 * 2], *k = q + 4, *v = &qkv[t * 20 + 8 + h * 3];
      const double q_length = std::sqrt(q[0] * q[0] + q[1] * q[1] + 1e-6) * std::sqrt(2.0),
                   k_length = std::sqrt(k[0] * k[0] + k[1] * k[1] + 1e-6);
      const double decay = std::exp(-std::exp(a_log[h]) * softplus(a[t * 4 + h] + bias[h])),
                   beta = sigmoid(b[t * 4 + h]);
      for (int c = 0; c < 3; ++c) {
        for (int i = 0; i < 2; ++i) r[i][c] *= decay;
        const double delta = beta * (v[c] - (r[0][c] * k[0] + r[1][c] * k[1]) / k_length);
        for (int i = 0; i < 2; ++i) r[i][c] += k[i] / k_length * delta;
        out.push_back((r[0][c] * q[0] + r[1][c] * q[1]) / q_length);
      }
    }
  return out;
}

TEST(DeltaRule, IsItsRecurrenceAndItsGradientsFollow) {
  RankContext ctx(testing::test_device());
  std::vector<Tensor> inputs = {random_tensor(ctx, {10, 20}, 1), random_tensor(ctx, {10, 4}, 2),
                                random_tensor(ctx, {10, 4}, 3)};
  std::vector<Tensor> weights = {random_tensor(ctx, {4}, 4), random_tensor(ctx, {4}, 5)};
  for (int64_t chunk : {1, 3, 64}) {
    SCOPED_TRACE(fmt::format("chunks of {}", chunk));
    auto run = [&](RankContext& c, const auto& in, const auto& w) {
      return ops::delta_rule(c, in[0], in[1], in[2], w[0], w[1], small_rule(chunk), packed(c));
    };
    expect_near(ctx.to_vector<double>(run(ctx, inputs, std::vector<Weight>{{weights[0]}, {weights[1]}})),
                delta_by_definition(ctx, inputs, weights), 1e-13);
    gradcheck(
        ctx, [&](RankContext& c, const auto& in, const auto& w) { return std::vector{run(c, in, w)}; },
        inputs, weights, kTight);
  }
}

// R ← e^g ∘ R; δ = v − Rᵀe; R ← R + k δᵀ; o = Rᵀ q, one token after the other.
Doubles channels_by_definition(RankContext& ctx, const std::vector<Tensor>& in) {
  std::vector<Doubles> x;
  for (const Tensor& input : in) x.push_back(ctx.to_vector<double>(input));
  Doubles out;
  double state[4][2][3] = {};
  for (size_t t = 0; t < 10; ++t)
    for (size_t h = 0; h < 4; ++h) {
      auto& r = state[h];
      if (t == 4 || t == 5)
        for (auto& row : r) row[0] = row[1] = row[2] = 0;
      const size_t key = t * 4 + h / 2 * 2, value = t * 12 + h * 3;
      for (size_t c = 0; c < 3; ++c) {
        for (size_t i = 0; i < 2; ++i) r[i][c] *= std::exp(x[3][key + i]);
        const double delta = x[4][value + c] - r[0][c] * x[2][key] - r[1][c] * x[2][key + 1];
        for (size_t i = 0; i < 2; ++i) r[i][c] += x[1][key + i] * delta;
        out.push_back(r[0][c] * x[0][key] + r[1][c] * x[0][key + 1]);
      }
    }
  return out;
}

TEST(ChannelDelta, IsItsRecurrenceAndItsGradientsFollow) {
  RankContext ctx(testing::test_device());
  std::vector<Tensor> inputs;
  for (int i = 0; i < 5; ++i) inputs.push_back(random_tensor(ctx, {10, i < 4 ? 4 : 12}, i + 1));
  for (int64_t chunk : {1, 3, 16}) {
    SCOPED_TRACE(fmt::format("chunks of {}", chunk));
    const auto run = [&](RankContext& c, const auto& in) {
      return ops::channel_delta(
          c, {in[0], in[1], in[2], in[3], in[4]},
          {.key_heads = 2, .value_heads = 4, .key_channels = 2, .value_channels = 3, .chunk = chunk},
          packed(c));
    };
    expect_near(ctx.to_vector<double>(run(ctx, inputs)), channels_by_definition(ctx, inputs), 1e-13);
    gradcheck(
        ctx, [&](RankContext& c, const auto& in, const auto&) { return std::vector{run(c, in)}; }, inputs, {},
        kTight);
  }
}

TEST(Recurrent, SameBitsForEveryNumberOfThreads) {
  auto everything = [](int threads) {
    RankContext ctx(kCpu, threads);
    Tape tape(ctx);
    Tensor x = tape.watch(random_tensor(ctx, {40, 160}, 1, DType::F32));
    testing::TestWeight conv(ctx, random_tensor(ctx, {160, 1, 4}, 2, DType::F32));
    testing::TestWeight gamma(ctx, random_tensor(ctx, {96}, 3, DType::F32));
    testing::TestWeight a(ctx, random_tensor(ctx, {6}, 4, DType::F32)),
        d(ctx, random_tensor(ctx, {6}, 5, DType::F32)), bias(ctx, random_tensor(ctx, {6}, 6, DType::F32));
    Tensor dt = tape.watch(random_tensor(ctx, {40, 6}, 7, DType::F32)),
           gate = tape.watch(random_tensor(ctx, {40, 96}, 8, DType::F32)), y;
    {
      TapeScope scope(ctx, &tape);
      y = ops::ssd(ctx, ops::causal_conv(ctx, x, conv.get(), {}, {.count = 2, .cu = {}}), dt,
                   {a.get(), d.get(), bias.get()},
                   {.heads = 6, .channels = 16, .groups = 2, .states = 16, .chunk = 8},
                   {.count = 2, .cu = {}});
      y = ops::gated_norm(ctx, y, gate, gamma.get(), {.groups = 2, .sum_over_ranks = {}});
    }
    tape.backward(ctx, y, random_tensor(ctx, {40, 96}, 9, DType::F32));
    std::vector<float> all;
    for (const Tensor& t : {y.detach(), tape.grad(x), tape.grad(dt), tape.grad(gate),
                            conv.accumulator.main_grad, gamma.accumulator.main_grad, a.accumulator.main_grad,
                            d.accumulator.main_grad, bias.accumulator.main_grad}) {
      auto values = ctx.to_vector<float>(t);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  EXPECT_EQ(everything(1), everything(3));
}

TEST(Recurrent, RefusesWhatDoesNotFit) {
  RankContext ctx(testing::test_device());
  Tensor x = random_tensor(ctx, {10, 3}, 1), w = random_tensor(ctx, {3, 1, 4}, 2);
  EXPECT_THROW(ops::causal_conv(ctx, x, {w}, {}, {.count = 3, .cu = {}}), Error);
  EXPECT_THROW(ops::causal_conv(ctx, x, {random_tensor(ctx, {3, 1, 17}, 2)}, {}, {}), Error);
  EXPECT_THROW(ops::causal_conv(ctx, x, {random_tensor(ctx, {2, 1, 4}, 2)}, {}, {}), Error);
  EXPECT_THROW(ops::gated_norm(ctx, x, w, {random_tensor(ctx, {3}, 1)}), Error);
  std::vector<Weight> weights(3, {random_tensor(ctx, {4}, 3)});
  EXPECT_THROW(run_ssd(ctx, {random_tensor(ctx, {10, 20}, 1), random_tensor(ctx, {10, 3}, 2)}, weights,
                       small_ssd(4), packed(ctx)),
               Error);
  EXPECT_THROW(
      ops::delta_rule(ctx, random_tensor(ctx, {10, 20}, 1), random_tensor(ctx, {10, 4}, 1),
                      random_tensor(ctx, {9, 4}, 1), weights[0], weights[1], small_rule(4), packed(ctx)),
      Error);
}

}  // namespace
}  // namespace megatron
