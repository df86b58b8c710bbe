#include "megatron/ops/kl_divergence.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

constexpr int64_t kRows = 7, kWidth = 11;

std::vector<ops::KlDivergenceOptions> options_of_divergence() {
  return {{}, {.temperature = 2.5}, {.vocab_size = 9}, {.temperature = 0.5, .vocab_size = 9}};
}

// Σ p (ln p − ln q) of one row, by the definition.
double plain_divergence(const double* student, const double* teacher, int64_t vocab, double temperature) {
  std::vector<double> p, q;
  double p_sum = 0, q_sum = 0, divergence = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    p.push_back(std::exp(teacher[i] / temperature));
    q.push_back(std::exp(student[i] / temperature));
    p_sum += p.back(), q_sum += q.back();
  }
  for (size_t i = 0; i < p.size(); ++i)
    divergence += p[i] / p_sum * (std::log(p[i] / p_sum) - std::log(q[i] / q_sum));
  return divergence;
}

TEST(KlDivergence, EqualsItsDefinition) {
  RankContext ctx(testing::test_device());
  const Tensor student = random_tensor(ctx, {kRows, kWidth}, 1, DType::F64, 4),
               teacher = random_tensor(ctx, {kRows, kWidth}, 2, DType::F64, 4);
  const auto s = ctx.to_vector<double>(student), t = ctx.to_vector<double>(teacher);
  for (const auto& options : options_of_divergence()) {
    const auto losses = ctx.to_vector<double>(ops::kl_divergence(ctx, student, teacher, options));
    for (size_t row = 0; row < kRows; ++row)
      EXPECT_NEAR(losses[row],
                  plain_divergence(&s[row * kWidth], &t[row * kWidth],
                                   options.vocab_size ? options.vocab_size : kWidth, options.temperature),
                  1e-12);
  }
  for (double loss : ctx.to_vector<double>(ops::kl_divergence(ctx, student, student)))
    EXPECT_NEAR(loss, 0, 1e-14);
}

TEST(KlDivergence, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  const Tensor student = random_tensor(ctx, {kRows, kWidth}, 1, DType::F64, 4),
               teacher = random_tensor(ctx, {kRows, kWidth}, 2, DType::F64, 4);
  for (const auto& options : options_of_divergence())
    gradcheck(ctx,
              [&](RankContext& ctx, const std::vector<Tensor>& x, const std::vector<Weight>&) {
                return std::vector<Tensor>{ops::kl_divergence(ctx, x[0], teacher, options)};
              },
              {student});
}

// The gradient takes the place of a teacher's logits that nobody else holds, and of no others.
TEST(KlDivergence, TakesTheTeachersMemory) {
  RankContext ctx;
  for (const bool held : {false, true}) {
    Tensor teacher = random_tensor(ctx, {kRows, kWidth}, 2);
    const auto before = ctx.to_vector<double>(teacher);
    const void* memory = teacher.raw();
    const Tensor keep = held ? teacher : Tensor{};
    Tape tape(ctx);
    const Tensor student = tape.watch(random_tensor(ctx, {kRows, kWidth}, 1));
    {
      TapeScope scope(ctx, &tape);
      const Tensor losses = ops::kl_divergence(ctx, student, std::move(teacher));
      tape.backward(ctx, losses, ctx.full({kRows}, DType::F64, 1));
    }
    EXPECT_EQ(tape.grad(student).raw() == memory, !held);
    if (held) EXPECT_EQ(ctx.to_vector<double>(keep), before);
  }
}

// Logits of narrow dtypes, also ones far apart, against fp64.
TEST(KlDivergence, NarrowTypes) {
  RankContext ctx(testing::test_device(), 2);
  const auto run = [&](const Tensor& student, const Tensor& teacher) {
    Tape tape(ctx);
    const Tensor x = tape.watch(student);
    Tensor losses;
    {
      TapeScope scope(ctx, &tape);
      losses = ops::kl_divergence(ctx, x, teacher, {.temperature = 2});
    }
    Tensor wide = ctx.empty(losses.shape(), DType::F64), gradient = ctx.empty(x.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {losses.detach(), wide});
    tape.backward(ctx, losses, ctx.full(losses.shape(), losses.dtype(), 1));
    ctx.kernels->copy(ctx.kernel_context(), {tape.grad(x), gradient});
    return std::pair{ctx.to_vector<double>(wide), ctx.to_vector<double>(gradient)};
  };
  struct Precision {
    DType dtype;
    double of_gradient;
  };
  for (const auto& [dtype, of_gradient] :
       {Precision{DType::F32, 1e-5}, {DType::BF16, 4e-3}, {DType::F16, 5e-4}}) {
    const Tensor student = random_tensor(ctx, {40, 1000}, 1, dtype, 30),
                 teacher = random_tensor(ctx, {40, 1000}, 2, dtype, 30);
    const auto wide = [&](const Tensor& narrow) {
      Tensor result = ctx.empty(narrow.shape(), DType::F64);
      ctx.kernels->copy(ctx.kernel_context(), {narrow, result});
      return result;
    };
    const auto [losses, gradient] = run(student, teacher);
    const auto [expected, expected_gradient] = run(wide(student), wide(teacher));
    for (size_t i = 0; i < losses.size(); ++i)
      ASSERT_NEAR(losses[i], expected[i], 1e-4) << fmt::format("{} at {}", dtype, i);
    for (size_t i = 0; i < gradient.size(); ++i)
      ASSERT_NEAR(gradient[i], expected_gradient[i], of_gradient) << fmt::format("{} at {}", dtype, i);
  }
}

}  // namespace
}  // namespace megatron
