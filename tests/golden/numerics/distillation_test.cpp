#include <gtest/gtest.h>

#include "megatron/ops/kl_divergence.h"
#include "support/golden.h"

// Knowledge distillation as PyTorch computes it: temperature² · the masked mean of KL(teacher ‖ student).
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kElementwise;
using testing::kGradient;
using testing::to_device;
using testing::to_doubles;

TEST(GoldenDistillation, ForwardKl) {
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "rl_losses");
  const Shape rows{80, 32};
  const std::vector<double> mask = to_doubles(golden.tensor("mask"));
  double count = 0;
  for (double one : mask) count += one;
  for (const double temperature : {1.0, 2.0}) {
    const auto named = [&](const char* what) {
      return golden.tensor(fmt::format("kd.forward_kl.tau{}.{}", temperature, what));
    };
    Tape tape(ctx);
    const Tensor student = tape.watch(to_device(ctx, golden.tensor("policy_logits")).view(rows));
    Tensor losses;
    {
      TapeScope scope(ctx, &tape);
      losses = ops::kl_divergence(ctx, student, to_device(ctx, golden.tensor("ref_logits")).view(rows),
                                  {.temperature = temperature});
    }
    EXPECT_TRUE(is_close(ctx, "divergences", losses.detach(), named("per_token"), kElementwise));
    std::vector<float> weights;
    for (double one : mask) weights.push_back(static_cast<float>(one * temperature * temperature / count));
    const std::vector<double> each = to_doubles(ctx, losses);
    double loss = 0;
    for (size_t i = 0; i < each.size(); ++i) loss += each[i] * static_cast<double>(weights[i]);
    EXPECT_NEAR(loss, to_doubles(named("loss"))[0], 1e-6);
    tape.backward(ctx, losses, ctx.from_vector(weights, {80}));
    EXPECT_TRUE(is_close(ctx, "gradient", tape.grad(student), named("dlogits"), kGradient));
  }
}

}  // namespace
}  // namespace megatron
