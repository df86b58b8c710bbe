#include "megatron/optimizer/sgd.h"

#include <gtest/gtest.h>

#include "support/golden.h"

// Twelve steps of a matrix, as PyTorch does them.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kElementwise;
using testing::to_device;

TEST(GoldenOptimizer, Sgd) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "optimizers");
  struct Case {
    const char* name;
    SgdOptions options;
  };
  for (const Case& c : {Case{"sgd", {.momentum = 0, .weight_decay = 0}},
                        Case{"sgd_momentum", {.momentum = 0.9, .weight_decay = 0.01}}}) {
    for (const DType dtype : {DType::F32, DType::F64}) {
      const Tensor gradients = to_device(ctx, golden.tensor("gW"), dtype);
      Parameter w("W", ShardSpec::whole({24, 16}), Initializer::constant(0));
      w.value = to_device(ctx, golden.tensor("W0"), dtype);
      Tensor gradient = ctx.empty(w.value.shape(), dtype);
      Sgd sgd(ctx, {{&w, 0, w.value, gradient}}, c.options);
      for (int64_t step = 1; step <= 12; ++step) {
        ctx.kernels->copy(ctx.kernel_context(), {gradients.select(0, step - 1), gradient});
        sgd.step(ctx, 0.01);
        EXPECT_TRUE(is_close(ctx, fmt::format("{} after step {} in {}", c.name, step, dtype), w.value,
                             golden.tensor(fmt::format("{}.W", c.name)).select(0, step - 1), kElementwise));
      }
    }
  }
}

}  // namespace
}  // namespace megatron
