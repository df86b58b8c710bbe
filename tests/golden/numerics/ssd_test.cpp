#include <gtest/gtest.h>

#include "megatron/ops/causal_conv.h"
#include "megatron/ops/delta_rule.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/ssd.h"
#include "support/golden.h"
#include "support/gradcheck.h"

// Convolution, scans and gated norms against PyTorch's loops over tokens.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kAttention;
using testing::kElementwise;
using testing::kGradient;
using testing::TestWeight;
using testing::to_device;

class GoldenSsd : public ::testing::TestWithParam<DType> {
 protected:
  // [batch, length, …] as [tokens, all channels].
  Tensor rows(const char* name) {
    Tensor x = load(name);
    return x.view({x.size(0) * x.size(1), x.numel() / (x.size(0) * x.size(1))});
  }
  Tensor load(const char* name) { return to_device(ctx_, golden_.tensor(name), GetParam()); }
  void expect(const char* name, const Tensor& found, const testing::Tolerance& tolerance) {
    EXPECT_TRUE(is_close(ctx_, name, found, golden_.tensor(name), tolerance));
  }

  RankContext ctx_{testing::test_device()};
  SafetensorsFile golden_ = golden_tensors("numerics", "ssd");
};

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenSsd, ::testing::Values(DType::F32, DType::F64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(GoldenSsd, ScanAndItsGradients) {
  TestWeight a_log(ctx_, load("ssd.A_log")), d(ctx_, load("ssd.D")), dt_bias(ctx_, load("ssd.dt_bias"));
  Tape tape(ctx_);
  Tensor x = tape.watch(rows("ssd.x")), b = tape.watch(rows("ssd.B")), c = tape.watch(rows("ssd.C")),
         dt = tape.watch(rows("ssd.dt_raw")), y;
  {
    TapeScope scope(ctx_, &tape);
    y = ops::ssd(ctx_, ops::concat(ctx_, std::vector{x, b, c}, 1), dt, {a_log.get(), d.get(), dt_bias.get()},
                 {.heads = 4, .channels = 8, .groups = 2, .states = 6, .chunk = 16}, {.count = 2, .cu = {}});
  }
  expect("ssd.y", y, kAttention);
  tape.backward(ctx_, y, rows("ssd.dy"));
  expect("ssd.d_x", tape.grad(x), kGradient);
  expect("ssd.d_B", tape.grad(b), kGradient);
  expect("ssd.d_C", tape.grad(c), kGradient);
  expect("ssd.d_dt_raw", tape.grad(dt), kGradient);
  expect("ssd.d_A_log", a_log.accumulator.main_grad, kGradient);
  expect("ssd.d_D", d.accumulator.main_grad, kGradient);
  expect("ssd.d_dt_bias", dt_bias.accumulator.main_grad, kGradient);
}

TEST_P(GoldenSsd, DeltaRuleAndItsGradients) {
  // The reference has unit vectors, log-decays and strengths as inputs: ours are what leads to them. With a
  // length far above the epsilon the vectors stay as they are.
  auto changed = [&](const char* name, double (*f)(double)) {
    std::vector<double> values = testing::to_doubles(golden_.tensor(name));
    for (double& v : values) v = f(v);
    Tensor wide = ctx_.from_vector(values, {48, 3}), x = ctx_.empty({48, 3}, GetParam());
    ctx_.kernels->copy(ctx_.kernel_context(), {wide, x});
    return x;
  };
  Tensor zeros = ctx_.zeros({3}, GetParam());
  TestWeight a_log(ctx_, zeros), dt_bias(ctx_, zeros);
  Tape tape(ctx_);
  Tensor q = tape.watch(rows("gdn.q")), k = tape.watch(rows("gdn.k")), v = tape.watch(rows("gdn.v")), o;
  Tensor a = tape.watch(changed("gdn.log_decay", [](double g) { return std::log(std::expm1(-g)); }));
  Tensor b = tape.watch(changed("gdn.beta", [](double s) { return std::log(s / (1 - s)); }));
  {
    TapeScope scope(ctx_, &tape);
    o = ops::delta_rule(
        ctx_, ops::concat(ctx_, std::vector{q, k, v}, 1), b, a, a_log.get(), dt_bias.get(),
        {.key_heads = 3, .value_heads = 3, .key_channels = 8, .value_channels = 8, .chunk = 10},
        {.count = 2, .cu = {}});
  }
  expect("gdn.o", o, kAttention);
  tape.backward(ctx_, o, rows("gdn.do"));
  expect("gdn.dv", tape.grad(v), kGradient);
  // What is along the vector itself does not reach it.
  for (auto [grad, vector, name] :
       {std::tuple{tape.grad(q), "gdn.q", "gdn.dq"}, {tape.grad(k), "gdn.k", "gdn.dk"}}) {
    auto found = testing::to_doubles(ctx_, grad), unit = testing::to_doubles(golden_.tensor(vector)),
         whole = testing::to_doubles(golden_.tensor(name));
    for (size_t i = 0; i < found.size(); i += 8) {
      double along = 0;
      for (size_t j = i; j < i + 8; ++j) along += unit[j] * whole[j];
      for (size_t j = i; j < i + 8; ++j) EXPECT_NEAR(found[j], whole[j] - along * unit[j], 2e-5) << name << j;
    }
  }
  auto slopes = testing::to_doubles(ctx_, tape.grad(b)),
       strengths = testing::to_doubles(golden_.tensor("gdn.beta")),
       expected = testing::to_doubles(golden_.tensor("gdn.dbeta"));
  for (size_t i = 0; i < slopes.size(); ++i)
    EXPECT_NEAR(slopes[i], expected[i] * strengths[i] * (1 - strengths[i]), 2e-5);
  slopes = testing::to_doubles(ctx_, tape.grad(a));
  auto decays = testing::to_doubles(golden_.tensor("gdn.log_decay"));
  expected = testing::to_doubles(golden_.tensor("gdn.dlog_decay"));
  for (size_t i = 0; i < slopes.size(); ++i)
    EXPECT_NEAR(slopes[i], expected[i] * std::expm1(decays[i]), 2e-5);
}

TEST_P(GoldenSsd, ConvolutionAndGatedNorms) {
  // The reference has [batch, channels, length].
  Tensor x = load("conv.x").transpose(1, 2), flat = ctx_.empty({60, 12}, GetParam());
  ctx_.kernels->copy(ctx_.kernel_context(), {x, flat.view({2, 30, 12})});
  Tensor y = ops::causal_conv(ctx_, flat, {load("conv.w")}, {load("conv.b")}, {.count = 2, .cu = {}});
  expect("conv.y", y.view({2, 30, 12}).transpose(1, 2), kElementwise);

  Weight weight{load("gnorm.w")};
  expect(
      "gnorm.y_groups2_norm_after_gate",
      ops::gated_norm(ctx_, rows("gnorm.x"), rows("gnorm.gate"), weight, {.groups = 2, .sum_over_ranks = {}}),
      kElementwise);
  expect("gnorm.y_norm_before_gate",
         ops::gated_norm(ctx_, rows("gnorm.x"), rows("gnorm.gate"), weight,
                         {.gate_first = false, .sum_over_ranks = {}}),
         kElementwise);
}

}  // namespace
}  // namespace megatron
