#include "megatron/training/setup/run_settings.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

Config small_run() {
  Config config;
  config.train.global_batch_size = 4;
  config.optimizer.lr = 1;
  config.optimizer.min_lr = 0.25;
  config.optimizer.weight_decay = 0.1;
  return config;
}

TEST(RateSchedule, PlainRunsHaveOneRateAndDecay) {
  const RateSchedule schedule = rate_schedule(small_run(), 10);
  for (const int64_t samples : {0, 20, 40, 80}) {
    const Rates rates = schedule.at(samples);
    EXPECT_EQ(rates.lr, schedule.lr.at(samples));
    EXPECT_FALSE(rates.decoupled_lr);
    EXPECT_EQ(rates.weight_decay, 0.1);
  }
}

TEST(RateSchedule, DecoupledRatesFollowTheSameCurve) {
  Config config = small_run();
  config.optimizer.decoupled_lr = 3;
  EXPECT_EQ(rate_schedule(config, 10).at(40).decoupled_lr, 0.25);  // min_lr is both's
  config.optimizer.decoupled_min_lr = 1;
  const RateSchedule schedule = rate_schedule(config, 10);
  EXPECT_EQ(schedule.at(0).decoupled_lr, 3);
  EXPECT_EQ(schedule.at(20).decoupled_lr, 2);  // linear: half of the way
  EXPECT_EQ(schedule.at(20).lr, 0.625);
  EXPECT_EQ(schedule.at(100).decoupled_lr, 1);
}

TEST(RateSchedule, WeightDecayGrowsOverTheRun) {
  Config config = small_run();
  config.scheduler.start_weight_decay = 0.5;
  config.scheduler.end_weight_decay = 1;
  EXPECT_EQ(rate_schedule(config, 10).at(20).weight_decay, 0.1);  // without a style, no growth
  config.scheduler.weight_decay_incr_style = WeightDecayGrowth::linear;
  EXPECT_EQ(rate_schedule(config, 10).at(20).weight_decay, 0.75);
  config.scheduler.start_weight_decay.reset();
  EXPECT_EQ(rate_schedule(config, 10).at(0).weight_decay, 0.1);
}

}  // namespace
}  // namespace megatron
