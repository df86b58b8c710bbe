#include <gtest/gtest.h>

#include "megatron/ops/activation.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/norm.h"
#include "support/golden.h"
#include "support/gradcheck.h"

// Activations, norms, softmax and losses with their gradients, as PyTorch computes them in fp32; here in fp32
// and in fp64, both within the rounding of the reference.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kElementwise;
using testing::TestWeight;
using testing::to_device;

class GoldenElementwise : public ::testing::TestWithParam<DType> {
 protected:
  Tensor load(const std::string& name) { return to_device(ctx_, golden_.tensor(name), GetParam()); }
  void expect(const std::string& name, const Tensor& actual) {
    EXPECT_TRUE(is_close(ctx_, name, actual, golden_.tensor(name), kElementwise));
  }

  RankContext ctx_{testing::test_device()};
  SafetensorsFile golden_ = golden_tensors("numerics", "elementwise");
};

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenElementwise, ::testing::Values(DType::F32, DType::F64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(GoldenElementwise, Activations) {
  const std::pair<const char*, Unary> kinds[] = {
      {"gelu_erf", Unary::Gelu},     {"gelu_tanh", Unary::GeluTanh},       {"silu", Unary::Silu},
      {"relu", Unary::Relu},         {"squared_relu", Unary::SquaredRelu}, {"quick_gelu", Unary::QuickGelu},
      {"softplus", Unary::Softplus}, {"sigmoid", Unary::Sigmoid},          {"tanh", Unary::Tanh},
      {"mish", Unary::Mish}};
  for (const auto& [name, kind] : kinds) {
    Tape tape(ctx_);
    TapeScope scope(ctx_, &tape);
    const Tensor x = tape.watch(load("act.x"));
    const Tensor y = ops::activation(ctx_, kind, x);
    expect(fmt::format("act.{}.y", name), y);
    tape.backward(ctx_, y, load("act.dy"));
    expect(fmt::format("act.{}.dx", name), tape.grad(x));
  }
}

// The rows of x with gate and up interleaved become [gate | up], and back.
Tensor separated(RankContext& ctx, const Tensor& x, bool back) {
  const int64_t rows = x.size(0), half = x.size(1) / 2;
  Tensor result = ctx.empty_like(x);
  const Tensor pairs = x.view({rows, back ? 2 : half, back ? half : 2}).transpose(1, 2);
  ctx.kernels->copy(ctx.kernel_context(), {pairs, result.view(pairs.shape())});
  return result;
}

TEST_P(GoldenElementwise, GatedActivations) {
  const std::pair<const char*, ops::ActivationOptions> kinds[] = {{"swiglu", {Unary::Silu, 0, 0}},
                                                                  {"geglu_tanh", {Unary::GeluTanh, 0, 0}},
                                                                  {"reglu", {Unary::Relu, 0, 0}},
                                                                  {"gptoss", {Unary::QuickGelu, 7, 1}}};
  for (const auto& [name, options] : kinds) {
    const bool interleaved = std::string_view(name) == "gptoss";
    Tape tape(ctx_);
    TapeScope scope(ctx_, &tape);
    Tensor x = load(interleaved ? "glu.gptoss_x" : "glu.x");
    x = tape.watch(interleaved ? separated(ctx_, x, false) : x);
    const Tensor y = ops::gated_activation(ctx_, options, x);
    expect(fmt::format("glu.{}.y", name), y);
    tape.backward(ctx_, y, load("glu.dy"));
    const Tensor dx = tape.grad(x);
    expect(fmt::format("glu.{}.dx", name), interleaved ? separated(ctx_, dx, true) : dx);
  }
}

TEST_P(GoldenElementwise, Norms) {
  const std::pair<const char*, ops::NormOptions> kinds[] = {
      {"layernorm_1e-5", {NormKind::Layer, 1e-5, false}},
      {"layernorm1p", {NormKind::Layer, 1e-5, true}},
      {"rmsnorm_1e-5", {NormKind::Rms, 1e-5, false}},
      {"rmsnorm_1e-6", {NormKind::Rms, 1e-6, false}},
      {"rmsnorm_zero_centered", {NormKind::Rms, 1e-6, true}}};
  for (const auto& [name, options] : kinds) {
    const bool biased = options.kind == NormKind::Layer;
    TestWeight weight(ctx_, load("norm.w")), bias(ctx_, load("norm.b"));
    Tape tape(ctx_);
    TapeScope scope(ctx_, &tape);
    const Tensor x = tape.watch(load("norm.x"));
    const Tensor y = ops::norm(ctx_, x, weight.get(), biased ? bias.get() : Weight{}, options);
    expect(fmt::format("norm.{}.y", name), y);
    tape.backward(ctx_, y, load("norm.dy"));
    expect(fmt::format("norm.{}.dx", name), tape.grad(x));
    expect(fmt::format("norm.{}.dw", name), weight.accumulator.main_grad);
    if (biased) expect(fmt::format("norm.{}.db", name), bias.accumulator.main_grad);
  }
}

TEST_P(GoldenElementwise, CrossEntropy) {
  const std::pair<const char*, double> kinds[] = {{"plain", 0}, {"smooth0.1", 0.1}};
  for (const auto& [name, smoothing] : kinds) {
    ops::CrossEntropyOptions options;
    options.smoothing = smoothing;
    Tape tape(ctx_);
    TapeScope scope(ctx_, &tape);
    const Tensor logits = tape.watch(load("ce.logits"));
    const Tensor loss =
        ops::cross_entropy(ctx_, logits, to_device(ctx_, golden_.tensor("ce.target")), options);
    expect(fmt::format("ce.{}.loss", name), loss);
    tape.backward(ctx_, loss, ctx_.full(loss.shape(), loss.dtype(), 1));
    expect(fmt::format("ce.{}.dlogits", name), tape.grad(logits));
  }
}

// The reference takes the z-loss as a mean over all rows, here it is part of each row's loss: the difference
// to the plain loss is compared.
TEST_P(GoldenElementwise, ZLoss) {
  std::vector<int64_t> labels(24, 3);  // none is ignored
  const Tensor target = ctx_.from_vector(labels, {24});
  std::vector<double> losses, gradients;
  for (const double z_loss : {1e-3, 0.0}) {
    ops::CrossEntropyOptions options;
    options.z_loss = z_loss;
    Tape tape(ctx_);
    TapeScope scope(ctx_, &tape);
    const Tensor logits = tape.watch(load("ce.logits"));
    const Tensor loss = ops::cross_entropy(ctx_, logits, target, options);
    tape.backward(ctx_, loss, ctx_.full(loss.shape(), loss.dtype(), 1));
    const double sign = z_loss > 0 ? 1.0 / 24 : -1.0 / 24;
    const std::vector<double> values = testing::to_doubles(ctx_, loss),
                              grads = testing::to_doubles(ctx_, tape.grad(logits));
    losses.resize(1);
    gradients.resize(grads.size());
    for (double value : values) losses[0] += sign * value;
    for (size_t i = 0; i < grads.size(); ++i) gradients[i] += sign * grads[i];
  }
  EXPECT_TRUE(
      is_close("z-loss", {1}, losses, testing::to_doubles(golden_.tensor("ce.zloss_1e-3")), kElementwise));
  EXPECT_TRUE(is_close("z-loss gradient", {24, 96}, gradients,
                       testing::to_doubles(golden_.tensor("ce.zloss_1e-3.dlogits")), kElementwise));
}

TEST_P(GoldenElementwise, CausalSoftmax) {
  // −∞ above the diagonal: the kernel itself knows no mask.
  Tensor x = load("softmax.x");
  const std::vector<double> values = testing::to_doubles(ctx_, x);
  std::vector<double> masked = values;
  for (size_t i = 0; i < masked.size(); ++i)
    if (i % 12 > i / 12 % 12) masked[i] = -HUGE_VAL;
  Tensor y = ctx_.empty_like(x), dx = ctx_.empty_like(x);
  x = testing::in_dtype(ctx_, ctx_.from_vector(masked, x.shape()), GetParam());
  ctx_.kernels->softmax(ctx_.kernel_context(), {x, y});
  expect("softmax.causal_cap0.y", y);
  ctx_.kernels->softmax_backward(ctx_.kernel_context(), {y, load("softmax.dy"), dx});
  expect("softmax.causal_cap0.dx", dx);
}

}  // namespace
}  // namespace megatron
