#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/parallel/pipeline/layer_split.h"
#include "megatron/parallel/pipeline/microbatches.h"
#include "megatron/parallel/pipeline/stage_layout.h"

namespace megatron {
namespace {

TEST(StageLayout, MiniLanguage) {
  EXPECT_EQ(parse_stages("E(tt|t|tt)*2|L").size(), parse_stages("Ett|t|tttt|t|tt|L").size());
  EXPECT_EQ(parse_stages("E(tt|t|tt)*2|L"), parse_stages("Ett|t|tttt|t|tt|L"));
  EXPECT_EQ(parse_stages("Et,(tt|)*2L"), parse_stages("Ettt|tt|L"));
  EXPECT_EQ(parse_stages("Et*3|(tt|)*29,m|L").size(), 32u);
  EXPECT_EQ(parse_stages("Et||tL")[1], StageLayers{});
  for (const char* wrong : {"Et(", "Et()*2L", "(Et", "t*", "*3", "t*2*2", "((t)*2)*2", "Et L"})
    EXPECT_THROW(parse_stages(wrong), ConfigError) << wrong;
  EXPECT_THROW(parse_stages("t*99999999999999999999"), ConfigError);
}

TEST(StageLayout, ValidationSaysWhatIsWrong) {
  const auto refusal = [](const char* text, int pp, int layers, int mtp) {
    try {
      StageLayout::parse(text, pp).validate(layers, mtp);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("Et|tL", 2, 2, 0), "");
  EXPECT_NE(refusal("Et|t", 2, 2, 0).find("last layer must be the loss"), std::string::npos);
  EXPECT_NE(refusal("EtE|tL", 2, 2, 0).find("2 embedding layers"), std::string::npos);
  EXPECT_NE(refusal("Et|tL", 2, 3, 0).find("num_layers is 3"), std::string::npos);
  EXPECT_NE(refusal("Et|tL", 2, 2, 1).find("mtp_num_layers is 1"), std::string::npos);
  EXPECT_NE(refusal("Etm|tL", 2, 2, 1).find("after the first"), std::string::npos);
  EXPECT_NE(refusal("Et|tm|mL|", 2, 2, 2), "");
  EXPECT_NE(refusal("Et|tm|mL", 3, 2, 2).find("several stages"), std::string::npos);
  EXPECT_NE(refusal("Ett|m|L|", 2, 2, 1).find("virtual stage 0 of rank 1"), std::string::npos);
  EXPECT_NE(refusal("|", 2, 0, 0), "");
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
  EXPECT_EQ(virtual_stages_for({30, 4, 1, {}, {}, true, true}, 4), 2);
  EXPECT_THROW(virtual_stages_for({30, 4, 1, {}, {}, true, true}, 3), ConfigError);
  EXPECT_THROW(virtual_stages_for({8, 4, 1, 2}, 1), ConfigError);
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
