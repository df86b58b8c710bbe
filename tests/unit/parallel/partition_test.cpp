#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/parallel/pipeline/layer_split.h"
#include "megatron/parallel/pipeline/microbatches.h"
#include "megatron/parallel/pipeline/stage_layout.h"

namespace megatron {
namespace {

TEST(StageLayout, ValidationSaysWhatIsWrong) {
  EXPECT_FALSE(StageLayout::parse("Et|tL", 2).validate(2, 0));
  EXPECT_TRUE(StageLayout::parse("Ett|t|tm|L", 2).validate(4, 1));  // on rank 0, not the last
  EXPECT_THROW(StageLayout::parse("Et|tL", 3), ConfigError);
  try {
    StageLayout::parse("Et|tL", 2).validate(3, 0);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "pipeline layout: it has 2 layers (t) and the model 3");
  }
}

TEST(LayerSplit, CoversEveryLayerOnce) {
  for (const LayerSplit& split :
       {LayerSplit{24, 4, 3}, LayerSplit{22, 4, 2, {}, {}, true, true}, LayerSplit{20, 4, 2, 2, 6},
        LayerSplit{6, 2, 1, 4, 2}, LayerSplit{7, 4, 1, 1}, LayerSplit{2, 4, 1, {}, {}, true, true}}) {
    int next = 0;
    for (int k = 0; k < split.pp * split.vpp; ++k) {
      const LayerRange range = stage_layers(split, k % split.pp, k / split.pp);
      EXPECT_EQ(range.first, next);
      next += range.count;
    }
    EXPECT_EQ(next, split.num_layers);
  }
}

TEST(LayerSplit, Refusals) {
  EXPECT_THROW(stage_layers({10, 4}, 0), ConfigError);
  EXPECT_THROW(stage_layers({8, 2, 3}, 0), ConfigError);
  EXPECT_THROW(stage_layers({8, 4, 1, 3, 4}, 0), ConfigError);
  EXPECT_THROW(stage_layers({8, 2, 1, 3, 4}, 0), ConfigError);  // one layer is left and no stage
  EXPECT_THROW(stage_layers({8, 1, 1, 4, 4}, 0), ConfigError);
  EXPECT_THROW(stage_layers({8, 4, 1, 5, 5}, 0), ConfigError);
  EXPECT_THROW(stage_layers({8, 4, 2, 3, 3}, 0), ConfigError);
  EXPECT_THROW(stage_layers({8, 4, 1, 2, 2, true}, 0), ConfigError);
  EXPECT_THROW(stage_layers({8, 4}, 4), Error);
}

TEST(BatchPlan, ScheduleText) {
  const auto steps = parse_batch_schedule(" 1.5k:16,0:8  2M:32", 10);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].from_sample, 150);
  EXPECT_EQ(steps[2].from_sample, 200'000);
  for (const char* wrong : {"", "0:0", "0:-4", "0:8 x:9", "0:8 5", "0:8 1KK:9", "0:nan", "0:8 1e30:9"})
    EXPECT_THROW(parse_batch_schedule(wrong, {}), ConfigError) << wrong;
  const BatchPlan plan({.micro_batch = 3, .data_parallel = 4, .step_schedule = "0:8 100:24"});
  EXPECT_THROW(plan.check_divisible(), ConfigError);
  EXPECT_EQ(BatchPlan({.micro_batch = 3, .data_parallel = 4}).at(7).global_batch, 12);
  EXPECT_THROW(BatchPlan({.micro_batch = 0}), ConfigError);
}

}  // namespace
}  // namespace megatron
