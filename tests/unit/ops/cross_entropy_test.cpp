#include "megatron/ops/cross_entropy.h"

#include <gtest/gtest.h>

#include "megatron/ops/elementwise.h"
#include "megatron/ops/shape.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;
using testing::TestWeight;

constexpr int64_t kColumns = 11;

Tensor some_labels(RankContext& ctx) { return ctx.from_vector<int64_t>({3, -100, 0, 8, 3, 7, 1}, {7}); }

std::vector<ops::CrossEntropyOptions> variants() {
  return {{},
          {.smoothing = 0.1},
          {.z_loss = 0.05},
          {.vocab_size = 9},
          {.smoothing = 0.2, .z_loss = 0.03, .vocab_size = 9}};
}

// Loss of one row by the plain formula.
double plain_loss(const double* logits, int64_t label, int64_t vocab, double s, double z) {
  if (label < 0) return 0;
  double sum = 0, mean = 0;
  for (int64_t i = 0; i < vocab; ++i)
    sum += std::exp(logits[i]), mean += logits[i] / static_cast<double>(vocab);
  double lse = std::log(sum);
  return (1 - s) * (lse - logits[label]) + s * (lse - mean) + z * lse * lse;
}

TEST(CrossEntropy, EqualsThePlainFormula) {
  RankContext ctx(testing::test_device());
  Tensor logits = random_tensor(ctx, {7, kColumns}, 1, DType::F64, 4);
  auto x = ctx.to_vector<double>(logits);
  auto labels = ctx.to_vector<int64_t>(some_labels(ctx));
  for (const auto& options : variants()) {
    auto loss = ctx.to_vector<double>(ops::cross_entropy(ctx, logits, some_labels(ctx), options));
    int64_t vocab = options.vocab_size ? options.vocab_size : kColumns;
    for (size_t row = 0; row < 7; ++row)
      EXPECT_NEAR(loss[row],
                  plain_loss(&x[row * kColumns], labels[row], vocab, options.smoothing, options.z_loss),
                  1e-12);
  }
}

TEST(CrossEntropy, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  Tensor logits = random_tensor(ctx, {7, kColumns}, 1, DType::F64, 4);
  for (const auto& options : variants())
    gradcheck(ctx,
              [&](RankContext& ctx, const std::vector<Tensor>& x, const std::vector<Weight>&) {
                return std::vector<Tensor>{ops::cross_entropy(ctx, x[0], some_labels(ctx), options)};
              },
              {logits});
}

// Two halves of the columns, with statistics brought together between the kernels, as ranks would do it.
TEST(CrossEntropy, PartsOfTheVocabularyAgree) {
  RankContext ctx(testing::test_device());
  Tensor logits = random_tensor(ctx, {7, kColumns}, 1, DType::F64, 4), labels = some_labels(ctx);
  ops::CrossEntropyOptions options{.smoothing = 0.2, .z_loss = 0.03, .vocab_size = 9};
  Tape whole(ctx);
  Tensor x = whole.watch(logits), loss;
  {
    TapeScope scope(ctx, &whole);
    loss = ops::cross_entropy(ctx, x, labels, options);
  }
  Tensor upstream = random_tensor(ctx, {7}, 2);
  whole.backward(ctx, loss, upstream);
  auto expected = ctx.to_vector<double>(whole.grad(x));

  auto half = [&](int64_t begin, int64_t end) {
    Tensor part = ctx.empty({7, end - begin}, DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {logits.slice(1, begin, end), part});
    return part;
  };
  Tensor parts[] = {half(0, 6), half(6, kColumns)};
  // What the other rank would contribute.
  auto stats_of = [&](const Tensor& part, int64_t begin) {
    ops::CrossEntropyStats stats;
    auto o = options;
    o.vocab_begin = begin;
    o.reduce = [&](RankContext&, ops::CrossEntropyStats& local) { stats = local; };
    ops::cross_entropy(ctx, part, labels, o);
    return stats;
  };
  ops::CrossEntropyStats all[] = {stats_of(parts[0], 0), stats_of(parts[1], 6)};
  for (int rank = 0; rank < 2; ++rank) {
    auto o = options;
    o.vocab_begin = rank * 6;
    o.reduce = [&](RankContext&, ops::CrossEntropyStats& local) {
      const auto& other = all[1 - rank];
      auto combine = [&](const Tensor& mine, const Tensor& theirs, auto&& f) {
        auto a = ctx.to_vector<double>(mine), b = ctx.to_vector<double>(theirs);
        for (size_t row = 0; row < a.size(); ++row) a[row] = f(row, a[row], b[row]);
        ctx.kernels->copy(ctx.kernel_context(), {ctx.from_vector(a, mine.shape()), mine});
      };
      const auto a = ctx.to_vector<double>(local.maximum), b = ctx.to_vector<double>(other.maximum);
      combine(local.sum_exp, other.sum_exp, [&](size_t row, double mine, double theirs) {
        const double top = std::max(a[row], b[row]);
        return mine * std::exp(a[row] - top) + theirs * std::exp(b[row] - top);
      });
      combine(local.maximum, other.maximum, [](size_t, double x, double y) { return std::max(x, y); });
      const auto add = [](size_t, double x, double y) { return x + y; };
      combine(local.target, other.target, add);
      combine(local.sum_logits, other.sum_logits, add);
    };
    Tape tape(ctx);
    Tensor part = tape.watch(parts[rank]), part_loss;
    {
      TapeScope scope(ctx, &tape);
      part_loss = ops::cross_entropy(ctx, part, labels, o);
    }
    auto a = ctx.to_vector<double>(part_loss), b = ctx.to_vector<double>(loss);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12);
    tape.backward(ctx, part_loss, upstream);
    auto grad = ctx.to_vector<double>(tape.grad(part));
    int64_t width = part.size(1);
    for (int64_t row = 0; row < 7; ++row)
      for (int64_t c = 0; c < width; ++c)
        EXPECT_NEAR(grad[static_cast<size_t>(row * width + c)],
                    expected[static_cast<size_t>(row * kColumns + rank * 6 + c)], 1e-12);
  }
}

// Losses and gradients of every dtype, at sizes that do and do not fill the last vector, against fp64.
TEST(CrossEntropy, LargeLogitsAndNarrowTypes) {
  RankContext ctx(testing::test_device(), 2);
  auto run = [&](const Tensor& logits, const Tensor& labels) {
    Tape tape(ctx);
    Tensor x = tape.watch(logits), loss;
    {
      TapeScope scope(ctx, &tape);
      loss = ops::cross_entropy(ctx, x, labels, {.smoothing = 0.1, .z_loss = 1e-4});
    }
    Tensor wide_loss = ctx.empty(loss.shape(), DType::F64), dx = ctx.empty(x.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {loss.detach(), wide_loss});
    tape.backward(ctx, loss, ctx.full(loss.shape(), loss.dtype(), 1));
    ctx.kernels->copy(ctx.kernel_context(), {tape.grad(x), dx});
    return std::pair{ctx.to_vector<double>(wide_loss), ctx.to_vector<double>(dx)};
  };
  struct Precision {
    DType dtype;
    double of_gradient;
  };
  for (auto [dtype, of_gradient] : {Precision{DType::F32, 1e-5}, {DType::BF16, 4e-3}, {DType::F16, 5e-4}})
    for (int64_t columns : {1, 15, 16, 37, 5000}) {
      SCOPED_TRACE(fmt::format("{} columns of {}", columns, dtype));
      Tensor logits = random_tensor(ctx, {40, columns}, 1, dtype, 100);
      Tensor wide = ctx.empty(logits.shape(), DType::F64);
      ctx.kernels->copy(ctx.kernel_context(), {logits, wide});
      std::vector<int64_t> ids(40);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 100) % columns;
      Tensor labels = ctx.from_vector(ids, {40});
      auto [loss, dx] = run(logits, labels);
      auto [expected_loss, expected_dx] = run(wide, labels);
      for (size_t i = 0; i < loss.size(); ++i) ASSERT_NEAR(loss[i], expected_loss[i], 1e-4) << i;
      for (size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(dx[i], expected_dx[i], of_gradient) << i;
    }
}

TEST(CrossEntropy, NanComesThrough) {
  RankContext ctx(testing::test_device());
  for (DType dtype : {DType::F32, DType::BF16}) {
    Tensor logits = random_tensor(ctx, {2, 40}, 1, dtype);
    Tensor fault = ctx.full({1, 1}, dtype, NAN);
    ctx.kernels->copy(ctx.kernel_context(), {fault, logits.slice(0, 1, 2).slice(1, 20, 21)});
    Tape tape(ctx);
    Tensor x = tape.watch(logits), loss;
    {
      TapeScope scope(ctx, &tape);
      loss = ops::cross_entropy(ctx, x, ctx.zeros({2}, DType::I64));
    }
    auto values = ctx.to_vector<float>(loss.detach());
    EXPECT_FALSE(std::isnan(values[0]));
    EXPECT_TRUE(std::isnan(values[1]));
    tape.backward(ctx, loss, ctx.full({2}, DType::F32, 1));
    Tensor dx = ctx.empty({2, 40}, DType::F32);
    ctx.kernels->copy(ctx.kernel_context(), {tape.grad(x), dx});
    EXPECT_FALSE(std::isnan(ctx.to_vector<float>(dx)[0]));
    EXPECT_TRUE(std::isnan(ctx.to_vector<float>(dx)[40]));
  }
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  RankContext ctx(testing::test_device());
  Tensor logits = random_tensor(ctx, {7, kColumns}, 1);
  EXPECT_THROW(ops::cross_entropy(ctx, logits, ctx.from_vector<int64_t>({1}, {1})), Error);
  EXPECT_THROW(ops::cross_entropy(ctx, logits, some_labels(ctx), {.vocab_size = 12}), Error);
}

TEST(LinearCrossEntropy, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  Tensor hidden = random_tensor(ctx, {7, 4}, 1), weight = random_tensor(ctx, {kColumns, 4}, 2);
  for (const auto& options : variants())
    for (int64_t chunk : {3, 100})
      gradcheck(ctx,
                [&](RankContext& ctx, const std::vector<Tensor>& x, const std::vector<Weight>& w) {
                  return std::vector<Tensor>{
                      ops::linear_cross_entropy(ctx, x[0], w[0], some_labels(ctx), options, 1.7, chunk)};
                },
                {hidden}, {weight});
}

// bf16: logits and the weight's gradient stay fp32, the gradient of the logits is rounded once.
TEST(LinearCrossEntropy, NarrowTypesFollowTheFp64Result) {
  RankContext ctx(testing::test_device(), 2);
  int64_t rows = 60, hidden = 48, columns = 200;
  std::vector<int64_t> ids(60);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7 % 200);
  Tensor labels = ctx.from_vector(ids, {rows});
  auto widened = [&](const Tensor& x) {
    Tensor wide = ctx.empty(x.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {x.detach(), wide});
    return wide;
  };
  struct Results {
    std::vector<double> loss, dhidden, dweight;
  };
  auto run = [&](const Tensor& x0, const Tensor& w0) {
    TestWeight weight(ctx, w0);
    Tape tape(ctx);
    Tensor x = tape.watch(x0), loss;
    {
      TapeScope scope(ctx, &tape);
      loss = ops::linear_cross_entropy(ctx, x, weight.get(), labels, {}, 1, 25);
    }
    tape.backward(ctx, loss, ctx.full({rows}, loss.dtype(), 1));
    return Results{ctx.to_vector<double>(widened(loss)), ctx.to_vector<double>(widened(tape.grad(x))),
                   ctx.to_vector<double>(widened(weight.accumulator.main_grad))};
  };
  Tensor x = random_tensor(ctx, {rows, hidden}, 1, DType::BF16),
         w = random_tensor(ctx, {columns, hidden}, 2, DType::BF16);
  Results narrow = run(x, w), wide = run(widened(x), widened(w));
  for (size_t i = 0; i < wide.loss.size(); ++i) ASSERT_NEAR(narrow.loss[i], wide.loss[i], 1e-5) << i;
  for (size_t i = 0; i < wide.dhidden.size(); ++i) ASSERT_NEAR(narrow.dhidden[i], wide.dhidden[i], 1e-2) << i;
  for (size_t i = 0; i < wide.dweight.size(); ++i) ASSERT_NEAR(narrow.dweight[i], wide.dweight[i], 1e-2) << i;
}

TEST(WeightedSum, Gradients) {
  RankContext ctx(testing::test_device());
  const Tensor losses = random_tensor(ctx, {5}, 1), varying = random_tensor(ctx, {5}, 2),
               same = ctx.full({1}, DType::F64, 0.3).expand({5});
  for (const Tensor& weights : {varying, same, Tensor{}}) {
    gradcheck(ctx,
              [&](RankContext& ctx, const std::vector<Tensor>& x, const std::vector<Weight>&) {
                return std::vector<Tensor>{ops::weighted_sum(ctx, x[0], weights)};
              },
              {losses});
    const auto value = ctx.to_vector<double>(losses);
    double sum = 0;
    for (int64_t i = 0; i < 5; ++i)
      sum += value[static_cast<size_t>(i)] * (weights ? ctx.item(weights.slice(0, i, i + 1)) : 1);
    EXPECT_NEAR(ctx.item(ops::weighted_sum(ctx, losses, weights)), sum, 1e-14);
  }
}

// With and without other ranks' parts of the vocabulary (`reduce`), which take different kernels.
TEST(LinearCrossEntropySum, GradientsMadeInForwardAreThoseOfTheRows) {
  RankContext ctx(testing::test_device());
  Tensor hidden = random_tensor(ctx, {7, 4}, 1), values = random_tensor(ctx, {kColumns, 4}, 2);
  const Tensor same = ctx.full({1}, DType::F64, 0.3).expand({7}), varying = random_tensor(ctx, {7}, 3);
  for (auto options : variants())
    for (bool alone : {true, false})
      for (const auto& [chunk, factors] : {std::pair<int64_t, Tensor>{3, same}, {0, same}, {3, varying}}) {
        const std::vector<double> factor = ctx.to_vector<double>(factors);
        if (!alone) {
          options.vocab_size = options.vocab_size ? options.vocab_size : kColumns;
          options.reduce = [](RankContext&, ops::CrossEntropyStats&) {};
        }
        auto run = [&](bool sum, int uses) {
          TestWeight weight(ctx, values);
          std::vector<double> results;
          for (int use = 0; use < uses; ++use) {
            Tape tape(ctx);
            Tensor x = tape.watch(hidden), loss;
            TapeScope scope(ctx, &tape);
            if (sum) {
              loss = ops::linear_cross_entropy_sum(ctx, x, weight.get(), some_labels(ctx), factors, options,
                                                   chunk);
              results = {ctx.item(loss)};
              tape.backward(ctx, loss);
            } else {
              loss = ops::linear_cross_entropy(ctx, x, weight.get(), some_labels(ctx), options);
              results = {0};
              const auto losses = ctx.to_vector<double>(loss.detach());
              for (size_t i = 0; i < losses.size(); ++i) results[0] += factor[i] * losses[i];
              tape.backward(ctx, loss, ops::contiguous(ctx, factors));
            }
            for (const Tensor& t : {tape.grad(x), weight.accumulator.main_grad})
              for (double value : ctx.to_vector<double>(t)) results.push_back(value);
          }
          return results;
        };
        for (int uses : {1, 2}) {  // the second adds to the weight's gradient
          auto expected = run(false, uses), got = run(true, uses);
          ASSERT_EQ(got.size(), expected.size());
          for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-13) << i;
        }
        EXPECT_NEAR(ctx.item(ops::linear_cross_entropy_sum(ctx, hidden, {values, nullptr}, some_labels(ctx),
                                                           factors, options, chunk)),
                    run(true, 1)[0], 1e-13);
      }
}

TEST(LinearCrossEntropySum, MustBeWhereBackwardStarts) {
  RankContext ctx(testing::test_device());
  TestWeight weight(ctx, random_tensor(ctx, {kColumns, 4}, 2));
  for (bool given : {false, true}) {
    Tape tape(ctx);
    Tensor x = tape.watch(random_tensor(ctx, {7, 4}, 1)), loss;
    TapeScope scope(ctx, &tape);
    loss = ops::linear_cross_entropy_sum(ctx, x, weight.get(), some_labels(ctx));
    if (given)
      EXPECT_THROW(tape.backward(ctx, loss, ctx.full({1}, DType::F64, 2)), Error);
    else
      EXPECT_THROW(tape.backward(ctx, ops::scale(ctx, loss, 2)), Error);
  }
}

TEST(LinearCrossEntropySum, NarrowTypesFollowTheFp64Result) {
  RankContext ctx(testing::test_device(), 2);
  Tensor x = random_tensor(ctx, {60, 48}, 1, DType::BF16), w = random_tensor(ctx, {200, 48}, 2, DType::BF16);
  std::vector<int64_t> ids(60);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7 % 200);
  Tensor labels = ctx.from_vector(ids, {60});
  auto widened = [&](const Tensor& t) {
    Tensor wide = ctx.empty(t.shape(), DType::F64);
    ctx.kernels->copy(ctx.kernel_context(), {t.detach(), wide});
    return wide;
  };
  auto run = [&](const Tensor& x0, const Tensor& w0) {
    TestWeight weight(ctx, w0);
    Tape tape(ctx);
    Tensor hidden = tape.watch(x0), loss;
    TapeScope scope(ctx, &tape);
    loss = ops::linear_cross_entropy_sum(ctx, hidden, weight.get(), labels,
                                         ctx.full({1}, accumulation_dtype(x0.dtype()), 1.0 / 60).expand({60}),
                                         {}, 25);
    std::vector<double> results{ctx.item(loss)};
    tape.backward(ctx, loss);
    for (const Tensor& t : {tape.grad(hidden), weight.accumulator.main_grad})
      for (double value : ctx.to_vector<double>(widened(t))) results.push_back(value);
    return results;
  };
  auto narrow = run(x, w), wide = run(widened(x), widened(w));
  EXPECT_NEAR(narrow[0], wide[0], 2e-3);
  for (size_t i = 1; i < wide.size(); ++i) ASSERT_NEAR(narrow[i], wide[i], 1e-3) << i;
}

TEST(LinearCrossEntropy, HoldsOneChunkOfLogits) {
  RankContext ctx(testing::test_device());
  int64_t rows = 256, columns = 1000, chunk = 16;
  TestWeight weight(ctx, random_tensor(ctx, {columns, 8}, 2, DType::F32));
  Tensor hidden = random_tensor(ctx, {rows, 8}, 1, DType::F32), labels = ctx.zeros({rows}, DType::I64);
  size_t before = ctx.allocator->statistics().total.current;
  ctx.allocator->reset_peaks();
  Tape tape(ctx);
  Tensor x = tape.watch(hidden), loss;
  {
    TapeScope scope(ctx, &tape);
    loss = ops::linear_cross_entropy(ctx, x, weight.get(), labels, {}, 1, chunk);
  }
  tape.backward(ctx, loss, ctx.full({rows}, DType::F32, 1));
  size_t peak = ctx.allocator->statistics().total.peak - before;
  EXPECT_LT(peak, static_cast<size_t>(rows * columns * 4 / 4));
}

}  // namespace
}  // namespace megatron
