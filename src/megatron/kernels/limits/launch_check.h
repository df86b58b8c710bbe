#pragma once

#include <concepts>
#include <vector>

#include "megatron/kernels/limits/attention.h"
#include "megatron/kernels/limits/cross_entropy.h"
#include "megatron/kernels/limits/gemm.h"
#include "megatron/kernels/limits/moe.h"
#include "megatron/kernels/limits/norm.h"
#include "megatron/kernels/limits/recurrent.h"
#include "megatron/kernels/limits/rope.h"

namespace megatron {

// Arguments of which CUDA's kernels refuse some.
template <class Args>
concept HasLimits = requires(const Args& args, const GpuFacts& gpu) {
  { refuse(args, gpu) } -> std::same_as<std::optional<Refusal>>;
};

// What a step on the meta device is asked beside its shapes: GPUs that would run it, and what their kernels
// would refuse of it.
struct LaunchCheck {
  std::vector<GpuFacts> gpus;
  std::vector<Refusal> refusals;  // each once

  void note(const Refusal& refusal);
  template <HasLimits Args>
  void ask(const Args& args) {
    for (const GpuFacts& gpu : gpus)
      if (const std::optional<Refusal> refusal = refuse(args, gpu)) note(*refusal);
  }
};

}  // namespace megatron
