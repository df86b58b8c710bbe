#include <gtest/gtest.h>

#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/qkv.h"
#include "megatron/ops/softmax.h"
#include "support/test_device.h"

namespace megatron {
namespace {

// A sum passes one value on to all its inputs as a tensor whose strides are 0. Every op must take such a
// gradient as it takes one that is stored in full.
class RepeatedGrad : public ::testing::Test {
 protected:
  RankContext ctx{testing::test_device(), 2};
  Tensor ids = ctx.from_vector(std::vector<int64_t>{3, 0, 2, 3, 1, 0}, {6});

  Tensor random(const Shape& shape) {
    Tensor out = ctx.empty(shape, DType::F32);
    ctx.kernels->random(ctx.kernel_context(),
                        {.out = out, .key = {1, 2}, .global_strides = shape.row_major_strides()});
    return out;
  }

  using Op = std::function<Tensor(const Tensor& x, const Weight& w)>;

  // The gradients of x and w.
  std::array<std::vector<float>, 2> gradients(const Op& op, const Tensor& x, const Tensor& w, bool repeated) {
    GradAccumulator accumulator;
    accumulator.main_grad = ctx.zeros(w.shape(), DType::F32);
    Tape tape(ctx);
    Tensor watched = tape.watch(x), y;
    {
      TapeScope scope(ctx, &tape);
      y = op(watched, {w, &accumulator});
    }
    Tensor one = ctx.full({1}, y.dtype(), 0.25);
    Tensor grad = repeated ? one.expand(y.shape()) : ctx.full(y.shape(), y.dtype(), 0.25);
    tape.backward(ctx, y, grad);
    Tensor dx = tape.grad(watched);
    return {dx ? ctx.to_vector<float>(dx) : std::vector<float>{},
            ctx.to_vector<float>(accumulator.main_grad)};
  }

  void check(const char* name, const Shape& x_shape, const Shape& w_shape, const Op& op) {
    SCOPED_TRACE(name);
    Tensor x = random(x_shape), w = random(w_shape);
    EXPECT_EQ(gradients(op, x, w, true), gradients(op, x, w, false));
  }
};

TEST_F(RepeatedGrad, IsTakenByEveryFusedOp) {
  check("linear", {6, 8}, {4, 8}, [&](auto& x, auto& w) { return ops::linear(ctx, x, w); });
  check("add_bias", {6, 8}, {8}, [&](auto& x, auto& w) { return ops::add_bias(ctx, x, w); });
  check("norm", {6, 8}, {8}, [&](auto& x, auto& w) { return ops::norm(ctx, x, w); });
  check("activation", {6, 8}, {8}, [&](auto& x, auto& w) { return ops::activation(ctx, Unary::Gelu, x, w); });
  check("gated", {6, 8}, {8}, [&](auto& x, auto& w) { return ops::gated_activation(ctx, {}, x, w); });
  check("softmax", {6, 8}, {8}, [&](auto& x, auto&) { return ops::softmax(ctx, x); });
  check("dropout", {6, 8}, {8}, [&](auto& x, auto&) { return ops::dropout(ctx, x, 0.5, {1, 1}); });
  check("mul", {6, 8}, {6, 8}, [&](auto& x, auto& w) { return ops::mul(ctx, x, w.value); });
  check("embedding", {1}, {4, 8}, [&](auto&, auto& w) { return ops::embedding(ctx, w, ids); });
  check("attention", {6, 2, 8}, {1},
        [&](auto& x, auto&) { return ops::attention(ctx, x, x.detach(), x.detach(), {.batch = 2}).o; });
  check("cross_entropy", {6, 8}, {1}, [&](auto& x, auto&) { return ops::cross_entropy(ctx, x, ids); });
  check("linear_cross_entropy", {6, 8}, {4, 8},
        [&](auto& x, auto& w) { return ops::linear_cross_entropy(ctx, x, w, ids, {}, 1, 4); });
}

}  // namespace
}  // namespace megatron
