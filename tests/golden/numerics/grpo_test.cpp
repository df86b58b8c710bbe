#include <gtest/gtest.h>

#include "megatron/models/objectives/grpo_objective.h"
#include "megatron/ops/cross_entropy.h"
#include "support/golden.h"

// PPO's clipped loss and GRPO's with a KL to the reference, as PyTorch computes them and their gradients.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kGradient;
using testing::to_device;
using testing::to_doubles;

constexpr int64_t kRows = 8, kTokens = 10;

struct Case {
  std::string name;
  GrpoOptions options;
  bool by_group = false;  // advantages of groups, and a mean over sequences; else masked means
};

class GoldenGrpo : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenGrpo, LossAndGradient) {
  const Case& test = GetParam();
  RankContext ctx(testing::test_device());
  const SafetensorsFile golden = golden_tensors("numerics", "rl_losses");
  const std::vector<double> mask = to_doubles(golden.tensor("mask")),
                            old = to_doubles(golden.tensor("old_logprobs")),
                            reference = to_doubles(golden.tensor("ref_logprobs")),
                            each = to_doubles(golden.tensor("advantages")),
                            groups = to_doubles(golden.tensor("grpo.adv_std")),
                            ids = to_doubles(golden.tensor("ids"));
  std::vector<int64_t> labels;
  std::vector<float> weights, values(static_cast<size_t>(GrpoValues::count * kRows * kTokens));
  double all = 0;
  for (const double one : mask) all += one;
  for (size_t i = 0; i < mask.size(); ++i) {
    const size_t row = i / kTokens;
    double own = 0;
    for (size_t t = 0; t < kTokens; ++t) own += mask[row * kTokens + t];
    labels.push_back(mask[i] > 0 ? static_cast<int64_t>(ids[i]) : -100);
    weights.push_back(static_cast<float>(1 / (test.by_group ? own * kRows : all)));
    if (mask[i] == 0) continue;
    const auto set = [&](GrpoValues::Row kind, double value) {
      values[static_cast<size_t>(kind) * mask.size() + i] = static_cast<float>(value);
    };
    set(GrpoValues::advantage, test.by_group ? groups[row] : each[i]);
    set(GrpoValues::old_log_prob, old[i]);
    set(GrpoValues::reference_log_prob, reference[i]);
    set(GrpoValues::sampling_weight, 1);
  }
  const int64_t tokens = kRows * kTokens;
  Tape tape(ctx);
  const Tensor logits = tape.watch(to_device(ctx, golden.tensor("policy_logits")).view({tokens, 32}));
  Tensor loss;
  {
    TapeScope scope(ctx, &tape);
    const Tensor wanted = ctx.from_vector(labels, {tokens});
    loss = grpo_loss(ctx, ops::cross_entropy(ctx, logits, wanted), wanted,
                     ctx.from_vector(values, {GrpoValues::count, tokens}), ctx.from_vector(weights, {tokens}),
                     test.options);
  }
  EXPECT_NEAR(to_doubles(ctx, loss.detach())[0], to_doubles(golden.tensor(test.name + ".loss"))[0], 2e-6);
  tape.backward(ctx, loss, ctx.full({1}, DType::F32, 1));
  EXPECT_TRUE(is_close(ctx, "gradient", tape.grad(logits), golden.tensor(test.name + ".dlogits"), kGradient));
}

INSTANTIATE_TEST_SUITE_P(
    Losses, GoldenGrpo,
    ::testing::Values(Case{"ppo_clip0.2", {.clamp_lower = 0.2, .clamp_upper = 0.2}},
                      Case{"ppo_clip_higher", {.clamp_lower = 0.2, .clamp_upper = 0.28}},
                      Case{"grpo", {.clamp_lower = 0.2, .clamp_upper = 0.2, .kl_beta = 0.04}, true}));

}  // namespace
}  // namespace megatron
