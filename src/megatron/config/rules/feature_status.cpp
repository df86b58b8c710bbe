#include "megatron/config/rules/feature_status.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/string_list.h"

namespace megatron {
namespace {

using enum FeatureStatus;

constexpr Feature kFeatures[] = {
    // Ranks
    {supported, "ranks as threads and processes", "run.ranks run.world_size run.comm"},
    {supported, "devices", "run.device"},
    {supported, "tensor parallelism", "model.tensor_model_parallel_size model.sequence_parallel"},
    {supported, "overlapped tensor-parallel communication",
     "model.tp_comm_overlap model.tp_comm_overlap_ag model.tp_comm_overlap_rs model.tp_comm_overlap_rs_dgrad "
     "model.tp_comm_bulk_* model.tp_comm_overlap_disable_*"},
    {no_effect, "overlap uses the group's own backend", "model.tp_comm_bootstrap_backend"},
    {planned, "weights gathered at use, overlap by layer",
     "model.tensor_parallel_num_weight_shards model.tp_comm_overlap_cfg"},
    {planned, "another way between pipeline stages", "model.pipeline_model_parallel_comm_backend"},
    {supported, "pipeline parallelism",
     "model.pipeline_model_parallel_* model.pipeline_schedule model.virtual_pipeline_model_parallel_size "
     "model.num_layers_per_virtual_pipeline_stage model.microbatch_group_size_per_vp_stage "
     "model.num_layers_in_first_pipeline_stage model.num_layers_in_last_pipeline_stage model.account_for_*"},
    {supported, "overlapped pipeline communication", "model.overlap_p2p_comm model.variable_seq_lengths"},
    {no_effect, "messages between stages are always sent ahead", "model.overlap_p2p_comm_warmup_flush"},
    {planned, "a later gradient of the output head",
     "model.defer_embedding_wgrad_compute model.wgrad_deferral_limit"},
    {supported, "context parallelism",
     "model.context_parallel_size model.cp_comm_type model.hierarchical_context_parallel_sizes"},
    {planned, "context ranks per sample, and others for evaluation",
     "model.hybrid_context_parallel model.max_seqlen_per_dp_cp_rank dist.eval_context_parallel_size"},
    {supported, "expert parallelism", "model.expert_model_parallel_size model.expert_tensor_parallel_size"},
    {planned, "experts' weights gathered at use, steps that overlap with the way to experts",
     "model.expert_tensor_parallel_* model.overlap_moe_expert_parallel_comm model.delay_wgrad_compute "
     "model.ep_overlap_early_attn_memory_release model.overlap_dispatch_backward_with_experts_wgrad"},
    {supported, "checks for what is not a number",
     "ddp.check_for_nan_in_grad rerun_state_machine.check_for_nan_in_loss"},
    {supported, "data parallelism",
     "ddp.grad_reduce_in_fp32 ddp.overlap_grad_reduce ddp.overlap_param_gather ddp.use_distributed_optimizer "
     "ddp.num_distributed_optimizer_instances ddp.bucket_size ddp.num_buckets "
     "ddp.pad_buckets_for_high_nccl_busbw ddp.average_in_collective ddp.use_megatron_fsdp "
     "ddp.data_parallel_sharding_strategy"},
    {no_effect, "stages gather parameters by themselves", "ddp.align_param_gather"},
    {planned, "further ways of data parallelism", "ddp.*"},
    {supported, "process groups",
     "dist.distributed_timeout_minutes dist.use_tp_pp_dp_mapping dist.flight_recorder_dump_path"},
    {no_effect, "NCCL's operations of all groups come first", "dist.high_priority_stream_groups"},
    {planned, "process groups", "dist.*"},
    // Model
    {planned, "the flex dispatcher",
     "model.moe_token_dispatcher_type=flex model.moe_flex_* model.moe_expert_rank_capacity_factor "
     "model.moe_dispatch_fwd_dtype model.moe_combine_bwd_dtype"},
    {planned, "quantile balancing",
     "model.moe_router_load_balancing_type=quantile_balancing model.moe_router_quantile_balancing_ema"},
    {planned, "upcycling", "model.moe_use_upcycling model.moe_upcycling_granularity"},
    {planned, "replay of routing", "model.moe_enable_routing_replay"},
    {planned, "quantised experts", "model.moe_router_padding_for_quantization"},
    {planned, "biased random routing", "model.moe_router_force_biased"},
    {planned, "activations of experts in pages", "model.moe_paged_stash*"},
    {planned, "balancing losses in the log", "model.moe_per_layer_logging"},
    {no_effect, "rows that pad an expert to its capacity change no result",
     "model.moe_pad_expert_input_to_capacity"},
    {supported, "mixture of experts", "model.num_moe_experts model.moe_*"},
    {planned, "latent vectors in the key-value cache", "model.cache_mla_latents"},
    {planned, "further kinds of multi-token prediction",
     "model.mtp_detach_heads model.mtp_hsm model.mtp_hybrid_override_pattern"},
    {supported, "hybrid models", "model.is_hybrid_model model.hybrid_layer_pattern model.mamba_*"},
    {supported, "gated delta nets",
     "model.experimental_attention_variant=none,gdn,gated_delta_net model.linear_*"},
    {planned, "gated delta products", "model.gdp_*"},
    {planned, "sparse attention, GDN2", "model.experimental_attention_variant model.dsa_*"},
    {planned, "hyper-connections", "model.enable_mhc_connections model.mhc_*"},
    {forward_only, "training of encoder-decoder models and BERT from the command line",
     "model.encoder_* model.decoder_* model.bert_binary_head model.relative_attention_* "
     "model.position_embedding_type=relative model.num_tokentypes"},
    {supported, "layers that differ", "model.heterogeneous_*"},
    {planned, "norms without weights", "model.qk_l2_norm"},
    {planned, "a dtype between stages that is not the model's", "model.pipeline_dtype"},
    {planned, "Xavier initialisation", "model.init_method_xavier_uniform"},
    {planned, "clipping of attention weights", "model.qk_clip*"},
    {planned, "scaling of logits by layer", "model.apply_query_key_layer_scaling"},
    {planned, "residuals taken after the norm", "model.apply_residual_connection_post_layernorm"},
    {planned, "residual stream in fp32", "model.fp32_residual_connection"},
    {planned, "models without memory", "model.init_model_with_meta_device model.perform_initialization"},
    {planned, "frozen layers", "model.freeze_all_layers"},
    // Precision and execution
    {planned, "fp16",
     "model.fp16 model.fp16_lm_cross_entropy optimizer.loss_scale optimizer.initial_loss_scale "
     "optimizer.min_loss_scale optimizer.loss_scale_window optimizer.hysteresis"},
    {planned, "this recipe of fp8", "model.fp8_recipe=mxfp8,custom"},
    {supported, "fp8",
     "model.fp8 model.fp8_recipe model.first_last_layers_bf16 model.num_layers_at_start_in_bf16 "
     "model.num_layers_at_end_in_bf16 model.fp8_margin model.fp8_amax_history_len "
     "model.fp8_amax_compute_algo"},
    {planned, "more of fp8",
     "model.fp8* model.tp_only_amax_red model.first_last_layers_bf16 model.num_layers_at_* "
     "model.reuse_grad_buf_for_mxfp8_param_ag model.keep_fp8_transpose_cache"},
    {planned, "fp4", "model.fp4*"},
    {planned, "precision by module", "model.te_precision_config_file"},
    {planned, "reduced-precision logits", "model.output_logit_dtype"},
    {no_effect, "bf16 products always accumulate in fp32", "model.disable_bf16_reduced_precision_matmul"},
    {supported, "number formats, the same bits each run", "model.deterministic_mode"},
    {supported, "number formats", "model.bf16 model.params_dtype model.pipeline_dtype"},
    {planned, "recompute of these modules", "model.recompute_modules=gdn_norm_out,gdp_qkv,mhc"},
    {supported, "recompute", "model.recompute_* model.distribute_saved_activations"},
    {planned, "graphs of parts of a step (full_iteration records all of it)",
     "model.cuda_graph_impl=local,transformer_engine model.cuda_graph_modules "
     "optimizer.optimizer_cuda_graph"},
    {supported, "CUDA graphs", "model.cuda_graph_impl model.cuda_graph_warmup_steps"},
    {planned, "offloaded weights, offload by stage",
     "model.cpu_offloading_weights model.delta_offload_bytes_across_pp_ranks"},
    {planned, "offload of these modules", "model.offload_modules=fused_group_mlp,gdp_qkv"},
    {supported, "offload",
     "model.cpu_offloading* model.fine_grained_* model.offload_modules "
     "model.min_offloaded_tensor_size model.activation_offload_fraction"},
    {planned, "feed-forward in pieces", "model.mlp_chunks_*"},
    {planned, "batch invariance", "model.batch_invariant_mode"},
    {supported, "transformer", "model.*"},
    // Training
    {planned, "growing batches",
     "train.rampup_batch_size train.step_batch_size_schedule train.decrease_batch_size_if_needed"},
    {planned, "epochs", "train.num_epochs"},
    {planned, "exit conditions", "train.exit_* train.phase_transition_iterations train.iterations_to_skip"},
    {planned, "health checks",
     "train.check_weight_hash_across_dp_replicas_interval train.gpu_sniff_test_interval "
     "train.check_optimizer_step_success train.skip_sync_grad_norm_across_mp"},
    {no_effect, "memory is planned before the run", "train.empty_unused_memory_level"},
    {no_effect, "steps never wait for the device", "train.train_sync_interval"},
    {supported, "training", "train.*"},
    {planned, "several validation sets",
     "validation.full_validation validation.multiple_validation_sets validation.validation_set_names "
     "validation.start_eval_at_iter validation.test_mode validation.skip_train "
     "validation.eval_global_batch_size validation.eval_micro_batch_size"},
    {supported, "evaluation", "validation.*"},
    {planned, "this optimizer",
     "optimizer.optimizer=muon,dist_muon,lion,soap,adaptive_muon optimizer.muon_* optimizer.lion_* "
     "optimizer.soap_* optimizer.adaptive_muon_* optimizer.use_layer_wise_distributed_optimizer"},
    {planned, "optimizer states in fewer bits",
     "optimizer.main_grads_dtype optimizer.main_params_dtype optimizer.exp_avg_dtype=fp8 "
     "optimizer.exp_avg_sq_dtype=fp8"},
    {planned, "optimizer offload",
     "optimizer.optimizer_cpu_offload optimizer.optimizer_offload_fraction "
     "optimizer.overlap_cpu_optimizer_d2h_h2d"},
    {planned, "decoupled learning rates",
     "optimizer.decoupled_lr optimizer.decoupled_min_lr optimizer.apply_wd_to_qk_layernorm "
     "optimizer.grad_norm_skip_threshold"},
    {supported, "optimizer", "optimizer.*"},
    {planned, "schedules in checkpoints",
     "scheduler.override_opt_param_scheduler scheduler.use_checkpoint_opt_param_scheduler"},
    {planned, "growing weight decay",
     "scheduler.start_weight_decay scheduler.end_weight_decay scheduler.weight_decay_incr_style"},
    {supported, "schedule", "scheduler.*"},
    {planned, "replicas that begin differently", "rng.data_parallel_random_init"},
    {supported, "random numbers", "rng.*"},
    // Data
    {supported, "data", "dataset.seq_length dataset.random_seed dataset.mock_data dataset.replay"},
    {planned, "indexed data sets", "dataset.*"},
    {supported, "tokens without text",
     "tokenizer.tokenizer_type=none,NullTokenizer tokenizer.vocab_size tokenizer.padded_vocab_size "
     "tokenizer.pad_vocab_size"},
    {planned, "tokenizers", "tokenizer.*"},
    // Around training
    {supported, "checkpoints",
     "checkpoint.save checkpoint.save_interval checkpoint.save_optim checkpoint.load checkpoint.load_optim "
     "checkpoint.finetune checkpoint.exit_on_missing_checkpoint checkpoint.ckpt_format=safetensors"},
    {planned, "more kinds of checkpoints", "checkpoint.*"},
    {supported, "log", "logger.log_interval logger.metrics logger.log_throughput"},
    {planned, "detailed logging", "logger.*"},
    {supported, "marks and ranges for a profiler",
     "profiling.profile profiling.profile_step_* profiling.profile_ranks profiling.nvtx_ranges"},
    {planned, "traces and memory records of our own", "profiling.*"},
    {planned, "reruns of suspicious steps",
     "rerun_state_machine.rerun_mode=report_stats rerun_state_machine.check_for_spiky_loss "
     "rerun_state_machine.spiky_loss_factor rerun_state_machine.error_injection_*"},
    {planned, "result checks", "rerun_state_machine.*"},
    {planned, "fault tolerance", "ft.* inprocess_restart.*"},
    {planned, "reports on slow ranks", "straggler.* nvrx_straggler.*"},
    {planned, "adapters", "peft.*"},
    {planned, "inference", "inference.*"},
    {planned, "reinforcement learning", "rl.*"},
    {planned, "distillation and export", "distill.*"},
    {planned, "environment variables", "run.env_vars"},
    {supported, "precision presets", "run.mixed_precision"},
};

bool names_value(std::string_view values, const Json& value) {
  const std::string shown = show_value(value);
  while (true) {
    const size_t comma = std::min(values.find(','), values.size());
    if (values.substr(0, comma) == shown) return true;
    if (comma == values.size()) return false;
    values.remove_prefix(comma + 1);
  }
}

// Whether `word` of the table covers the setting with this value; of a list, any of its elements.
bool covers(std::string_view word, std::string_view name, const Json& value) {
  const size_t equals = word.find('=');
  if (equals != std::string_view::npos) {
    if (word.substr(0, equals) != name) return false;
    const std::string_view values = word.substr(equals + 1);
    if (!value.is_array()) return names_value(values, value);
    return std::any_of(value.as_array().begin(), value.as_array().end(),
                       [&](const Json& element) { return names_value(values, element); });
  }
  return covers_name(word, name);
}

}  // namespace

std::span<const Feature> features() { return kFeatures; }

const Feature& feature_of(const Setting& setting, const Json& value) {
  const std::string name = setting.name();
  for (const Feature& feature : kFeatures)
    if (any_word(feature.settings, [&](std::string_view word) { return covers(word, name, value); }))
      return feature;
  fail("the setting {} belongs to no feature of the support table", name);
}

}  // namespace megatron
