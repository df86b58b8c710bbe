#include "megatron/ops/rope_frequencies.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron::ops {
namespace {

constexpr double kTwoPi = 6.283185307179586477;

std::vector<double> plain(int64_t width, double theta) {
  std::vector<double> inverse(static_cast<size_t>(width / 2));
  for (size_t i = 0; i < inverse.size(); ++i)
    inverse[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(width));
  return inverse;
}

// Long waves are stretched, short ones kept, those between blended.
void scale_llama3(std::vector<double>& inverse, const RopeScaling& s) {
  double original = static_cast<double>(s.original_max_position);
  for (double& f : inverse) {
    double wavelength = kTwoPi / f;
    if (wavelength > original / s.low_freq_factor) {
      f /= s.factor;
    } else if (wavelength >= original / s.high_freq_factor) {
      double smooth = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      f = (1 - smooth) * f / s.factor + smooth * f;
    }
  }
}

double scale_yarn(std::vector<double>& inverse, int64_t width, double theta, const RopeScaling& s) {
  double d = static_cast<double>(width), original = static_cast<double>(s.original_max_position);
  // The frequency that turns `rotations` times over the original length.
  auto dimension = [&](double rotations) {
    return d * std::log(original / (kTwoPi * rotations)) / (2 * std::log(theta));
  };
  double low = dimension(s.beta_fast), high = dimension(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] = inverse[i] * (1 - ramp) + inverse[i] / s.factor * ramp;
  }
  if (s.attention_factor) return *s.attention_factor;
  if (s.mscale != 0 && s.mscale_all_dim != 0)
    return yarn_mscale(s.factor, s.mscale) / yarn_mscale(s.factor, s.mscale_all_dim);
  return yarn_mscale(s.factor);
}

double scale_longrope(std::vector<double>& inverse, const RopeScaling& s, int64_t length) {
  const auto& factors = length > s.original_max_position ? s.long_factor : s.short_factor;
  require(factors.size() == inverse.size(), "rope: longrope gives {} factors for {} frequencies",
          factors.size(), inverse.size());
  for (size_t i = 0; i < inverse.size(); ++i) inverse[i] /= factors[i];
  if (s.attention_factor) return *s.attention_factor;
  if (s.factor <= 1) return 1;
  return std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_max_position)));
}

}  // namespace

double yarn_mscale(double factor, double scale) {
  return factor > 1 ? 0.1 * scale * std::log(factor) + 1 : 1;
}

RopeFrequencies rope_frequencies(int64_t width, double theta, const RopeScaling& s, int64_t length) {
  require(width > 0 && width % 2 == 0, "rope: {} channels cannot be turned in pairs; the width must be even",
          width);
  require(theta > 1, "rope: theta = {} must be above 1", theta);
  using Kind = RopeScalingKind;
  bool needs_original = s.kind == Kind::Llama3 || s.kind == Kind::Yarn || s.kind == Kind::LongRope;
  require(!needs_original || s.original_max_position > 0,
          "rope: this scaling needs original_max_position_embeddings");
  RopeFrequencies result{plain(width, theta), 1};
  switch (s.kind) {
    case Kind::None:
      break;
    case Kind::Linear:
      for (double& f : result.inverse) f /= s.factor;
      break;
    case Kind::Dynamic: {
      require(s.max_position > 0 && width > 2, "rope: dynamic scaling needs max_position_embeddings");
      double reach = static_cast<double>(std::max(length, s.max_position)), d = static_cast<double>(width);
      double stretch = s.factor * reach / static_cast<double>(s.max_position) - (s.factor - 1);
      result.inverse = plain(width, theta * std::pow(stretch, d / (d - 2)));
      break;
    }
    case Kind::Llama3:
      scale_llama3(result.inverse, s);
      break;
    case Kind::Yarn:
      result.amplitude = scale_yarn(result.inverse, width, theta, s);
      break;
    case Kind::LongRope:
      result.amplitude = scale_longrope(result.inverse, s, length);
      break;
  }
  return result;
}

}  // namespace megatron::ops
