#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "megatron/optimizer/muon.h"

// Second moments of Muon's directions, against the same sums done by hand in fp64.
namespace megatron {
namespace {

constexpr double kLr = 0.1, kDecay = 0.2, kMomentum = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8, kExtra = 0.3;

std::vector<double> numbers(int64_t count, int64_t seed) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(std::sin(static_cast<double>(i * i * 3 + i * 7 + seed * 13 + 1)));
  return values;
}

double norm(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

// What two steps make of a weight.
std::vector<double> by_hand(RankContext& ctx, int64_t rows, int64_t columns, SecondMoment method) {
  const int64_t count = rows * columns;
  std::vector<double> weight = numbers(count, 0), momentum(count), moment(count);
  for (int64_t step = 1; step <= 2; ++step) {
    const std::vector<double> gradient = numbers(count, step);
    for (int64_t i = 0; i < count; ++i) momentum[i] = kMomentum * momentum[i] + (1 - kMomentum) * gradient[i];
    const std::vector<double> u =
        ctx.to_vector<double>(orthogonalize(ctx, ctx.from_vector(momentum, {1, rows, columns}),
                                            newton_schulz_steps(MuonCoefficients::polar_express, 5)));
    std::vector<double> update(count);
    for (int64_t i = 0; i < count; ++i) {
      double square = u[i] * u[i];
      if (method == SecondMoment::normuon) {
        square = 0;
        for (int64_t j = 0; j < count; ++j)
          if (rows >= columns ? j / columns == i / columns : j % columns == i % columns)
            square += u[j] * u[j];
        square /= static_cast<double>(rows >= columns ? columns : rows);
      }
      moment[i] = kBeta2 * moment[i] + (1 - kBeta2) * square;
      update[i] = method == SecondMoment::normuon ? u[i] / std::sqrt(std::max(moment[i], kEpsilon))
                                                  : u[i] / (std::sqrt(moment[i]) + kEpsilon);
    }
    const double ratio = method == SecondMoment::normuon ? norm(u) / norm(update) : 1;
    const double scale = kExtra * ratio * std::sqrt(static_cast<double>(std::max(rows, columns)));
    for (int64_t i = 0; i < count; ++i) weight[i] = (1 - kLr * kDecay) * weight[i] - kLr * scale * update[i];
  }
  return weight;
}

TEST(AdaptiveMuon, MomentsOfElementsRowsAndColumns) {
  RankContext ctx;
  for (const SecondMoment method : {SecondMoment::adamuon, SecondMoment::normuon})
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{6, 4}, {4, 6}, {5, 5}}) {
      Parameter weight("decoder.layers.0.mlp.linear_fc1.weight", ShardSpec::whole({rows, columns}),
                       Initializer::constant(0));
      weight.value = ctx.from_vector(numbers(rows * columns, 0), {rows, columns});
      Tensor gradient = ctx.empty(weight.value.shape(), DType::F64);
      Muon muon(ctx, {{&weight, 0, weight.value, gradient}},
                {.momentum = kMomentum,
                 .weight_decay = kDecay,
                 .extra_scale = kExtra,
                 .steps = newton_schulz_steps(MuonCoefficients::polar_express, 5),
                 .second = MuonSecondMoment{.method = method, .beta2 = kBeta2, .epsilon = kEpsilon}});
      for (int64_t step = 1; step <= 2; ++step) {
        ctx.kernels->copy(ctx.kernel_context(),
                          {ctx.from_vector(numbers(rows * columns, step), {rows, columns}), gradient});
        muon.step(ctx, kLr);
      }
      const std::vector<double> want = by_hand(ctx, rows, columns, method),
                                got = ctx.to_vector<double>(weight.value);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 1e-11)
            << name_of(method) << " " << rows << " x " << columns << ", " << i;
      const std::vector<OptimizerTensor> state = muon.state();
      ASSERT_EQ(state.size(), 2u);
      EXPECT_EQ(state[1].kind, "moment2_buffer");
    }
}

TEST(AdaptiveMuon, SetsOfCoefficients) {
  const auto last = [](MuonCoefficients kind, int64_t count) {
    return newton_schulz_steps(kind, count).back()[0];
  };
  EXPECT_EQ(last(MuonCoefficients::quintic, 6), 4.0848);        // begins again
  EXPECT_EQ(last(MuonCoefficients::polar_express, 12), 1.875);  // goes on with its last
  EXPECT_EQ(last(MuonCoefficients::deepseekv4, 8), 3.4445);
  EXPECT_EQ(last(MuonCoefficients::deepseekv4, 10), 2.0);
  EXPECT_THROW(newton_schulz_steps(MuonCoefficients::cubic5, 4), Error);
  // All of them bring singular values near to one, the cubic one into a wider band.
  RankContext ctx;
  for (const auto& [kind, steps] : {std::pair{MuonCoefficients::cans, 5},
                                    {MuonCoefficients::aol, 8},
                                    {MuonCoefficients::deepseekv4, 10},
                                    {MuonCoefficients::cubic5, 5},
                                    {MuonCoefficients::polar_express, 8}}) {
    const std::vector<double> x = ctx.to_vector<double>(
        orthogonalize(ctx, ctx.from_vector(numbers(12, 3), {1, 3, 4}), newton_schulz_steps(kind, steps)));
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 3; ++j) {
        double product = 0;
        for (int64_t k = 0; k < 4; ++k) product += x[i * 4 + k] * x[j * 4 + k];
        EXPECT_NEAR(product, i == j, kind == MuonCoefficients::cubic5 ? 0.5 : 0.35) << name_of(kind);
      }
  }
}

}  // namespace
}  // namespace megatron
