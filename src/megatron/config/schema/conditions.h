#pragma once

#include "megatron/config/config.h"

// What rows of settings/*.def name in when(): a setting that is given while its condition does not hold is
// accepted, for launch scripts carry settings along, and noted as without effect.
namespace megatron::conditions {

// clang-format off
#define CONDITION(name, needs, holds) inline constexpr Condition name{[](const Config& c) { return holds; }, needs};
CONDITION(has_indexer, "--experimental-attention-variant dsa, or D in a hybrid pattern", c.model.attends_sparsely())
CONDITION(shares_chosen_keys, "--dsa-indexer-topk-freq above 1",
          c.model.attends_sparsely() && c.model.dsa_indexer_topk_freq > 1)
CONDITION(has_streams, "--enable-mhc-connections", c.model.enable_mhc_connections)
CONDITION(has_products, "--gated-delta-product", c.model.gated_delta_product)
CONDITION(has_window, "--window-size", !c.model.window_size.empty())
CONDITION(has_experts, "--num-experts", c.model.num_moe_experts > 0)
CONDITION(has_parallel_residual, "--parallel-residual", c.model.parallel_residual)
CONDITION(clips_scores, "--qk-clip", c.model.qk_clip)
CONDITION(upcycles, "--moe-use-upcycling", c.model.moe_use_upcycling)
CONDITION(in_fp8, "--fp8-format", c.precision.fp8 != Fp8Format::none)
CONDITION(in_delayed_fp8, "--fp8-format and --fp8-recipe delayed",
          c.precision.fp8 != Fp8Format::none && c.precision.fp8_recipe == Fp8Recipe::delayed)
CONDITION(keeps_layers_in_bf16, "--first-last-layers-bf16", c.precision.first_last_layers_bf16)
CONDITION(overlaps_tp, "--tp-comm-overlap", c.parallel.tp_comm_overlap)
CONDITION(has_tp_spares, "--tp-spares", c.parallel.tp_spares > 0)
CONDITION(has_stages, "--pipeline-model-parallel-size above 1", c.parallel.pipeline_model_parallel_size > 1)
CONDITION(has_chunks, "several chunks a pipeline stage", c.parallel.virtual_pipeline_model_parallel_size > 1)
CONDITION(adapts_muon, "--optimizer adaptive_muon", c.optimizer.optimizer == OptimizerKind::adaptive_muon)
CONDITION(predicts_further, "--mtp-num-layers", c.model.mtp_num_layers > 0)
CONDITION(predicts_twice, "--mtp-num-layers 2 or more", c.model.mtp_num_layers > 1)
CONDITION(has_cuda_graphs, "--cuda-graph-impl", c.execution.cuda_graph_impl != GraphImpl::none)
CONDITION(offloads_layers, "--cpu-offloading", c.execution.cpu_offloading)
CONDITION(offloads_modules, "--fine-grained-activation-offloading", c.execution.fine_grained_activation_offloading)
CONDITION(recomputes_layers, "--recompute-granularity full",
          c.execution.recompute_granularity == RecomputeGranularity::full)
CONDITION(is_fsdp, "--use-megatron-fsdp", c.ddp.use_megatron_fsdp)
CONDITION(decays_by_wsd, "--lr-decay-style WSD", c.scheduler.lr_decay_style == LrDecay::wsd)
CONDITION(has_growing_decay, "--weight-decay-incr-style linear",
          c.scheduler.weight_decay_incr_style != WeightDecayGrowth::constant)
CONDITION(in_fp16, "--fp16", c.precision.fp16)
CONDITION(adapts_loss_scale, "--fp16 and an adapting loss scale", c.precision.fp16 && !c.optimizer.loss_scale)
CONDITION(has_decoupled_lr, "--decoupled-lr", c.optimizer.decoupled_lr.has_value())
CONDITION(uses_adam, "--optimizer adam",
          c.optimizer.is_muon() ? c.optimizer.muon_scalar_optimizer == MuonScalarOptimizer::adam
                                : c.optimizer.optimizer == OptimizerKind::adam || c.optimizer.is_soap())
CONDITION(uses_soap, "--optimizer soap", c.optimizer.is_soap())
CONDITION(offloads_optimizer, "--optimizer-cpu-offload", c.optimizer.optimizer_cpu_offload)
CONDITION(uses_muon, "--optimizer muon", c.optimizer.is_muon())
CONDITION(uses_lion, "--optimizer lion",
          c.optimizer.is_muon() ? c.optimizer.muon_scalar_optimizer == MuonScalarOptimizer::lion
                                : c.optimizer.optimizer == OptimizerKind::lion)
CONDITION(uses_sgd, "--optimizer sgd", c.optimizer.optimizer == OptimizerKind::sgd)
CONDITION(reruns, "--rerun-mode validate_results", c.rerun_state_machine.rerun_mode != RerunMode::disabled)
CONDITION(restarts, "--inprocess-restart", c.inprocess_restart.enabled)
CONDITION(names_hangs, "--enable-ft-package or --inprocess-restart",
          c.ft.enable_ft_package || c.inprocess_restart.enabled)
CONDITION(learns_timeouts, "--save DIR and --enable-ft-package or --inprocess-restart",
          !c.checkpoint.save.empty() && (c.ft.enable_ft_package || c.inprocess_restart.enabled))
CONDITION(saves, "--save DIR", !c.checkpoint.save.empty())
CONDITION(saves_loads, "--save DIR and --num-experts", !c.checkpoint.save.empty() && c.model.num_moe_experts > 0)
CONDITION(saves_locally, "--non-persistent-ckpt-type local",
          c.checkpoint.non_persistent_ckpt_type == NonPersistentType::local)
CONDITION(replicates, "--replication", c.checkpoint.replication)
CONDITION(loads, "--load DIR", !c.checkpoint.load.empty())
CONDITION(takes_weights, "--load DIR or --pretrained-checkpoint DIR",
          !c.checkpoint.load.empty() || !c.checkpoint.pretrained_checkpoint.empty())
CONDITION(takes_checkpoint_args, "--use-checkpoint-args", c.checkpoint.use_checkpoint_args)
CONDITION(detects_stragglers, "--detect-stragglers", c.logger.detect_stragglers)
CONDITION(logs_stragglers, "--log-straggler", c.logger.log_straggler)
CONDITION(traces_routing, "--moe-routing-trace-path DIR and --num-experts",
          !c.logger.moe_routing_trace_path.empty() && c.model.num_moe_experts > 0)
CONDITION(writes_tensorboard, "--tensorboard-dir DIR", !c.logger.tensorboard_dir.empty())
CONDITION(validates_sets, "--multiple-validation-sets", c.validation.multiple_validation_sets)
CONDITION(is_cyclic, "--dataloader-type cyclic", c.dataset.dataloader_type == DataloaderType::cyclic)
CONDITION(fills_in, "--fim-data", c.dataset.fim_data)
CONDITION(is_bert, "--model-type bert", c.model.model_type == ModelType::bert)
CONDITION(masks_text, "--model-type bert or t5", c.model.masks_text())
CONDITION(sees_images, "a vision tower (--vision-model-type, --img-h, --hf)", c.model.has_tower())
CONDITION(sees_by_clip, "--vision-model-type clip", c.model.vision_tower == VisionTowerKind::clip)
CONDITION(norms_projection, "--vision-projector-norm", c.model.vision_projector_norm != ProjectorNorm::none)
CONDITION(tiles_images, "--use-tiling", c.model.use_tiling)
CONDITION(speaks_qwen, "--tokenizer-prompt-format qwen2p0 or qwen2p5",
          c.model.tokenizer_prompt_format.starts_with("qwen"))
CONDITION(keeps_ratios, "--dynamic-resolution", c.model.dynamic_resolution)
CONDITION(packs_images, "--packing-buffer-size", c.dataset.packing_buffer_size > 0)
CONDITION(is_sft, "--sft", c.dataset.sft)
CONDITION(names_finetune_data, "--finetune-hf-dataset", !c.dataset.finetune_hf_dataset.empty())
CONDITION(packs_offline, "--packing offline", c.dataset.packing == Packing::offline)
CONDITION(replays, "--replay", !c.dataset.replay.empty())
CONDITION(profiles, "--profile or --record-memory-history",
          c.profiling.profile || c.profiling.record_memory_history)
CONDITION(records_memory, "--record-memory-history", c.profiling.record_memory_history)
CONDITION(asks_teacher, "--export-kd-teacher-load", c.distill.has_teacher())
CONDITION(adds_lm_loss, "--export-kd-teacher-load and distill.skip_lm_loss=false",
          c.distill.has_teacher() && !c.distill.skip_lm_loss)
CONDITION(is_elastic, "--flextron", c.elastic.flextron)
CONDITION(mixes_widths, "--flextron and --soft-mask", c.elastic.flextron && c.elastic.soft_mask)
CONDITION(budgets_memory, "--flextron and --budget-type mem", c.elastic.flextron && c.elastic.budget_type == "mem")
CONDITION(evaluates_budget, "--flextron and --is-flex-eval", c.elastic.flextron && c.elastic.is_flex_eval)
CONDITION(records_predictions, "--logits-save-dir DIR", c.distill.records())
CONDITION(reads_predictions, "--logits-load-dir DIR", c.distill.learns_from_recording())
CONDITION(learns_from_rewards, "--perform-rl-step", c.rl.perform_rl_step)
CONDITION(corrects_sampling, "--perform-rl-step and --rl-inference-logprobs-is-correction",
          c.rl.perform_rl_step && c.rl.rl_inference_logprobs_is_correction)
CONDITION(packs_answers, "--perform-rl-step and --rl-use-sequence-packing",
          c.rl.perform_rl_step && c.rl.rl_use_sequence_packing)
CONDITION(keeps_answers, "--perform-rl-step and --rl-durable-rollout-bank",
          c.rl.perform_rl_step && c.rl.rl_durable_rollout_bank)
CONDITION(generates, "megatron generate, megatron serve or --perform-rl-step", c.rl.perform_rl_step)
#undef CONDITION
// clang-format on

}  // namespace megatron::conditions
