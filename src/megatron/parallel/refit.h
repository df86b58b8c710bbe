#pragma once

#include <memory>
#include <span>

#include "megatron/comm/process_group.h"
#include "megatron/nn/parameter.h"

namespace megatron {

// Brings the values of one model's parameters into those of another with the same names and another layout,
// between the ranks of `world`, each of which may hold parts of either, of both or of none. The plan is made
// once: who sends which box of which parameter to whom. Where several ranks hold a box, those that receive it
// take it from different ones.
class Refit {
 public:
  // All ranks call it alike; a ConfigError names a parameter of `to` that nobody has whole.
  Refit(const ProcessGroup& world, std::span<Parameter* const> from, std::span<Parameter* const> to);
  ~Refit();

  // The present values of `from`, in the dtype of `to`; on all ranks alike.
  void run(RankContext& ctx);

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace megatron
