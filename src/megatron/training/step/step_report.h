#pragma once

#include <string>
#include <vector>

namespace megatron {

// A mean that an objective reports beside its loss, such as "mtp_1 loss".
struct LossTerm {
  std::string name;
  double value = 0;
  bool operator==(const LossTerm&) const = default;
};

enum class Update { taken, not_finite };  // not_finite: nothing was changed

// What one step was like, the same on every rank.
struct StepReport {
  double loss = 0, grad_norm = 0;
  std::vector<LossTerm> terms;
  Update update = Update::taken;
};

}  // namespace megatron
