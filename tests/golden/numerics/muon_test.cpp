#include "megatron/optimizer/muon.h"

#include <gtest/gtest.h>

#include "megatron/optimizer/lion.h"
#include "support/golden.h"

// Eight steps of matrices of three shapes with Muon, twelve of one with Lion.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kElementwise;
using testing::to_device;

// Golden values run Newton-Schulz in fp32; PyTorch's own in bf16.
constexpr testing::Tolerance kFp32Reference{1e-4, 0};

MuonOptions golden_options() {
  return {.weight_decay = 0.1,
          .nesterov = true,
          .scale = MuonScale::shape_scaling,
          .steps = newton_schulz_steps(MuonCoefficients::simple, 5)};
}

TEST(GoldenOptimizer, Muon) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "muon");
  for (int i = 0; i < 3; ++i)
    for (const DType dtype : {DType::F32, DType::F64}) {
      const Tensor gradients = to_device(ctx, golden.tensor(fmt::format("{}.g", i)), dtype);
      const Tensor start = golden.tensor(fmt::format("{}.W0", i));
      Parameter w("W", ShardSpec::whole(start.shape()), Initializer::constant(0));
      w.value = to_device(ctx, start, dtype);
      Tensor gradient = ctx.empty(w.value.shape(), dtype);
      Muon muon(ctx, {{&w, 0, w.value, gradient}}, golden_options());
      for (int64_t step = 0; step < 8; ++step) {
        ctx.kernels->copy(ctx.kernel_context(), {gradients.select(0, step), gradient});
        muon.step(ctx, 2e-2);
        EXPECT_TRUE(is_close(ctx, fmt::format("case {} after step {} in {}", i, step + 1, dtype), w.value,
                             golden.tensor(fmt::format("{}.fp32_ref.W", i)).select(0, step), kFp32Reference));
      }
    }
}

TEST(GoldenOptimizer, MuonOfPyTorch) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "muon");
  for (int i = 0; i < 3; ++i)
    for (const bool match_adam : {false, true}) {
      const Tensor gradients = to_device(ctx, golden.tensor(fmt::format("{}.g", i)));
      const Tensor start = golden.tensor(fmt::format("{}.W0", i));
      const Tensor want =
          golden.tensor(fmt::format("{}.torch_{}.W", i, match_adam ? "match_rms_adamw" : "original"));
      Parameter w("W", ShardSpec::whole(start.shape()), Initializer::constant(0));
      w.value = to_device(ctx, start);
      Tensor gradient = ctx.empty(w.value.shape(), DType::F32);
      MuonOptions options = golden_options();
      if (match_adam) {
        options.scale = MuonScale::spectral;
        options.extra_scale = 0.2;
      }
      Muon muon(ctx, {{&w, 0, w.value, gradient}}, options);
      for (int64_t step = 0; step < 8; ++step) {
        const auto before = testing::to_doubles(step == 0 ? start : want.select(0, step - 1));
        ctx.kernels->copy(ctx.kernel_context(), {gradients.select(0, step), gradient});
        // From PyTorch's own weights, so that differences of earlier steps do not add up.
        ctx.kernels->copy(ctx.kernel_context(),
                          {to_device(ctx, step == 0 ? start : want.select(0, step - 1)), w.value});
        muon.step(ctx, 2e-2);
        const auto got = ctx.to_vector<float>(w.value);
        const auto there = testing::to_doubles(want.select(0, step));
        double update = 0, apart = 0;
        for (size_t j = 0; j < got.size(); ++j) {
          update += (there[j] - before[j]) * (there[j] - before[j]);
          apart += (there[j] - got[j]) * (there[j] - got[j]);
        }
        EXPECT_LE(std::sqrt(apart), 3e-2 * std::sqrt(update)) << "case " << i << ", step " << step;
      }
    }
}

TEST(GoldenOptimizer, Lion) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "optimizers");
  for (const DType dtype : {DType::F32, DType::F64}) {
    const Tensor gradients = to_device(ctx, golden.tensor("gW"), dtype);
    Parameter w("W", ShardSpec::whole({24, 16}), Initializer::constant(0));
    w.value = to_device(ctx, golden.tensor("W0"), dtype);
    Tensor gradient = ctx.empty(w.value.shape(), dtype);
    Lion lion(ctx, {{&w, 0, w.value, gradient}}, {.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1});
    for (int64_t step = 0; step < 12; ++step) {
      ctx.kernels->copy(ctx.kernel_context(), {gradients.select(0, step), gradient});
      lion.step(ctx, 1e-3);
      EXPECT_TRUE(is_close(ctx, fmt::format("after step {} in {}", step + 1, dtype), w.value,
                           golden.tensor("lion.W").select(0, step), kElementwise));
    }
  }
}

}  // namespace
}  // namespace megatron
