#include "megatron/ops/likeliest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

constexpr int64_t kRows = 5, kColumns = 12, kVocabulary = 10;

std::vector<double> softmax_of(const double* logits, int64_t count) {
  std::vector<double> p(logits, logits + count);
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x);
  for (double& x : p) x /= sum;
  return p;
}

TEST(Likeliest, TokensAndTheirProbabilities) {
  RankContext ctx(testing::test_device());
  const Tensor logits = random_tensor(ctx, {kRows, kColumns}, 1, DType::F64, 4);
  const auto values = ctx.to_vector<double>(logits);
  const ops::Likeliest found = ops::likeliest_tokens(ctx, logits, 4, {.vocab_size = kVocabulary});
  const auto tokens = ctx.to_vector<int64_t>(found.tokens);
  const auto log_probs = ctx.to_vector<double>(found.log_probs);
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<double> p = softmax_of(&values[static_cast<size_t>(row * kColumns)], kVocabulary);
    std::vector<int64_t> order(kVocabulary);
    for (int64_t i = 0; i < kVocabulary; ++i) order[static_cast<size_t>(i)] = i;
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return p[a] > p[b]; });
    for (int64_t j = 0; j < 4; ++j) {
      const auto at = static_cast<size_t>(row * 4 + j);
      EXPECT_EQ(tokens[at], order[static_cast<size_t>(j)]);
      EXPECT_NEAR(log_probs[at], std::log(p[static_cast<size_t>(tokens[at])]), 1e-12);
    }
  }
  // Of padding alone there is none.
  const ops::Likeliest none =
      ops::likeliest_tokens(ctx, logits, 2, {.vocab_size = kVocabulary, .vocab_begin = kVocabulary});
  for (const int64_t token : ctx.to_vector<int64_t>(none.tokens)) EXPECT_EQ(token, -1);
}

// Σ over the recorded tokens of p (ln p − ln q), and the same of all others as one.
TEST(Likeliest, DivergenceCountsTheOthersAsOne) {
  RankContext ctx(testing::test_device());
  const Tensor teacher = random_tensor(ctx, {kRows, kColumns}, 1, DType::F64, 4),
               student = random_tensor(ctx, {kRows, kColumns}, 2, DType::F64, 4);
  const ops::KlDivergenceOptions options{.vocab_size = kVocabulary};
  const auto t = ctx.to_vector<double>(teacher), s = ctx.to_vector<double>(student);
  for (const int64_t k : {int64_t{1}, int64_t{3}, kVocabulary}) {
    const ops::Likeliest known = ops::likeliest_tokens(ctx, teacher, k, options);
    const auto tokens = ctx.to_vector<int64_t>(known.tokens);
    const auto losses = ctx.to_vector<double>(
        ops::kl_divergence(ctx, student, ops::completed_logits(ctx, student, known, options), options));
    for (int64_t row = 0; row < kRows; ++row) {
      const auto begin = static_cast<size_t>(row * kColumns);
      const std::vector<double> p = softmax_of(&t[begin], kVocabulary),
                                q = softmax_of(&s[begin], kVocabulary);
      double expected = 0, rest_p = 1, rest_q = 1;
      for (int64_t j = 0; j < k; ++j) {
        const auto token = static_cast<size_t>(tokens[static_cast<size_t>(row * k + j)]);
        expected += p[token] * std::log(p[token] / q[token]);
        rest_p -= p[token], rest_q -= q[token];
      }
      if (k < kVocabulary) expected += rest_p * std::log(rest_p / rest_q);
      EXPECT_NEAR(losses[static_cast<size_t>(row)], expected, 1e-12) << k;
    }
  }
}

TEST(Likeliest, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  const ops::KlDivergenceOptions options{.vocab_size = kVocabulary};
  const Tensor teacher = random_tensor(ctx, {kRows, kColumns}, 1, DType::F64, 4),
               student = random_tensor(ctx, {kRows, kColumns}, 2, DType::F64, 4);
  ops::Likeliest known = ops::likeliest_tokens(ctx, teacher, 3, options);
  auto tokens = ctx.to_vector<int64_t>(known.tokens);
  tokens[5] = tokens[8] = -1;  // rows of which fewer were recorded
  known.tokens = ctx.from_vector(tokens, known.tokens.shape());
  gradcheck(ctx,
            [&](RankContext& ctx, const std::vector<Tensor>& x, const std::vector<Weight>&) {
              return std::vector<Tensor>{ops::kl_divergence(
                  ctx, x[0], ops::completed_logits(ctx, x[0].detach(), known, options), options)};
            },
            {student});
}

// bf16 logits beside a recording in fp32, against fp64.
TEST(Likeliest, NarrowLogits) {
  RankContext ctx(testing::test_device());
  const Tensor narrow = random_tensor(ctx, {20, 100}, 2, DType::BF16, 5),
               taught = random_tensor(ctx, {20, 100}, 1, DType::F32, 5);
  const auto wide = [&](const Tensor& x) {
    const Tensor result = ctx.empty(x.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {x, result});
    return result;
  };
  const auto divergence = [&](const Tensor& student, const Tensor& teacher) {
    const ops::Likeliest known = ops::likeliest_tokens(ctx, teacher, 7, {});
    return ctx.to_vector<double>(
        wide(ops::kl_divergence(ctx, student, ops::completed_logits(ctx, student, known, {}))));
  };
  const auto losses = divergence(narrow, taught), expected = divergence(wide(narrow), wide(taught));
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5);
}

}  // namespace
}  // namespace megatron
