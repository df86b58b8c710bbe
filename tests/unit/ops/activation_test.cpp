#include "megatron/ops/activation.h"

#include <gtest/gtest.h>

#include "megatron/ops/linear.h"
#include "support/gradcheck.h"
#include "support/to_doubles.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;
using testing::to_doubles;

constexpr Unary kAll[] = {Unary::Neg,       Unary::Abs,         Unary::Square,  Unary::Sqrt, Unary::Rsqrt,
                          Unary::Exp,       Unary::Log,         Unary::Sigmoid, Unary::Tanh, Unary::Softplus,
                          Unary::Relu,      Unary::SquaredRelu, Unary::Silu,    Unary::Gelu, Unary::GeluTanh,
                          Unary::QuickGelu, Unary::Mish};

bool needs_positive(Unary kind) { return kind == Unary::Sqrt || kind == Unary::Rsqrt || kind == Unary::Log; }

Tensor shifted(RankContext& ctx, const Tensor& x, double by) {
  auto values = ctx.to_vector<double>(x);
  for (double& v : values) v += by;
  return ctx.from_vector(values, x.shape());
}

TEST(Activation, GradientsOfEveryFunctionWithAndWithoutBias) {
  RankContext ctx(testing::test_device());
  for (Unary kind : kAll) {
    Tensor x = random_tensor(ctx, {4, 6}, 1, DType::F64, 0.4);
    if (needs_positive(kind)) x = shifted(ctx, x, 1.5);
    for (bool bias : {false, true}) {
      std::vector<Tensor> weights;
      if (bias) weights.push_back(random_tensor(ctx, {6}, 2));
      gradcheck(
          ctx,
          [&](RankContext& c, const auto& in, const auto& w) {
            return std::vector{ops::activation(c, kind, in[0], w.empty() ? Weight{} : w[0])};
          },
          {x}, weights);
    }
  }
}

TEST(Activation, NarrowTypesFollowTheFp64Result) {
  RankContext ctx(testing::test_device());
  for (Unary kind : kAll)
    for (DType dtype : {DType::F32, DType::BF16, DType::F16}) {
      Tensor x = random_tensor(ctx, {3, 1111}, 5, dtype, 6);
      Tensor wide = ctx.empty(x.shape(), DType::F64), back = ctx.empty(x.shape(), DType::F64);
      ctx.kernels->copy(ctx.kernel_context(), {x, wide});
      ctx.kernels->copy(ctx.kernel_context(), {ops::activation(ctx, kind, x), back});
      auto exact = ctx.to_vector<double>(ops::activation(ctx, kind, wide));
      auto found = ctx.to_vector<double>(back);
      double tolerance = dtype == DType::F32 ? 1e-6 : dtype == DType::BF16 ? 4e-3 : 5e-4;
      for (size_t i = 0; i < exact.size(); ++i) {
        if (std::isnan(exact[i]))
          EXPECT_TRUE(std::isnan(found[i]));
        else
          EXPECT_NEAR(found[i], exact[i], tolerance * std::max(1.0, std::abs(exact[i])))
              << static_cast<int>(kind) << " " << name_of(dtype);
      }
    }
}

TEST(GatedActivation, GradientsOfEveryGateWithAndWithoutBias) {
  RankContext ctx(testing::test_device());
  for (Unary kind : {Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::QuickGelu, Unary::Relu,
                     Unary::SquaredRelu, Unary::Sigmoid})
    for (bool bias : {false, true}) {
      std::vector<Tensor> weights;
      if (bias) weights.push_back(random_tensor(ctx, {10}, 2));
      gradcheck(
          ctx,
          [&](RankContext& c, const auto& in, const auto& w) {
            return std::vector{ops::gated_activation(c, {.kind = kind}, in[0], w.empty() ? Weight{} : w[0])};
          },
          {random_tensor(ctx, {3, 10}, 1)}, weights);
    }
}

TEST(GatedActivation, ClampedGatePassesNoGradient) {
  RankContext ctx(testing::test_device());
  gradcheck(ctx,
            [](RankContext& c, const auto& in, const auto&) {
              return std::vector{
                  ops::gated_activation(c, {.kind = Unary::QuickGelu, .limit = 0.7, .up_offset = 1}, in[0])};
            },
            {random_tensor(ctx, {6, 12}, 3, DType::F64, 2)});
}

TEST(ActivatedLinear, GradientsOfInputWeightAndBias) {
  RankContext ctx(testing::test_device());
  for (int c = 0; c < 8; ++c) {
    // not watched: only the weights' gradients are wanted
    const bool watched = c & 1, keep = c & 2, gated = c & 4;
    Tensor input = random_tensor(ctx, {6, gated ? 12 : 6}, 3, DType::F64, 2);
    const auto activation = gated ? ops::ActivationOptions{.kind = Unary::Silu, .limit = 0.7, .up_offset = 1}
                                  : ops::ActivationOptions{.kind = Unary::GeluTanh, .gated = false};
    gradcheck(ctx,
              [&](RankContext& c, const auto& in, const auto& w) {
                Tensor x = watched ? in[0] : input;
                return std::vector{
                    ops::call_linear(c, x, w[0],
                                     {.bias = w[1], .input_activation = activation, .keep_active = keep})
                        .y};
              },
              watched ? std::vector{input} : std::vector<Tensor>{},
              {random_tensor(ctx, {5, 6}, 4), random_tensor(ctx, {5}, 5)});
  }
}

// Bitwise as the two ops apart, also where the gradient takes the input's place.
TEST(ActivatedLinear, IsTheTwoOpsTogether) {
  RankContext ctx(testing::test_device());
  const ops::ActivationOptions swiglu, gelu{.kind = Unary::GeluTanh, .gated = false};
  for (const auto& activation : {swiglu, gelu})
    for (int c = 0; c < 4; ++c) {
      const bool shared = c & 1;
      const DType dtype = c & 2 ? DType::F32 : DType::BF16;
      enum Form { apart, together, kept, fused_into_gemm };
      auto run = [&](Form form) {
        testing::TestWeight up(ctx, random_tensor(ctx, {12 * activation.inputs(), 8}, 1, dtype)),
            down(ctx, random_tensor(ctx, {5, 12}, 2, dtype));
        Tape tape(ctx);
        Tensor x = tape.watch(random_tensor(ctx, {7, 8}, 3, dtype)), held;
        TapeScope scope(ctx, &tape);
        ops::LinearResult middle;
        if (form == fused_into_gemm)
          middle = ops::call_linear(ctx, x, up.get(), {.output_activation = activation});
        else
          middle.y = ops::linear(ctx, x, up.get());
        if (shared) held = middle.y;
        auto activate = [&] {
          return activation.gated ? ops::gated_activation(ctx, activation, middle.y)
                                  : ops::activation(ctx, activation.kind, middle.y);
        };
        Tensor y = form == apart ? ops::linear(ctx, activate(), down.get())
                                 : ops::call_linear(ctx, middle.y, down.get(),
                                                    {.input_activation = activation,
                                                     .keep_active = form != together,
                                                     .active = middle.active})
                                       .y;
        middle = {};
        tape.backward(ctx, y, random_tensor(ctx, {7, 5}, 4, dtype));
        std::vector<double> all;
        for (const Tensor& t :
             {y.detach(), tape.grad(x), up.accumulator.main_grad, down.accumulator.main_grad})
          for (double v : to_doubles(ctx, t)) all.push_back(v);
        return all;
      };
      for (Form form : {together, kept, fused_into_gemm}) EXPECT_EQ(run(form), run(apart));
    }
}

TEST(GatedActivation, RunsOnMetaAndRefusesWhatDoesNotFit) {
  RankContext meta(kMeta);
  EXPECT_EQ(ops::gated_activation(meta, {}, meta.empty({3, 8}, DType::F32)).shape(), (Shape{3, 4}));
  RankContext ctx(testing::test_device());
  EXPECT_THROW(ops::gated_activation(ctx, {}, random_tensor(ctx, {3, 7}, 1)), Error);
  EXPECT_THROW(ops::gated_activation(ctx, {.kind = Unary::Exp}, random_tensor(ctx, {3, 8}, 1)), Error);
  EXPECT_THROW(ops::activation(ctx, Unary::Silu, ctx.empty({3}, DType::I32)), Error);
}

}  // namespace
}  // namespace megatron
