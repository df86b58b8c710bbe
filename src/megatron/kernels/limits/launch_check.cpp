#include "megatron/kernels/limits/launch_check.h"

#include <algorithm>

namespace megatron {

void LaunchCheck::note(const Refusal& refusal) {
  const auto same = [&](const Refusal& other) {
    return other.limit == refusal.limit && other.reason == refusal.reason;
  };
  if (std::none_of(refusals.begin(), refusals.end(), same)) refusals.push_back(refusal);
}

}  // namespace megatron
