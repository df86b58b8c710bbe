#pragma once

#include "megatron/config/config.h"

// What rows of settings/*.def name in when(): a setting that is given while its condition does not hold is
// accepted, for launch scripts carry settings along, and noted as without effect.
namespace megatron::conditions {

// clang-format off
#define CONDITION(name, needs, holds) inline constexpr Condition name{[](const Config& c) { return holds; }, needs};
CONDITION(has_experts, "--num-experts", c.model.num_moe_experts > 0)
CONDITION(in_fp8, "--fp8-format", c.precision.fp8 != Fp8Format::none)
CONDITION(in_delayed_fp8, "--fp8-format and --fp8-recipe delayed",
          c.precision.fp8 != Fp8Format::none && c.precision.fp8_recipe == Fp8Recipe::delayed)
CONDITION(keeps_layers_in_bf16, "--first-last-layers-bf16", c.precision.first_last_layers_bf16)
CONDITION(overlaps_tp, "--tp-comm-overlap", c.parallel.tp_comm_overlap)
CONDITION(has_stages, "--pipeline-model-parallel-size above 1", c.parallel.pipeline_model_parallel_size > 1)
CONDITION(has_chunks, "several chunks a pipeline stage", c.parallel.virtual_pipeline_model_parallel_size > 1)
CONDITION(has_cuda_graphs, "--cuda-graph-impl", c.execution.cuda_graph_impl != GraphImpl::none)
CONDITION(offloads_layers, "--cpu-offloading", c.execution.cpu_offloading)
CONDITION(offloads_modules, "--fine-grained-activation-offloading", c.execution.fine_grained_activation_offloading)
CONDITION(is_fsdp, "--use-megatron-fsdp", c.ddp.use_megatron_fsdp)
CONDITION(decays_by_wsd, "--lr-decay-style WSD", c.scheduler.lr_decay_style == LrDecay::wsd)
CONDITION(has_growing_decay, "--weight-decay-incr-style linear",
          c.scheduler.weight_decay_incr_style != WeightDecayGrowth::constant)
CONDITION(in_fp16, "--fp16", c.precision.fp16)
CONDITION(adapts_loss_scale, "--fp16 and an adapting loss scale", c.precision.fp16 && !c.optimizer.loss_scale)
CONDITION(has_decoupled_lr, "--decoupled-lr", c.optimizer.decoupled_lr.has_value())
CONDITION(uses_adam, "--optimizer adam",
          c.optimizer.is_muon() ? c.optimizer.muon_scalar_optimizer == MuonScalarOptimizer::adam
                                : c.optimizer.optimizer == OptimizerKind::adam)
CONDITION(uses_muon, "--optimizer muon", c.optimizer.is_muon())
CONDITION(uses_lion, "--optimizer lion",
          c.optimizer.is_muon() ? c.optimizer.muon_scalar_optimizer == MuonScalarOptimizer::lion
                                : c.optimizer.optimizer == OptimizerKind::lion)
CONDITION(uses_sgd, "--optimizer sgd", c.optimizer.optimizer == OptimizerKind::sgd)
CONDITION(reruns, "--rerun-mode validate_results", c.rerun_state_machine.rerun_mode != RerunMode::disabled)
CONDITION(saves, "--save DIR", !c.checkpoint.save.empty())
CONDITION(loads, "--load DIR", !c.checkpoint.load.empty())
CONDITION(writes_tensorboard, "--tensorboard-dir DIR", !c.logger.tensorboard_dir.empty())
CONDITION(validates_sets, "--multiple-validation-sets", c.validation.multiple_validation_sets)
CONDITION(is_cyclic, "--dataloader-type cyclic", c.dataset.dataloader_type == DataloaderType::cyclic)
CONDITION(fills_in, "--fim-data", c.dataset.fim_data)
CONDITION(is_sft, "--sft", c.dataset.sft)
CONDITION(packs_offline, "--packing offline", c.dataset.packing == Packing::offline)
CONDITION(profiles, "--profile", c.profiling.profile)
#undef CONDITION
// clang-format on

}  // namespace megatron::conditions
