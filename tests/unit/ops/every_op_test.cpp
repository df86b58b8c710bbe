// What must hold for every op of this layer, from one list of them: gradients match differences, narrow
// dtypes follow fp64, the meta device gives the same shapes and costs, no tape gives the same values,
// recompute and packed saved tensors give the same gradients, and no rows are no problem.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "megatron/autograd/recompute.h"
#include "support/gradcheck.h"
#include "support/temp_dir.h"
#include "unit/ops/op_cases.h"

namespace megatron {
namespace {

using testing::op_cases;
using testing::OpCase;
using testing::random_tensor;
using testing::Tensors;
using testing::TestWeight;
using testing::Weights;

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
  for (auto& weight : held) outcome.grads.push_back(weight->accumulator.main_grad);
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

// An op that a header declares stands in the list of cases, or in a test of its own that checks gradients.
TEST(EveryOp, IsTested) {
  namespace fs = std::filesystem;
  const fs::path root = MEGATRON_SOURCE_DIR;
  // Parts of gradients, what fills the cache of decoding, weights that are only read, and what a loss notes.
  const std::set<std::string> without_gradient = {
      "sum_to",           "attention_backward", "sinks_gradient",
      "apply_activation", "put_rows",           "split_qkv_to_cache",
      "to_device",        "quantize_weight",    "log_sum_exp"};
  std::string tests;
  for (const auto& entry : fs::directory_iterator(root / "tests/unit/ops")) {
    std::string text = testing::read_text(entry.path().string());
    if (entry.path().filename() == "op_cases.h" || text.find("gradcheck(") != std::string::npos)
      tests += text;
  }
  const std::regex declaration(R"(\n[A-Za-z:<>]+ ([a-z_]+)\(RankContext& ctx,)");
  int ops = 0;
  for (const auto& entry : fs::directory_iterator(root / "src/megatron/ops")) {
    std::string text = testing::read_text(entry.path().string());
    if (entry.path().extension() != ".h" || entry.path().filename() == "check.h") continue;
    for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
      const std::string name = it->str(1);
      if (without_gradient.contains(name)) continue;
      EXPECT_NE(tests.find("ops::" + name + "("), std::string::npos)
          << name << " of " << entry.path().filename() << " has no gradient check";
      ++ops;
    }
  }
  EXPECT_GT(ops, 50);
}

TEST(EveryOp, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  for (const OpCase& op : op_cases()) {
    if (std::string_view(op.name) == "quantize") continue;  // rounding has no gradient
    SCOPED_TRACE(op.name);
    auto shapes = op.inputs;
    for (Shape& shape : shapes) shape[0] = shape[0] == 12 ? 4 : shape[0];  // fewer rows are enough
    testing::gradcheck(ctx, op.run, make(ctx, shapes, 1, DType::F64), make(ctx, op.weights, 50, DType::F64));
  }
}

TEST(EveryOp, RecomputeAndPackingGiveTheSameGradients) {
  // Keeps saved tensors as copies elsewhere.
  struct Copies final : SavedTensorPacker {
    struct Copy final : PackedTensor {
      Tensor copy;
      Tensor unpack(RankContext&) override { return copy; }
    };
    std::unique_ptr<PackedTensor> pack(RankContext& ctx, const Tensor& tensor) override {
      auto packed = std::make_unique<Copy>();
      packed->copy = ctx.empty(tensor.shape(), tensor.dtype());
      ctx.kernels->copy(ctx.kernel_context(), {tensor.detach(), packed->copy});
      return packed;
    }
  } copies;
  RankContext ctx(testing::test_device());
  for (const OpCase& op : op_cases()) {
    SCOPED_TRACE(op.name);
    Tensors inputs = make(ctx, op.inputs, 1, DType::F64), weights = make(ctx, op.weights, 50, DType::F64);
    OpCase again = op;
    again.run = [&](RankContext& ctx, const Tensors& x, const Weights& w) {
      return recompute(ctx, x, [&op, w](RankContext& c, std::span<const Tensor> in) {
        return op.run(c, {in.begin(), in.end()}, w);
      });
    };
    Outcome plain = run(ctx, op, inputs, weights), twice = run(ctx, again, inputs, weights);
    ctx.packer = &copies;
    Outcome packed = run(ctx, op, inputs, weights);
    ctx.packer = nullptr;
    for (size_t i = 0; i < plain.grads.size(); ++i) {
      EXPECT_EQ(ctx.to_vector<double>(plain.grads[i]), ctx.to_vector<double>(twice.grads[i]));
      EXPECT_EQ(ctx.to_vector<double>(plain.grads[i]), ctx.to_vector<double>(packed.grads[i]));
    }
  }
}

TEST(EveryOp, NarrowDtypesFollowFp64ForwardAndBackward) {
  RankContext ctx(testing::test_device());
  for (auto [dtype, tolerance] : {std::pair{DType::F32, 2e-6}, {DType::BF16, 2e-2}, {DType::F16, 2.5e-3}})
    for (const OpCase& op : op_cases()) {
      SCOPED_TRACE(fmt::format("{} in {}", op.name, dtype));
      Tensors inputs = make(ctx, op.inputs, 1, dtype),
              weights = make(ctx, op.weights, 50, op.weight_dtype(dtype));
      Tensors wide_inputs, wide_weights;
      for (const Tensor& x : inputs) wide_inputs.push_back(widened(ctx, x));
      for (const Tensor& w : weights) wide_weights.push_back(widened(ctx, w));
      Outcome narrow = run(ctx, op, inputs, weights), exact = run(ctx, op, wide_inputs, wide_weights);
      for (size_t i = 0; i < exact.outputs.size(); ++i) {
        EXPECT_EQ(narrow.outputs[i].dtype(), op.wide_output ? accumulation_dtype(dtype) : dtype);
        expect_near(ctx, narrow.outputs[i], exact.outputs[i], tolerance, "output");
      }
      for (size_t i = 0; i < exact.grads.size(); ++i) {
        EXPECT_EQ(narrow.grads[i].dtype(), i < inputs.size() ? dtype : DType::F32);
        expect_near(ctx, narrow.grads[i], exact.grads[i], tolerance, "gradient");
      }
    }
}

TEST(EveryOp, MetaDeviceGivesTheSameShapesAndCosts) {
  RankContext ctx(testing::test_device()), meta(kMeta);
  for (const OpCase& op : op_cases()) {
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
    // A plan does not know the device. On a GPU one kernel may do what it counts as two.
    const bool together = ctx.device.is_cuda() && std::string_view(op.name).starts_with("linear_activated");
    EXPECT_LE(real.cost.calls, dry.cost.calls);
    EXPECT_LE(real.cost.flops, dry.cost.flops);
    EXPECT_LE(real.cost.bytes, dry.cost.bytes);
    EXPECT_TRUE(together || real.cost.calls == dry.cost.calls);
    EXPECT_TRUE(together || real.cost.flops == dry.cost.flops);
    EXPECT_TRUE(together || real.cost.bytes == dry.cost.bytes);
  }
}

TEST(EveryOp, WithoutATapeTheValuesAreTheSame) {
  RankContext ctx(testing::test_device());
  for (const OpCase& op : op_cases()) {
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
  RankContext ctx(testing::test_device(), 2);
  for (const OpCase& op : op_cases()) {
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
