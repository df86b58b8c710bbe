#pragma once

#include <string>
#include <string_view>

namespace megatron::autotune {

enum class AttentionBackend { fused, flash2, unfused };

// What the training software does apart from the plan. The wrong attention backend alone moves a prediction
// by a fifth.
struct Stack {
  std::string_view name;
  AttentionBackend attention = AttentionBackend::fused;
  double pointwise = 1;    // bytes of elementwise work against unfused norm, residual, RoPE and activation
  double loss_bytes = 10;  // per logit
  double logit_bytes = 6;  // kept per logit
  double optimizer_bytes = 34;                         // per parameter of the shard
  double state_bytes = 12;                             // per parameter: master weight and moments
  double grad_bytes = 2;                               // per parameter, in memory and on the wire
  double moe = 1;                                      // time of experts' kernels and exchanges
  double host = 1;                                     // time that launches take, against Python's
  double forward_kernels = 16, backward_kernels = 30;  // of a layer
  bool softmax_in_fours = false;       // the fused softmax needs heads x micro-batch to be a multiple of four
  bool synchronous_pipeline = false;   // the host waits for each exchange between stages
  bool compiled_pointwise = false;     // norm and activation outputs are recomputed rather than kept
  bool keeps_gathered_inputs = false;  // GEMM inputs stay gathered from forward to backward
  bool chunked_logits = false;         // the head works on about a GiB of logits at a time
  bool fused_sinks = true;             // fused attention takes sinks
  bool fp8_weight_gather = true;       // sharded weights travel in fp8
};

// Stacks by name: megatron-cpp, megatron-core, megatron-core-26.06, megatron-deepspeed, torch-compile,
// torch-eager, torchtitan, llmq, automodel.
const Stack& stack_named(std::string_view name);

}  // namespace megatron::autotune
