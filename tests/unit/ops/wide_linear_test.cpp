#include "megatron/ops/wide_linear.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"
#include "support/to_doubles.h"

namespace megatron {
namespace {

using testing::random_tensor;
using testing::TestWeight;
using testing::to_doubles;

// Σ over k of a(i, k) · b(k, j), beside what was computed, by at most `error` of the terms' magnitudes.
template <class A, class B>
void expect_gemm(const std::vector<double>& got, int64_t m, int64_t n, int64_t k, A a, B b, double error) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (int64_t t = 0; t < k; ++t) sum += a(i, t) * b(t, j), size += std::abs(a(i, t) * b(t, j));
      ASSERT_NEAR(got[static_cast<size_t>(i * n + j)], sum, error * size) << i << ", " << j;
    }
}

// Neither operands nor gradients lose bits: fp32 gradients of 24 bits meet bf16 weights and inputs.
TEST(WideLinear, IsAFp32GemmOfNarrowOperands) {
  RankContext ctx{testing::test_device()};
  constexpr int64_t tokens = 96, in = 64, out = 24;
  const Tensor x = random_tensor(ctx, {tokens, in}, 1, DType::BF16, 2),
               dy = random_tensor(ctx, {tokens, out}, 2, DType::F32, 1e-3);
  TestWeight weight(ctx, random_tensor(ctx, {out, in}, 3, DType::BF16, 0.3));
  weight.accumulator.main_grad = ctx.zeros({out, in}, DType::F32);
  Tape tape(ctx);
  const Tensor input = tape.watch(x);
  Tensor y;
  {
    TapeScope scope(ctx, &tape);
    y = ops::wide_linear(ctx, input, weight.get());
  }
  tape.backward(ctx, y, dy);
  const auto xs = to_doubles(ctx, x), ws = to_doubles(ctx, weight.get().value), dys = to_doubles(ctx, dy);
  const auto at = [](const std::vector<double>& v, int64_t i) { return v[static_cast<size_t>(i)]; };
  expect_gemm(
      to_doubles(ctx, y), tokens, out, in, [&](int64_t i, int64_t t) { return at(xs, i * in + t); },
      [&](int64_t t, int64_t j) { return at(ws, j * in + t); }, 1e-6);
  expect_gemm(
      to_doubles(ctx, weight.accumulator.main_grad), out, in, tokens,
      [&](int64_t i, int64_t t) { return at(dys, t * out + i); },
      [&](int64_t t, int64_t j) { return at(xs, t * in + j); }, 1e-6);
  EXPECT_EQ(tape.grad(input).dtype(), DType::BF16);
  expect_gemm(
      to_doubles(ctx, tape.grad(input)), tokens, in, out,
      [&](int64_t i, int64_t t) { return at(dys, i * out + t); },
      [&](int64_t t, int64_t j) { return at(ws, t * in + j); }, 0x1p-8);
}

}  // namespace
}  // namespace megatron
