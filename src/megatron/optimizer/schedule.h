#pragma once

#include <cstdint>

#include "megatron/config/schema/optimizer_config.h"

namespace megatron {

// The learning rate as a function of how far training has come, counted in samples.
struct LearningRateSchedule {
  LrDecay decay = LrDecay::linear;
  WsdDecay wsd_decay = WsdDecay::exponential;
  double initial = 0, peak = 0, minimum = 0;
  int64_t warmup = 0;        // from `initial` up to `peak`
  int64_t duration = 0;      // after it, `minimum`
  int64_t wsd_duration = 0;  // WSD: the last part of the duration, in which the rate falls

  double at(int64_t samples) const;
};

struct WeightDecaySchedule {
  WeightDecayGrowth growth = WeightDecayGrowth::constant;
  double start = 0, end = 0;
  int64_t duration = 0;

  double at(int64_t samples) const;
};

}  // namespace megatron
