#include <gtest/gtest.h>

#include "support/golden.h"

// The Adam kernel through twelve steps of two parameters, and clipping by the global norm, as PyTorch does
// them.
namespace megatron {
namespace {

using testing::golden_json;
using testing::golden_tensors;
using testing::is_close;
using testing::kElementwise;
using testing::to_device;

struct AdamCase {
  const char* name;
  double lr, beta1, beta2, epsilon, weight_decay;
  bool decoupled;
};

TEST(GoldenOptimizer, Adam) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "optimizers");
  const AdamCase cases[] = {{"adamw", 3e-3, 0.9, 0.95, 1e-8, 0.1, true},
                            {"adamw_eps1e-5", 3e-3, 0.9, 0.999, 1e-5, 0.01, true},
                            {"adam_l2", 3e-3, 0.9, 0.95, 1e-8, 0.1, false}};
  for (const AdamCase& c : cases) {
    for (const DType dtype : {DType::F32, DType::F64}) {
      const auto make = [&](const char* start, const char* gradients) {
        AdamTensor tensor;
        tensor.parameter = to_device(ctx, golden.tensor(start), dtype);
        tensor.gradient = to_device(ctx, golden.tensor(gradients), dtype);  // of all steps, sliced below
        tensor.first = ctx.zeros(tensor.parameter.shape(), dtype);
        tensor.second = ctx.zeros(tensor.parameter.shape(), dtype);
        tensor.weight_decay = c.weight_decay;
        return tensor;
      };
      const AdamTensor w = make("W0", "gW"), b = make("b0", "gb");
      for (int64_t step = 1; step <= 12; ++step) {
        std::vector<AdamTensor> tensors = {w, b};
        for (AdamTensor& tensor : tensors) tensor.gradient = tensor.gradient.select(0, step - 1);
        AdamArgs args;
        args.tensors = tensors;
        args.lr = c.lr;
        args.beta1 = c.beta1;
        args.beta2 = c.beta2;
        args.epsilon = c.epsilon;
        args.step = step;
        args.decoupled = c.decoupled;
        ctx.kernels->adam(ctx.kernel_context(), args);
        const std::string at = fmt::format(" after step {} in {}", step, dtype);
        EXPECT_TRUE(is_close(ctx, fmt::format("{}.W{}", c.name, at), w.parameter,
                             golden.tensor(fmt::format("{}.W", c.name)).select(0, step - 1), kElementwise));
        EXPECT_TRUE(is_close(ctx, fmt::format("{}.b{}", c.name, at), b.parameter,
                             golden.tensor(fmt::format("{}.b", c.name)).select(0, step - 1), kElementwise));
      }
      if (std::string_view(c.name) != "adamw") continue;
      EXPECT_TRUE(is_close(ctx, "exp_avg", w.first, golden.tensor("adamw.exp_avg_W"), kElementwise));
      EXPECT_TRUE(is_close(ctx, "exp_avg_sq", w.second, golden.tensor("adamw.exp_avg_sq_W"), kElementwise));
    }
  }
}

// bf16 parameters with an fp32 master copy: what the model reads is the rounded master, bit for bit.
TEST(GoldenOptimizer, AdamWithMasterWeights) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "optimizers");
  AdamTensor w;
  w.parameter = to_device(ctx, golden.tensor("W0"), DType::BF16);
  w.master = testing::in_dtype(ctx, w.parameter, DType::F32);
  w.first = ctx.zeros(w.parameter.shape(), DType::F32);
  w.second = ctx.zeros(w.parameter.shape(), DType::F32);
  w.weight_decay = 0.1;
  const Tensor gradients = to_device(ctx, golden.tensor("gW"), DType::BF16);
  const Tensor expected = golden.tensor("adamw_bf16_master.W_bits");
  int different = 0;
  for (int64_t step = 1; step <= 12; ++step) {
    Tensor gradient = ctx.empty(w.parameter.shape(), DType::F32);
    ctx.kernels->copy(ctx.kernel_context(), {gradients.select(0, step - 1), gradient});
    w.gradient = gradient;
    AdamArgs args;
    args.tensors = {&w, 1};
    args.lr = 3e-3;
    args.beta1 = 0.9;
    args.beta2 = 0.95;
    args.epsilon = 1e-8;
    args.step = step;
    ctx.kernels->adam(ctx.kernel_context(), args);
    const auto* bits = expected.select(0, step - 1).data<int16_t>();
    for (bf16 value : ctx.to_vector<bf16>(w.parameter))
      different += value.bits != static_cast<uint16_t>(*bits++);
  }
  EXPECT_EQ(different, 0) << "of " << expected.numel() << " values";
  EXPECT_TRUE(
      is_close(ctx, "master", w.master, golden.tensor("adamw_bf16_master.final_master"), kElementwise));
}

TEST(GoldenOptimizer, ClippingByTheGlobalNorm) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "clip");
  const Json settings = golden_json("numerics", "clip");
  const std::vector<Tensor> gradients = {to_device(ctx, golden.tensor("g0")),
                                         to_device(ctx, golden.tensor("g1")),
                                         to_device(ctx, golden.tensor("g2"))};
  Tensor sum = ctx.zeros({1}, DType::F64);
  SumSquaresArgs args;
  args.tensors = gradients;
  args.out = sum;
  ctx.kernels->sum_squares(ctx.kernel_context(), args);
  const double norm = std::sqrt(ctx.item(sum));
  for (const char* name : {"l2_1", "l2_100_noclip"}) {
    EXPECT_NEAR(norm, settings.at(name).at("total_norm").as_double(), 1e-6 * norm);
    const double coefficient = std::min(1.0, settings.at(name).at("max_norm").as_double() / (norm + 1e-6));
    for (size_t i = 0; i < gradients.size(); ++i) {
      Tensor clipped = ctx.empty_like(gradients[i]);
      AxpbyArgs scale;
      scale.alpha = coefficient;
      scale.a = gradients[i];
      scale.out = clipped;
      ctx.kernels->axpby(ctx.kernel_context(), scale);
      const std::string key = fmt::format("{}.g{}", name, i);
      EXPECT_TRUE(is_close(ctx, key, clipped, golden.tensor(key), kElementwise));
    }
  }
}

}  // namespace
}  // namespace megatron
