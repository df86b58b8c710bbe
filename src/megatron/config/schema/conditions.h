#pragma once

#include "megatron/config/config.h"

// What rows of settings/*.def name in when(): a setting that is given while its condition does not hold is
// accepted, for launch scripts carry settings along, and noted as without effect.
namespace megatron::conditions {

inline constexpr Condition has_experts{[](const Config& c) { return c.model.num_moe_experts > 0; },
                                       "--num-experts"};
inline constexpr Condition in_fp8{[](const Config& c) { return c.precision.fp8 != Fp8Format::none; },
                                  "--fp8-format"};
inline constexpr Condition in_delayed_fp8{[](const Config& c) {
                                            return c.precision.fp8 != Fp8Format::none &&
                                                   c.precision.fp8_recipe == Fp8Recipe::delayed;
                                          },
                                          "--fp8-format and --fp8-recipe delayed"};
inline constexpr Condition keeps_layers_in_bf16{
    [](const Config& c) { return c.precision.first_last_layers_bf16; }, "--first-last-layers-bf16"};
inline constexpr Condition overlaps_tp{[](const Config& c) { return c.parallel.tp_comm_overlap; },
                                       "--tp-comm-overlap"};
inline constexpr Condition has_stages{
    [](const Config& c) { return c.parallel.pipeline_model_parallel_size > 1; },
    "--pipeline-model-parallel-size above 1"};
inline constexpr Condition has_chunks{
    [](const Config& c) { return c.parallel.virtual_pipeline_model_parallel_size > 1; },
    "several chunks a pipeline stage"};
inline constexpr Condition has_cuda_graphs{
    [](const Config& c) { return c.execution.cuda_graph_impl != GraphImpl::none; }, "--cuda-graph-impl"};
inline constexpr Condition offloads_layers{[](const Config& c) { return c.execution.cpu_offloading; },
                                           "--cpu-offloading"};
inline constexpr Condition offloads_modules{
    [](const Config& c) { return c.execution.fine_grained_activation_offloading; },
    "--fine-grained-activation-offloading"};
inline constexpr Condition is_fsdp{[](const Config& c) { return c.ddp.use_megatron_fsdp; },
                                   "--use-megatron-fsdp"};
inline constexpr Condition decays_by_wsd{
    [](const Config& c) { return c.scheduler.lr_decay_style == LrDecay::wsd; }, "--lr-decay-style WSD"};
inline constexpr Condition uses_adam{
    [](const Config& c) { return c.optimizer.optimizer != OptimizerKind::sgd; }, "--optimizer adam"};
inline constexpr Condition uses_sgd{
    [](const Config& c) { return c.optimizer.optimizer == OptimizerKind::sgd; }, "--optimizer sgd"};
inline constexpr Condition saves{[](const Config& c) { return !c.checkpoint.save.empty(); }, "--save DIR"};
inline constexpr Condition loads{[](const Config& c) { return !c.checkpoint.load.empty(); }, "--load DIR"};
inline constexpr Condition profiles{[](const Config& c) { return c.profiling.profile; }, "--profile"};

}  // namespace megatron::conditions
