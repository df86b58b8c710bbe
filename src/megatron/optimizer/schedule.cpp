#include "megatron/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "megatron/base/error.h"

namespace megatron {
namespace {

double half_cosine(double x) { return 0.5 * (std::cos(std::numbers::pi * x) + 1); }  // 1 at 0, 0 at 1

double wsd_coefficient(WsdDecay decay, double q) {
  switch (decay) {
    case WsdDecay::linear:
      return 1 - q;
    case WsdDecay::cosine:
      return half_cosine(q);
    case WsdDecay::exponential:
      return 2 * std::pow(0.5, q) - 1;
    case WsdDecay::minus_sqrt:
      return 1 - std::sqrt(q);
  }
  fail("learning rate: unknown WSD decay");
}

}  // namespace

double LearningRateSchedule::at(int64_t samples) const {
  auto n = static_cast<double>(samples), w = static_cast<double>(warmup);
  if (warmup > 0 && samples <= warmup) return initial + (peak - initial) * n / w;
  if (decay == LrDecay::constant) return peak;
  if (samples > duration) return minimum;
  if (decay == LrDecay::inverse_square_root)
    return std::max(minimum, peak * std::sqrt(std::max(w, 1.0)) / std::sqrt(std::max(n, 1.0)));
  double coefficient = 1;
  if (decay == LrDecay::wsd) {
    int64_t begin = duration - wsd_duration;
    if (samples > begin)
      coefficient = wsd_coefficient(wsd_decay,
                                    static_cast<double>(samples - begin) / static_cast<double>(wsd_duration));
  } else {
    double r = (n - w) / static_cast<double>(duration - warmup);
    coefficient = decay == LrDecay::linear ? 1 - r : half_cosine(r);
  }
  return minimum + coefficient * (peak - minimum);
}

double WeightDecaySchedule::at(int64_t samples) const {
  if (samples > duration) return end;
  double r = duration > 0 ? static_cast<double>(samples) / static_cast<double>(duration) : 1;
  switch (growth) {
    case WeightDecayGrowth::constant:
      return end;
    case WeightDecayGrowth::linear:
      return start + r * (end - start);
    case WeightDecayGrowth::cosine:
      return start + half_cosine(1 - r) * (end - start);
  }
  fail("weight decay: unknown growth");
}

}  // namespace megatron
