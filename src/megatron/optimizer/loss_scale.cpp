#include "megatron/optimizer/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron {

LossScale::LossScale(const LossScaleOptions& options)
    : options_(options),
      state_{.scale = options.constant.value_or(options.initial), .tolerance = options.hysteresis} {}

void LossScale::update(bool overflow) {
  if (options_.constant) return;
  if (overflow) {
    state_.clean_steps = 0;
    if (--state_.tolerance <= 0) state_.scale = std::max(state_.scale / 2, options_.minimum);
  } else if (++state_.clean_steps == options_.window) {
    state_ = {.scale = 2 * state_.scale, .tolerance = options_.hysteresis};
  }
}

void LossScale::restore(const LossScaleState& state) {
  if (options_.constant) return;
  require(std::isfinite(state.scale) && state.scale > 0,
          "loss scale: the checkpoint has {}, expected a number above 0", state.scale);
  state_ = state;
}

}  // namespace megatron
