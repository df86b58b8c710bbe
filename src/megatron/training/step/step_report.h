#pragma once

#include <optional>
#include <string>
#include <vector>

namespace megatron {

// A mean that an objective reports beside its loss, such as "mtp_1 loss".
struct LossTerm {
  std::string name;
  double value = 0;
  bool operator==(const LossTerm&) const = default;
};

// Whether the parameters moved. Nothing was changed but where an update was taken.
enum class Update {
  taken,
  not_finite,
  overflow,    // a gradient of fp16 was not finite: the loss scale adapts
  large_norm,  // above grad_norm_skip_threshold
};

// What one step was like, the same on every rank.
struct StepReport {
  double loss = 0, grad_norm = 0;
  std::vector<LossTerm> terms;
  Update update = Update::taken;
  double loss_scale = 1;                   // of the next step, as Megatron logs it
  std::optional<double> params_norm = {};  // after the update, where asked for
  std::optional<double> num_zeros = {};    // of the gradients, where asked for
};

}  // namespace megatron
