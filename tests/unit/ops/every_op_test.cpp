// What must hold for every op of this layer, from one list of them: narrow dtypes follow fp64, the meta
// device gives the same shapes and costs, no tape gives the same values, and no rows are no problem.
#include <gtest/gtest.h>

#include "megatron/ops/activation.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/delta_rule.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/gated_linear.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/grouped_linear.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/softmax.h"
#include "megatron/ops/ssd.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::random_tensor;
using testing::TestWeight;
using Tensors = std::vector<Tensor>;
using Weights = std::vector<Weight>;

struct OpCase {
  const char* name;
  std::vector<Shape> inputs, weights;  // the first size of an input is its number of rows
  std::function<Tensors(RankContext&, const Tensors&, const Weights&)> run;
  bool wide_weights = false;  // they stay in the accumulation dtype

  DType weight_dtype(DType dtype) const { return wide_weights ? accumulation_dtype(dtype) : dtype; }
};

ops::Rotation rotation_for(RankContext& ctx, const Tensor& x) {
  std::vector<int64_t> positions(static_cast<size_t>(x.size(0)));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
  return ops::rope_tables(ctx, ctx.from_vector(positions, {x.size(0)}), ops::rope_frequencies(8, 10000),
                          x.dtype());
}

Tensor offsets_for(RankContext& ctx, int64_t rows) {
  auto n = static_cast<int32_t>(rows);
  return ctx.from_vector<int32_t>({0, n / 3, n / 3, n}, {4});
}

std::vector<OpCase> cases() {
  using C = RankContext&;
  using T = const Tensors&;
  using W = const Weights&;
  return {
      {"linear",
       {{12, 16}},
       {{24, 16}, {24}},
       [](C c, T x, W w) { return Tensors{ops::linear(c, x[0], w[0], w[1])}; }},
      {"add_bias", {{12, 16}}, {{16}}, [](C c, T x, W w) { return Tensors{ops::add_bias(c, x[0], w[0])}; }},
      {"norm", {{12, 16}}, {{16}}, [](C c, T x, W w) { return Tensors{ops::norm(c, x[0], w[0])}; }},
      {"norm_with_residual",
       {{12, 16}, {12, 16}},
       {{16}, {16}},
       [](C c, T x, W w) {
         auto [y, sum] = ops::norm_with_residual(c, x[0], x[1], w[0], w[1], {.kind = NormKind::Layer});
         return Tensors{y, sum};
       }},
      {"rope",
       {{12, 3, 10}},
       {},
       [](C c, T x, W) { return Tensors{ops::rope(c, x[0], rotation_for(c, x[0]))}; }},
      {"activation",
       {{12, 16}},
       {{16}},
       [](C c, T x, W w) { return Tensors{ops::activation(c, Unary::Gelu, x[0], w[0])}; }},
      {"gated_activation",
       {{12, 16}},
       {{16}},
       [](C c, T x, W w) { return Tensors{ops::gated_activation(c, {}, x[0], w[0])}; }},
      {"gated_linear",
       {{12, 32}},
       {{24, 16}, {24}},
       [](C c, T x, W w) { return Tensors{ops::gated_linear(c, {}, x[0], w[0], w[1])}; }},
      {"dropout",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::dropout(c, x[0], 0.25, {1, 2}, {}, x[1])};
       }},
      {"add",
       {{12, 16}, {1, 16}},
       {},
       [](C c, T x, W) { return Tensors{ops::add(c, x[0], ops::sum(c, x[1], 0))}; }},
      {"sub", {{12, 16}, {12, 1}}, {}, [](C c, T x, W) { return Tensors{ops::sub(c, x[0], x[1])}; }},
      {"mul", {{12, 16}, {12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::mul(c, x[0], x[1])}; }},
      {"div",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) { return Tensors{ops::div(c, x[0], ops::activation(c, Unary::Exp, x[1]))}; }},
      {"axpby",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) { return Tensors{ops::axpby(c, 2, x[0], -0.5, x[1])}; }},
      {"scale", {{12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::scale(c, x[0], 3)}; }},
      {"where",
       {{12, 16}, {12, 16}},
       {},
       [](C c, T x, W) {
         Tensor mask = ops::compare(c, Comparison::Less, x[0].detach(), x[1].detach());
         return Tensors{ops::where(c, mask, x[0], x[1])};
       }},
      {"shapes",
       {{12, 16}, {12, 4}},
       {},
       [](C c, T x, W) {
         auto parts = ops::chunk(c, x[0], 4, 1);
         Tensor joined = ops::concat(c, Tensors{parts[2], x[1], ops::slice(c, x[0], 1, 3, 5)}, 1);
         return Tensors{ops::contiguous(c, ops::transpose(c, joined, 0, 1)), ops::view(c, x[1], {-1, 2})};
       }},
      {"sum",
       {{12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::sum(c, x[0], 0), ops::sum(c, x[0], 1)};
       }},
      {"mean", {{12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::mean(c, x[0], 1)}; }},
      {"max",
       {{12, 16}},
       {},
       [](C c, T x, W) {
         return Tensors{ops::max(c, x[0], 1), ops::min(c, x[0], 1)};
       }},
      {"softmax", {{12, 16}}, {}, [](C c, T x, W) { return Tensors{ops::softmax(c, x[0])}; }},
      {"matmul",
       {{12, 16}, {12, 20}},
       {},
       [](C c, T x, W) { return Tensors{ops::matmul(c, x[0], x[1], {.transpose_a = true})}; }},
      {"grouped_linear",
       {{12, 16}},
       {{3, 8, 16}},
       [](C c, T x, W w) {
         return Tensors{ops::grouped_linear(c, x[0], w[0], offsets_for(c, x[0].size(0)))};
       }},
      {"causal_conv",
       {{12, 16}},
       {{16, 1, 4}, {16}},
       [](C c, T x, W w) { return Tensors{ops::causal_conv(c, x[0], w[0], w[1], {.count = 2, .cu = {}})}; }},
      {"gated_norm",
       {{12, 16}, {12, 16}},
       {{16}},
       [](C c, T x, W w) {
         return Tensors{ops::gated_norm(c, x[0], x[1], w[0], {.groups = 2, .sum_over_ranks = {}})};
       }},
      {"ssd",
       {{12, 16}, {12, 4}},
       {{4}, {4}, {4}},
       [](C c, T x, W w) {
         return Tensors{ops::ssd(c, x[0], x[1], {w[0], w[1], w[2]},
                                 {.heads = 4, .channels = 2, .groups = 2, .states = 2, .chunk = 4},
                                 {.count = 2, .cu = {}})};
       },
       true},
      {"delta_rule",
       {{12, 16}, {12, 4}, {12, 4}},
       {{4}, {4}},
       [](C c, T x, W w) {
         return Tensors{ops::delta_rule(
             c, x[0], x[1], x[2], w[0], w[1],
             {.key_heads = 2, .value_heads = 4, .key_channels = 2, .value_channels = 2, .chunk = 4},
             {.count = 2, .cu = {}})};
       },
       true},
  };
}

class CostSum final : public Tracer {
 public:
  void op(const char*, Phase, const Cost& cost) override {
    ++calls;
    flops += cost.flops;
    bytes += cost.bytes;
  }
  int calls = 0;
  double flops = 0, bytes = 0;
};

struct Outcome {
  Tensors outputs, grads;  // of inputs, then of weights
  CostSum cost;
};

Outcome run(RankContext& ctx, const OpCase& op, const Tensors& inputs, const Tensors& weights) {
  Outcome outcome;
  ctx.tracer = &outcome.cost;
  std::vector<std::unique_ptr<TestWeight>> held;
  Weights trainable;
  for (const Tensor& w : weights) {
    held.push_back(std::make_unique<TestWeight>(ctx, w));
    trainable.push_back(held.back()->get());
  }
  Tape tape(ctx);
  Tensors watched, seeds;
  for (const Tensor& x : inputs) watched.push_back(tape.watch(x));
  {
    TapeScope scope(ctx, &tape);
    outcome.outputs = op.run(ctx, watched, trainable);
  }
  for (size_t i = 0; i < outcome.outputs.size(); ++i)
    seeds.push_back(random_tensor(ctx, outcome.outputs[i].shape(), 100 + i, outcome.outputs[i].dtype()));
  tape.backward_data(ctx, outcome.outputs, seeds);
  tape.backward_weight(ctx);
  for (const Tensor& x : watched) outcome.grads.push_back(tape.grad(x));
  for (auto& weight : held) outcome.grads.push_back(weight->sink.main_grad);
  ctx.tracer = nullptr;
  return outcome;
}

Tensors make(RankContext& ctx, const std::vector<Shape>& shapes, uint64_t seed, DType dtype) {
  Tensors tensors;
  for (size_t i = 0; i < shapes.size(); ++i)
    tensors.push_back(random_tensor(ctx, shapes[i], seed + i, dtype));
  return tensors;
}

Tensor widened(RankContext& ctx, const Tensor& x) {
  Tensor wide = ctx.empty(x.shape(), DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {x.detach(), wide});
  return wide;
}

void expect_near(RankContext& ctx, const Tensor& found, const Tensor& exact, double tolerance,
                 const char* what) {
  ASSERT_TRUE(found.defined()) << what;
  auto a = ctx.to_vector<double>(widened(ctx, found)), b = ctx.to_vector<double>(exact);
  ASSERT_EQ(a.size(), b.size());
  double largest = 1;
  for (double v : b) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], tolerance * largest) << what << " element " << i;
}

TEST(EveryOp, NarrowDtypesFollowFp64ForwardAndBackward) {
  RankContext ctx;
  for (auto [dtype, tolerance] : {std::pair{DType::F32, 2e-6}, {DType::BF16, 2e-2}, {DType::F16, 2.5e-3}})
    for (const OpCase& op : cases()) {
      SCOPED_TRACE(fmt::format("{} in {}", op.name, dtype));
      Tensors inputs = make(ctx, op.inputs, 1, dtype),
              weights = make(ctx, op.weights, 50, op.weight_dtype(dtype));
      Tensors wide_inputs, wide_weights;
      for (const Tensor& x : inputs) wide_inputs.push_back(widened(ctx, x));
      for (const Tensor& w : weights) wide_weights.push_back(widened(ctx, w));
      Outcome narrow = run(ctx, op, inputs, weights), exact = run(ctx, op, wide_inputs, wide_weights);
      for (size_t i = 0; i < exact.outputs.size(); ++i) {
        EXPECT_EQ(narrow.outputs[i].dtype(), dtype);
        expect_near(ctx, narrow.outputs[i], exact.outputs[i], tolerance, "output");
      }
      for (size_t i = 0; i < exact.grads.size(); ++i) {
        EXPECT_EQ(narrow.grads[i].dtype(), i < inputs.size() ? dtype : DType::F32);
        expect_near(ctx, narrow.grads[i], exact.grads[i], tolerance, "gradient");
      }
    }
}

TEST(EveryOp, MetaDeviceGivesTheSameShapesAndCosts) {
  RankContext ctx, meta(kMeta);
  for (const OpCase& op : cases()) {
    SCOPED_TRACE(op.name);
    auto real = run(ctx, op, make(ctx, op.inputs, 1, DType::BF16),
                    make(ctx, op.weights, 50, op.weight_dtype(DType::BF16)));
    auto dry = run(meta, op, make(meta, op.inputs, 1, DType::BF16),
                   make(meta, op.weights, 50, op.weight_dtype(DType::BF16)));
    for (size_t i = 0; i < real.outputs.size(); ++i)
      EXPECT_EQ(real.outputs[i].shape(), dry.outputs[i].shape());
    for (size_t i = 0; i < real.grads.size(); ++i) EXPECT_EQ(real.grads[i].shape(), dry.grads[i].shape());
    EXPECT_GT(real.cost.calls, 0);
    EXPECT_GT(real.cost.bytes, 0);
    EXPECT_EQ(real.cost.calls, dry.cost.calls);
    EXPECT_EQ(real.cost.flops, dry.cost.flops);
    EXPECT_EQ(real.cost.bytes, dry.cost.bytes);
  }
}

TEST(EveryOp, WithoutATapeTheValuesAreTheSame) {
  RankContext ctx;
  for (const OpCase& op : cases()) {
    SCOPED_TRACE(op.name);
    Tensors inputs = make(ctx, op.inputs, 1, DType::F64), weights = make(ctx, op.weights, 50, DType::F64);
    Weights frozen;
    for (const Tensor& w : weights) frozen.push_back({w});
    Tensors plain = op.run(ctx, inputs, frozen), taped = run(ctx, op, inputs, weights).outputs;
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_FALSE(plain[i].grad_slot());
      EXPECT_EQ(ctx.to_vector<double>(plain[i]), ctx.to_vector<double>(taped[i]));
    }
  }
}

TEST(EveryOp, NoRowsAreNoProblem) {
  RankContext ctx(kCpu, 2);
  for (const OpCase& op : cases()) {
    SCOPED_TRACE(op.name);
    auto shapes = op.inputs;
    for (Shape& shape : shapes) shape[0] = 0;
    for (DType dtype : {DType::F32, DType::BF16}) {
      auto outcome =
          run(ctx, op, make(ctx, shapes, 1, dtype), make(ctx, op.weights, 50, op.weight_dtype(dtype)));
      for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(outcome.grads[i].shape(), shapes[i]);
      for (size_t i = shapes.size(); i < outcome.grads.size(); ++i)
        for (float v : ctx.to_vector<float>(outcome.grads[i])) EXPECT_EQ(v, 0.f);
    }
  }
}

}  // namespace
}  // namespace megatron
