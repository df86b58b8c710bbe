#include "megatron/training/step/qk_clip.h"

#include <gtest/gtest.h>

#include <limits>

#include "megatron/comm/run_ranks.h"
#include "megatron/optimizer/adam.h"
#include "support/gradcheck.h"

namespace megatron::testing {
namespace {

// A step that is skipped may have infinite scores; its weights stay as they are.
TEST(QkClip, FollowsTheUpdateGate) {
  run_ranks(1, [](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    const ParallelContext parallel = ParallelContext::from_sizes(world, {.world = 1});
    Parameter weight("qk", ShardSpec::whole({4, 2}), {});
    const Tensor value = random_tensor(ctx, {8}, 1, DType::F32), gradient = ctx.zeros({8}, DType::F32);
    Adam adam(ctx, {{&weight, 0, value, gradient}}, {});
    QkClipTarget target{.heads = 1, .groups = 1, .first_head = 0, .own_heads = 1};
    target.weights.push_back({&weight, [](int64_t row) {
                                return ClippedRow{0, row < 2 ? QkPart::query : QkPart::key};
                              }});
    ModelConfig config;
    config.qk_clip_threshold = 1;
    config.qk_clip_alpha = 0.5;
    QkClip clip(ctx, config, {&target}, parallel);
    const auto after = [&](double score, bool open) {
      ctx.kernels->fill(ctx.kernel_context(), {target.tracked(ctx, DType::F32), score});
      clip.clip(ctx, adam, ctx.full({1}, DType::Bool, open));
      return ctx.to_vector<float>(adam.slices()[0].value);
    };
    const auto before = ctx.to_vector<float>(value);
    EXPECT_EQ(after(std::numeric_limits<double>::infinity(), false), before);
    EXPECT_EQ(after(16, false), before);
    EXPECT_EQ(after(0.5, true), before) << "nothing is too large";
    const auto scaled = after(16, true);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(scaled[i], before[i] / 4, 1e-6) << i;
  });
}

}  // namespace
}  // namespace megatron::testing
