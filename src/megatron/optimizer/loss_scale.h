#pragma once

#include <cstdint>
#include <optional>

namespace megatron {

// What a checkpoint keeps of a loss scale.
struct LossScaleState {
  double scale = 1;
  int64_t clean_steps = 0;  // since the last overflow or growth
  int64_t tolerance = 1;    // overflows that are left before the scale is halved
  bool operator==(const LossScaleState&) const = default;
};

struct LossScaleOptions {
  std::optional<double> constant = {};  // instead of a scale that adapts
  double initial = 4294967296, minimum = 1;
  int64_t window = 1000;   // clean steps before the scale doubles
  int64_t hysteresis = 2;  // overflows between two doublings before it is halved
};

// The factor of the loss that keeps fp16 gradients above the smallest fp16 numbers. An adapting scale is
// halved by overflows and doubled after many steps without one.
class LossScale {
 public:
  LossScale() = default;  // 1 throughout
  explicit LossScale(const LossScaleOptions& options);

  double value() const { return state_.scale; }
  // Told after every step whether a gradient was infinite or NaN.
  void update(bool overflow);

  const LossScaleState& state() const { return state_; }
  // Goes on from a checkpoint. A constant scale stays as it is.
  void restore(const LossScaleState& state);

 private:
  LossScaleOptions options_{.constant = 1.0};
  LossScaleState state_;
};

}  // namespace megatron
