#include "megatron/optimizer/soap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "megatron/optimizer/eigenbasis.h"
#include "support/to_doubles.h"

// SOAP against the same mathematics written down again with other methods: Jacobi's rotations for
// eigenvectors, Householder's reflections for orthogonal iteration, loops for products.
namespace megatron {
namespace {

using testing::to_doubles;

constexpr double kLr = 0.05, kDecay = 0.2, kBeta1 = 0.9, kBeta2 = 0.97, kShampoo = 0.8;
// The first gradient is diagonal in its own bases: all else is rounding, which a small epsilon would raise.
constexpr double kEpsilon = 1e-2;

using Matrix = std::vector<std::vector<double>>;

Matrix zeros(size_t rows, size_t columns) { return Matrix(rows, std::vector<double>(columns)); }

Matrix transposed(const Matrix& a) {
  Matrix result = zeros(a[0].size(), a.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) result[j][i] = a[i][j];
  return result;
}

Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix result = zeros(a.size(), b[0].size());
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b[0].size(); ++j)
      for (size_t k = 0; k < b.size(); ++k) result[i][j] += a[i][k] * b[k][j];
  return result;
}

Matrix blend(double keep, const Matrix& old, const Matrix& fresh) {
  Matrix result = old;
  for (size_t i = 0; i < old.size(); ++i)
    for (size_t j = 0; j < old[0].size(); ++j) result[i][j] = keep * old[i][j] + (1 - keep) * fresh[i][j];
  return result;
}

Matrix diagonal(const std::vector<double>& values) {
  Matrix result = zeros(values.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i][i] = values[i];
  return result;
}

struct Basis {
  Matrix vectors;  // columns
  std::vector<double> values;
};

// Columns in descending order of values; `second` has its rows (or columns) of moments moved alike.
Basis ordered(const Matrix& vectors, const std::vector<double>& values, std::vector<size_t>& order) {
  const size_t n = values.size();
  order.resize(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  Basis result{zeros(n, n), std::vector<double>(n)};
  for (size_t j = 0; j < n; ++j) {
    result.values[j] = values[order[j]];
    for (size_t i = 0; i < n; ++i) result.vectors[i][j] = vectors[i][order[j]];
  }
  return result;
}

Basis jacobi(Matrix a) {
  const size_t n = a.size();
  Matrix v = diagonal(std::vector<double>(n, 1));
  for (int sweep = 0; sweep < 30; ++sweep)
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        if (a[p][q] == 0) continue;
        const double angle = 0.5 * std::atan2(2 * a[p][q], a[q][q] - a[p][p]);
        Matrix turn = diagonal(std::vector<double>(n, 1));
        turn[p][p] = turn[q][q] = std::cos(angle);
        turn[p][q] = std::sin(angle);
        turn[q][p] = -std::sin(angle);
        a = transposed(turn) * a * turn;
        v = v * turn;
      }
  std::vector<double> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = a[i][i];
  std::vector<size_t> order;
  return ordered(v, values, order);
}

// Q of a = Q · R, by reflections.
Matrix orthonormal(Matrix a) {
  const size_t n = a.size();
  Matrix q = diagonal(std::vector<double>(n, 1));
  for (size_t k = 0; k < n; ++k) {
    std::vector<double> v(n);
    double norm = 0;
    for (size_t i = k; i < n; ++i) norm += a[i][k] * a[i][k];
    for (size_t i = k; i < n; ++i) v[i] = a[i][k];
    v[k] += std::copysign(std::sqrt(norm), v[k]);
    double square = 0;
    for (const double x : v) square += x * x;
    if (square == 0) continue;
    Matrix mirror = diagonal(std::vector<double>(n, 1));
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) mirror[i][j] -= 2 * v[i] * v[j] / square;
    a = mirror * a;
    q = q * mirror;
  }
  return q;
}

// Columns from `known` on, from the unit vectors that are farthest, first come first.
void complete(Matrix& vectors, size_t known) {
  const size_t n = vectors.size();
  for (size_t column = known; column < n; ++column) {
    std::vector<double> distance(n, 1);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < column; ++j) distance[i] -= vectors[i][j] * vectors[i][j];
    size_t from = 0;
    while (distance[from] < *std::max_element(distance.begin(), distance.end()) / 2) ++from;
    std::vector<double> v(n);
    v[from] = 1;
    for (int pass = 0; pass < 2; ++pass)
      for (size_t j = 0; j < column; ++j) {
        double dot = 0;
        for (size_t i = 0; i < n; ++i) dot += v[i] * vectors[i][j];
        for (size_t i = 0; i < n; ++i) v[i] -= dot * vectors[i][j];
      }
    double norm = 0;
    for (const double x : v) norm += x * x;
    for (size_t i = 0; i < n; ++i) vectors[i][column] = v[i] / std::sqrt(norm);
  }
}

// One side of a matrix. At first its factor has rank `rank`; it grows by as much each step.
struct Side {
  Matrix factor, vectors;
  std::vector<double> values;
  size_t rank;

  explicit Side(size_t n, size_t other)
      : factor(zeros(n, n)),
        vectors(diagonal(std::vector<double>(n, 1))),
        values(n),
        rank(std::min(n, other)) {}

  Matrix weights(double rows) const {
    std::vector<double> inverse;
    for (const double value : values) inverse.push_back(1 / (rows * std::max(value, kEpsilon)));
    return vectors * diagonal(inverse) * transposed(vectors);
  }

  std::vector<size_t> follow(int64_t step) {
    const size_t n = values.size(), known = std::min(n, rank * static_cast<size_t>(step));
    std::vector<size_t> order;
    if (step == 1) {
      const Basis found = jacobi(factor);
      vectors = found.vectors;
      values = found.values;
      for (size_t i = 0; i < n; ++i) order.push_back(i);
      for (size_t i = known; i < n; ++i) values[i] = 0;
      complete(vectors, known);
      return order;
    }
    Matrix next = orthonormal(factor * vectors);
    complete(next, known);
    std::vector<double> found;
    const Matrix turned = transposed(next) * factor * next;
    for (size_t i = 0; i < n; ++i) found.push_back(i < known ? turned[i][i] : 0);
    const Basis result = ordered(next, found, order);
    vectors = result.vectors;
    values = result.values;
    return order;
  }
};

std::vector<double> numbers(int64_t count, int64_t seed) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(std::sin(static_cast<double>(i * i * 3 + i * 7 + seed * 13 + 1)));
  return values;
}

Matrix matrix_of(const std::vector<double>& values, int64_t rows, int64_t columns) {
  Matrix result = zeros(rows, columns);
  for (int64_t i = 0; i < rows * columns; ++i) result[i / columns][i % columns] = values[i];
  return result;
}

Matrix by_hand(int64_t rows, int64_t columns, int64_t steps, bool kl) {
  Matrix weight = matrix_of(numbers(rows * columns, 0), rows, columns), first = zeros(rows, columns),
         second = first;
  Side left(rows, columns), right(columns, rows);
  for (int64_t step = 1; step <= steps; ++step) {
    const auto t = static_cast<double>(step);
    const Matrix g = matrix_of(numbers(rows * columns, step), rows, columns), turned = transposed(g);
    const double keep = 1 - (1 - kShampoo) / (1 - std::pow(kShampoo, t));
    const Matrix l = kl ? g * right.weights(static_cast<double>(columns)) * turned : g * turned,
                 r = kl ? turned * left.weights(static_cast<double>(rows)) * g : turned * g;
    left.factor = blend(keep, left.factor, l);
    right.factor = blend(keep, right.factor, r);
    const Matrix plain = left.vectors * first * transposed(right.vectors);
    const std::vector<size_t> across = left.follow(step), along = right.follow(step);
    first = blend(kBeta1, transposed(left.vectors) * plain * right.vectors,
                  transposed(left.vectors) * g * right.vectors);
    const Matrix projected = transposed(left.vectors) * g * right.vectors;
    Matrix update = first, moved = second;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        moved[i][j] = kBeta2 * second[across[i]][along[j]] + (1 - kBeta2) * projected[i][j] * projected[i][j];
        update[i][j] = first[i][j] / (1 - std::pow(kBeta1, t)) /
                       (std::sqrt(moved[i][j] / (1 - std::pow(kBeta2, t))) + kEpsilon);
      }
    second = moved;
    update = left.vectors * update * transposed(right.vectors);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        weight[i][j] = weight[i][j] * (1 - kLr * kDecay) - kLr * update[i][j];
  }
  return weight;
}

SoapOptions options(bool kl) {
  return {.beta1 = kBeta1,
          .beta2 = kBeta2,
          .epsilon = kEpsilon,
          .weight_decay = kDecay,
          .shampoo_beta = kShampoo,
          .kl_shampoo = kl};
}

TEST(Soap, IsItsMathematics) {
  RankContext ctx;
  for (const bool kl : {false, true})
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{5, 5}, {7, 3}, {3, 7}, {1, 4}}) {
      Parameter weight("decoder.layers.0.mlp.linear_fc1.weight", ShardSpec::whole({rows, columns}),
                       Initializer::constant(0));
      weight.value = ctx.from_vector(numbers(rows * columns, 0), {rows, columns});
      Tensor gradient = ctx.empty(weight.value.shape(), DType::F64);
      Soap soap(ctx, {{&weight, 0, weight.value, gradient}}, options(kl));
      for (int64_t step = 1; step <= 5; ++step) {
        ctx.kernels->copy(ctx.kernel_context(),
                          {ctx.from_vector(numbers(rows * columns, step), {rows, columns}), gradient});
        soap.step(ctx, kLr);
        const Matrix want = by_hand(rows, columns, step, kl);
        const std::vector<double> got = ctx.to_vector<double>(weight.value);
        for (int64_t i = 0; i < rows * columns; ++i)
          ASSERT_NEAR(got[i], want[i / columns][i % columns], 1e-9)
              << (kl ? "KL " : "") << rows << " x " << columns << ", step " << step << ", " << i;
      }
    }
}

// Each expert is a matrix of its own; a closed gate changes nothing, whatever the gradient is.
TEST(Soap, ExpertsAndTheGate) {
  RankContext ctx;
  const Shape shape = {2, 4, 3};
  Parameter weight("decoder.layers.0.mlp.experts.linear_fc1.weight", ShardSpec::whole(shape),
                   Initializer::constant(0));
  weight.expert = true;
  weight.value = ctx.from_vector(numbers(24, 0), shape);
  Tensor gradient = ctx.empty(shape, DType::F64);
  Soap soap(ctx, {{&weight, 0, weight.value, gradient}}, options(true));
  const auto set = [&](std::vector<double> values) {
    ctx.kernels->copy(ctx.kernel_context(), {ctx.from_vector(values, shape), gradient});
  };
  set(numbers(24, 1));
  soap.step(ctx, kLr);
  const auto everything = [&] {
    std::vector<std::vector<double>> all = {ctx.to_vector<double>(weight.value)};
    for (const OptimizerTensor& entry : soap.state()) {
      all.push_back(to_doubles(ctx, entry.tensor));
      EXPECT_EQ(entry.shard->local_shape, entry.tensor.shape()) << entry.kind;
    }
    return all;
  };
  const auto before = everything();
  ASSERT_EQ(before.size(), 9u);
  std::vector<double> broken = numbers(24, 2);
  broken[3] = std::nan("");
  set(broken);
  Tensor gate = ctx.zeros({1}, DType::Bool);
  soap.step(ctx, kLr, {}, gate);
  soap.set_steps(1);
  EXPECT_EQ(everything(), before);

  set(numbers(24, 2));
  soap.step(ctx, kLr);
  for (int64_t expert = 0; expert < 2; ++expert) {
    Parameter one("decoder.layers.0.mlp.linear_fc1.weight", ShardSpec::whole({4, 3}),
                  Initializer::constant(0));
    const auto of = [&](int64_t seed) {
      const std::vector<double> all = numbers(24, seed);
      return std::vector<double>(all.begin() + expert * 12, all.begin() + (expert + 1) * 12);
    };
    one.value = ctx.from_vector(of(0), {4, 3});
    Tensor own = ctx.empty({4, 3}, DType::F64);
    Soap alone(ctx, {{&one, 0, one.value, own}}, options(true));
    for (int64_t step = 1; step <= 2; ++step) {
      ctx.kernels->copy(ctx.kernel_context(), {ctx.from_vector(of(step), {4, 3}), own});
      alone.step(ctx, kLr);
    }
    const std::vector<double> want = ctx.to_vector<double>(one.value),
                              all = ctx.to_vector<double>(weight.value);
    for (int64_t i = 0; i < 12; ++i) EXPECT_NEAR(all[expert * 12 + i], want[i], 1e-12);
  }
}

TEST(Eigenbasis, OfLargerMatrices) {
  for (const int64_t n : {1, 2, 40, 90}) {
    // A rank of n - n / 4.
    const int64_t rank = n - n / 4;
    const Matrix half = matrix_of(numbers(n * rank, n), n, rank), whole = half * transposed(half);
    std::vector<double> flat;
    for (const auto& row : whole) flat.insert(flat.end(), row.begin(), row.end());
    Eigenbasis basis = symmetric_eigenbasis(flat, n, 2.2e-16);
    const auto check = [&](const char* which, double apart) {
      Matrix v = transposed(matrix_of(basis.vectors, n, n));
      const Matrix unit = transposed(v) * v, turned = transposed(v) * whole * v;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
          EXPECT_NEAR(unit[i][j], i == j, 1e-12) << which << n;
          EXPECT_NEAR(turned[i][j], i == j ? basis.values[i] : 0, apart) << which << n;
        }
      EXPECT_TRUE(std::is_sorted(basis.values.rbegin(), basis.values.rend()));
    };
    check("whole ", 1e-10 * static_cast<double>(n));
    basis = refined_eigenbasis(flat, basis.vectors, n, 2.2e-16);
    check("refined ", 1e-10 * static_cast<double>(n));
  }
}

}  // namespace
}  // namespace megatron
