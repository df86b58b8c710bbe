#include "megatron/autotune/cost/stack.h"

#include <fmt/core.h>

#include <array>

#include "megatron/base/error.h"

namespace megatron::autotune {

const Stack& stack_named(std::string_view name) {
  static const std::array table{
      Stack{.name = "megatron-cpp",
            .pointwise = 0.75,
            .logit_bytes = 2,
            .grad_bytes = 4,
            .host = 0.15,
            .keeps_gathered_inputs = true,
            .chunked_logits = true},
      Stack{.name = "megatron-core"},
      // From that release on, experts on Blackwell take about half of the time.
      Stack{.name = "megatron-core-26.06", .moe = 0.5},
      Stack{.name = "megatron-deepspeed",
            .attention = AttentionBackend::unfused,
            .pointwise = 1.2,
            .loss_bytes = 36,
            .logit_bytes = 12,
            .forward_kernels = 26,
            .backward_kernels = 46,
            .softmax_in_fours = true,
            .synchronous_pipeline = true},
      Stack{.name = "torch-compile",
            .pointwise = 0.75,
            .loss_bytes = 24,
            .logit_bytes = 8,
            .optimizer_bytes = 52,
            .compiled_pointwise = true},
      Stack{.name = "torchtitan",
            .attention = AttentionBackend::flash2,
            .pointwise = 0.75,
            .loss_bytes = 36,
            .logit_bytes = 12,
            .optimizer_bytes = 52,
            .grad_bytes = 4,
            .compiled_pointwise = true},
      Stack{.name = "torch-eager",
            .attention = AttentionBackend::flash2,
            .loss_bytes = 36,
            .logit_bytes = 12,
            .grad_bytes = 4},
      Stack{.name = "llmq", .pointwise = 0.75, .optimizer_bytes = 20, .state_bytes = 4},
      Stack{.name = "automodel"},
  };
  for (const Stack& stack : table)
    if (stack.name == name) return stack;
  throw ConfigError(fmt::format("software stack '{}': not known", name));
}

}  // namespace megatron::autotune
