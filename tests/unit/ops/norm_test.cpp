#include "megatron/ops/norm.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

TEST(Norm, GradientsOfEveryVariant) {
  RankContext ctx(testing::test_device());
  for (NormKind kind : {NormKind::Rms, NormKind::Layer})
    for (bool zero_centered : {false, true})
      for (int weights : {0, 1, 2}) {
        if (weights == 2 && kind == NormKind::Rms) continue;
        ops::NormOptions options{kind, 1e-5, zero_centered};
        std::vector<Tensor> held;
        for (int i = 0; i < weights; ++i) held.push_back(random_tensor(ctx, {7}, 10 + i));
        gradcheck(
            ctx,
            [&](RankContext& c, const auto& in, const auto& w) {
              return std::vector{ops::norm(c, in[0], w.size() > 0 ? w[0] : Weight{},
                                           w.size() > 1 ? w[1] : Weight{}, options)};
            },
            {random_tensor(ctx, {5, 7}, 1)}, held);
      }
}

TEST(Norm, GradientsWithResidualReachBothInputsAndTheSum) {
  RankContext ctx(testing::test_device());
  gradcheck(ctx,
            [](RankContext& c, const auto& in, const auto& w) {
              auto [y, sum] = ops::norm_with_residual(c, in[0], in[1], w[0], w[1],
                                                      {.kind = NormKind::Layer, .epsilon = 1e-5});
              return std::vector{y, sum};
            },
            {random_tensor(ctx, {4, 9}, 1), random_tensor(ctx, {4, 9}, 2)},
            {random_tensor(ctx, {9}, 3), random_tensor(ctx, {9}, 4)});
}

TEST(Norm, SameGradientsForEveryNumberOfThreads) {
  auto gradients = [](int threads) {
    RankContext ctx(kCpu, threads);
    Tape tape(ctx);
    testing::TestWeight gamma(ctx, random_tensor(ctx, {48}, 2, DType::F32));
    Tensor x = tape.watch(random_tensor(ctx, {301, 48}, 1, DType::F32));
    Tensor y;
    {
      TapeScope scope(ctx, &tape);
      y = ops::norm(ctx, x, gamma.get());
    }
    tape.backward(ctx, y, random_tensor(ctx, {301, 48}, 3, DType::F32));
    auto dx = ctx.to_vector<float>(tape.grad(x)), dw = ctx.to_vector<float>(gamma.accumulator.main_grad);
    dx.insert(dx.end(), dw.begin(), dw.end());
    return dx;
  };
  EXPECT_EQ(gradients(1), gradients(3));
}

TEST(Norm, ThreadsShareTheRows) {
  RankContext one(kCpu, 1), two(kCpu, 2);
  Tensor x = random_tensor(one, {512, 64}, 1, DType::F32);
  Tensor y1 = ops::norm(one, x, {}), y2 = ops::norm(two, x, {});
  EXPECT_EQ(one.to_vector<float>(y1), two.to_vector<float>(y2));
}

TEST(Norm, NarrowTypesFollowTheFp64Result) {
  RankContext ctx(testing::test_device());
  for (DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    Tensor x = random_tensor(ctx, {6, 33}, 1, dtype), w = random_tensor(ctx, {33}, 2, dtype);
    auto wide = [&](const Tensor& t) {
      Tensor result = ctx.empty(t.shape(), DType::F64);
      ctx.kernels->copy(ctx.kernel_context(), {t, result});
      return result;
    };
    auto exact = ctx.to_vector<double>(ops::norm(ctx, wide(x), {wide(w)}));
    auto found = ctx.to_vector<double>(wide(ops::norm(ctx, x, {w})));
    double tolerance = dtype == DType::F32 ? 1e-6 : dtype == DType::BF16 ? 8e-3 : 1e-3;
    for (size_t i = 0; i < exact.size(); ++i)
      EXPECT_NEAR(found[i], exact[i], tolerance * 2) << name_of(dtype);
  }
}

TEST(Norm, RunsOnMetaAndRefusesWhatDoesNotFit) {
  RankContext meta(kMeta);
  Tensor y = ops::norm(meta, meta.empty({8, 16}, DType::BF16), {meta.empty({16}, DType::BF16)});
  EXPECT_EQ(y.shape(), (Shape{8, 16}));

  RankContext ctx(testing::test_device());
  Tensor x = random_tensor(ctx, {2, 4}, 1);
  EXPECT_THROW(ops::norm(ctx, x, {random_tensor(ctx, {3}, 1)}), Error);
  EXPECT_THROW(ops::norm(ctx, x, {random_tensor(ctx, {4}, 1)}, {random_tensor(ctx, {4}, 1)}), Error);
  EXPECT_THROW(ops::norm(ctx, meta.empty({2, 4}, DType::F64), {}), Error);
}

}  // namespace
}  // namespace megatron
