#include "megatron/config/sources/upstream_flags.h"

#include <algorithm>
#include <string>

#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/string_list.h"

namespace megatron {
namespace {

using enum UpstreamFlag::Verdict;

constexpr std::string_view fused = "kernels are always fused where that is faster";
constexpr std::string_view by_shape = "kernels are chosen by shape";
constexpr std::string_view no_interpreter = "there is no Python interpreter here";
constexpr std::string_view no_torch = "PyTorch and Transformer Engine are not used here";
constexpr std::string_view own_threads = "saving uses threads of the same process";
constexpr std::string_view one_model = "there is one implementation of each model";
constexpr std::string_view no_vision = "it is of vision and retrieval pre-training; remove it";
constexpr std::string_view no_masked_model =
    "it is of BERT's and T5's data, which this program does not train; remove it";
constexpr std::string_view no_multimodal =
    "it is of multimodal training scripts; remove it, or train the language model alone";
constexpr std::string_view no_encoder = "it is of models of encoder and decoder; remove it";
constexpr std::string_view no_retro = "it is of retrieval (Retro); remove it";
constexpr std::string_view no_flextron = "it is of elastic sub-networks; remove it";
constexpr std::string_view of_launcher =
    "the launcher takes it: start processes with mpirun, srun or torchrun --no-python, or ranks as threads "
    "with --ranks";
constexpr std::string_view of_generation =
    "it is of scripts that generate text: see megatron generate; remove it from what trains a model";
constexpr std::string_view no_service = "this service is not connected; use --metrics or --tensorboard-dir";

constexpr UpstreamFlag kUpstreamFlags[] = {
    // Kernels and libraries
    {no_effect, "model.transformer_impl", "--transformer-impl", 1, one_model},
    {no_effect, "model.attention_backend", "--attention-backend", 1, by_shape},
    {no_effect, "", "--use-flash-attn", 0, "attention is always flash attention"},
    {no_effect, "model.flash_attention_version", "--flash-attention-version", 1, by_shape},
    {no_effect, "", "--use-mcore-models", 0, one_model},
    {no_effect, "model.attention_softmax_in_fp32", "--attention-softmax-in-fp32", 0,
     "softmax always runs in fp32"},
    {no_effect, "model.masked_softmax_fusion", "--no-masked-softmax-fusion", 0, fused},
    {no_effect, "model.bias_activation_fusion", "--no-bias-gelu-fusion --no-bias-swiglu-fusion", 0, fused},
    {no_effect, "model.bias_dropout_fusion", "--no-bias-dropout-fusion", 0, fused},
    {no_effect, "model.apply_rope_fusion", "--no-rope-fusion --apply-rope-fusion", 0, fused},
    {no_effect, "model.persist_layer_norm", "--no-persist-layer-norm", 0, fused},
    {no_effect, "model.memory_efficient_layer_norm", "", 0, fused},
    {no_effect, "model.gradient_accumulation_fusion", "--no-gradient-accumulation-fusion", 0,
     "weight gradients always accumulate in their product"},
    {no_effect, "model.cross_entropy_loss_fusion", "--cross-entropy-loss-fusion", 0, fused},
    {no_effect, "model.cross_entropy_fusion_impl", "--cross-entropy-fusion-impl", 1, fused},
    {no_effect, "model.fused_single_qkv_rope", "", 0, fused},
    {no_effect, "model.fused_residual_rmsnorm", "--fused-residual-rmsnorm", 0, fused},
    {no_effect, "model.use_fused_weighted_squared_relu", "--use-fused-weighted-squared-relu", 0, fused},
    {no_effect, "model.use_transformer_engine_op_fuser", "--use-transformer-engine-op-fuser", 0, no_torch},
    {no_effect, "model.use_te_activation_func", "--use-te-activation-func", 0, no_torch},
    {no_effect, "model.mla_down_proj_fusion", "--mla-down-proj-fusion", 0, fused},
    {no_effect, "model.moe_grouped_gemm", "--moe-grouped-gemm", 0, "experts are always one grouped product"},
    {no_effect, "model.moe_use_legacy_grouped_gemm", "--moe-use-legacy-grouped-gemm", 0,
     "experts are always one grouped product"},
    {no_effect, "model.moe_use_grouped_tensor", "--moe-use-grouped-tensor", 0,
     "experts are always one grouped product"},
    {no_effect, "model.moe_single_grouped_weight", "--moe-single-grouped-weight", 0,
     "experts are always one grouped product"},
    {no_effect, "model.moe_single_grouped_bias", "--moe-single-grouped-bias", 0,
     "experts are always one grouped product"},
    {no_effect, "model.use_grouped_gemm_for_shared_expert", "--use-grouped-gemm-for-shared-expert", 0,
     by_shape},
    {no_effect, "model.use_grouped_gemm_for_dense_mlp", "--use-grouped-gemm-for-dense-mlp", 0, by_shape},
    {no_effect, "model.moe_permute_fusion", "--moe-permute-fusion", 0, fused},
    {no_effect, "model.moe_router_fusion", "--moe-router-fusion", 0, fused},
    {no_effect, "model.moe_permute_fusion_into_hybridep", "--moe-permute-fusion-into-hybridep", 0, fused},
    {no_effect, "model.moe_hybridep_pad_uneven_dispatch_inputs", "--moe-hybridep-pad-uneven-dispatch-inputs",
     0, by_shape},
    {no_effect, "model.moe_hybridep_num_blocks_permute", "--moe-hybridep-num-blocks-permute", 1, by_shape},
    {no_effect, "model.moe_hybridep_num_blocks_unpermute", "--moe-hybridep-num-blocks-unpermute", 1,
     by_shape},
    {no_effect, "model.moe_hybridep_num_sms_preprocessing", "--moe-hybridep-num-sms-preprocessing", 1,
     by_shape},
    {no_effect, "model.moe_ncclep_zero_copy", "--moe-ncclep-zero-copy", 0, by_shape},
    {no_effect, "model.moe_mlp_glu_interleave_size", "--moe-mlp-glu-interleave-size", 1, by_shape},
    {no_effect, "model.moe_shared_expert_glu_interleave_size", "--moe-shared-expert-glu-interleave-size", 1,
     by_shape},
    {no_effect, "model.moe_pad_experts_for_cuda_graph_inference",
     "--moe-pad-experts-for-cuda-graph-inference", 0,
     "token counts stay on the device, so graphs need no padding"},
    {no_effect, "model.high_priority_a2a_comm_stream", "--high-priority-a2a-comm-stream", 0,
     "tokens of experts always travel on a stream of high priority"},
    {no_effect, "model.dsa_kernel_backend", "--dsa-kernel-backend", 1, by_shape},
    {no_effect, "model.use_mamba_mem_eff_path", "--disable-mamba-mem-eff-path", 0, fused},
    {no_effect, "model.gdp_cutedsl_kernel", "--gdp-cutedsl-kernel", 0, by_shape},
    {no_effect, "model.gdp_num_chunk_states_to_recompute", "--gdp-num-chunk-states-to-recompute", 1,
     by_shape},
    {no_effect, "model.mamba_training_ssm_states_dtype", "--mamba-training-ssm-states-dtype", 1,
     "Mamba's states are fp32 while training"},
    {no_effect, "model.tp_comm_split_ag", "--no-tp-comm-split-ag --disable-tp-comm-split-ag", 0, by_shape},
    {no_effect, "model.tp_comm_split_rs", "--no-tp-comm-split-rs --disable-tp-comm-split-rs", 0, by_shape},
    {no_effect, "model.tp_comm_atomic_ag", "", 0, by_shape},
    {no_effect, "model.tp_comm_atomic_rs", "", 0, by_shape},
    {no_effect, "model.batch_p2p_comm", "", 0, "messages between stages are batched unless they overlap"},
    {no_effect, "comm_overlap.batch_p2p_comm", "", 0,
     "messages between stages are batched unless they overlap"},
    {no_effect, "model.batch_p2p_sync", "", 0, no_torch},
    {no_effect, "model.use_ring_exchange_p2p", "--use-ring-exchange-p2p", 0, no_torch},
    {no_effect, "model.deallocate_pipeline_outputs", "", 0, "outputs are always freed once sent"},
    {no_effect, "model.enable_autocast", "", 0, "the number format of each operation is fixed"},
    {no_effect, "model.autocast_dtype", "", 0, "the number format of each operation is fixed"},
    {no_effect, "model.clone_scatter_output_in_embedding",
     "--no-clone-scatter-output-in-embedding --disable-clone-scatter-output-in-embedding", 0,
     "buffers are freed as soon as they are no longer used"},
    {no_effect, "model.disable_parameter_transpose_cache", "", 0,
     "transposed weights are kept only where asked for"},
    {no_effect, "model.activation_func_fp8_input_store", "", 0, fused},
    {no_effect, "model.cuda_graph_use_single_mempool", "", 0, "graphs share one pool"},
    {no_effect, "model.cuda_graph_retain_backward_graph", "", 0,
     "graphs are kept as long as they are replayed"},
    {no_effect, "model.use_cpu_initialization", "--use-cpu-initialization", 0,
     "initial weights are the same on every device and layout"},
    {no_effect, "model.barrier_with_L1_time", "--no-barrier-with-level-1-timing", 0,
     "timers do not add barriers"},
    {no_effect, "logger.barrier_with_L1_time", "", 0, "timers do not add barriers"},
    {no_effect, "model.symmetric_ar_type", "--symmetric-ar-type", 1, by_shape},
    {no_effect, "model.nccl_all_reduce_for_prefill", "--nccl-all-reduce-for-prefill", 0, by_shape},
    {no_effect, "model.inference_fuse_tp_communication", "--inference-fuse-tp-communication", 0, fused},
    {no_effect, "model.inference_grouped_gemm_backend", "--inference-grouped-gemm-backend", 1, by_shape},
    {no_effect, "model.inference_disable_triton_nvls_kernels", "--inference-disable-triton-nvls-kernels", 0,
     by_shape},
    {no_effect, "model.inference_moe_disable_fused_quant_kernels",
     "--inference-moe-disable-fused-quant-kernels", 0, fused},
    {no_effect, "model.inference_moe_token_dispatcher_type", "--inference-moe-token-dispatcher-type", 1,
     by_shape},
    {no_effect, "model.batch_invariant_backend", "--batch-invariant-backend", 1, by_shape},
    {no_effect, "inference.inference_dynamic_batching_sampling_backend",
     "--inference-dynamic-batching-sampling-backend", 1, by_shape},
    {no_effect, "inference.use_flashinfer_fused_rope", "--use-flashinfer-fused-rope", 0, fused},
    {no_effect, "optimizer.muon_fp32_matmul_prec", "--muon-fp32-matmul-prec", 1, by_shape},
    {no_effect, "optimizer.muon_use_syrk", "--muon-use-syrk", 0, by_shape},
    {no_effect, "optimizer.use_torch_optimizer_for_cpu_offload", "--use-torch-optimizer-for-cpu-offload", 0,
     no_torch},
    {no_effect, "optimizer.pin_cpu_grads", "--no-pin-cpu-grads", 0,
     "host buffers are pinned where a GPU is used"},
    {no_effect, "optimizer.pin_cpu_params", "--no-pin-cpu-params", 0,
     "host buffers are pinned where a GPU is used"},
    {no_effect, "ddp.gradient_reduce_div_fusion", "--no-gradient-reduce-div-fusion", 0, fused},
    {no_effect, "ddp.disable_symmetric_registration", "--disable-symmetric-registration", 0, by_shape},
    {no_effect, "ddp.fsdp_manual_registration", "--fsdp-manual-registration", 0, by_shape},
    {no_effect, "ddp.fsdp_db_use_persist_buf_on_alloc_fail", "--fsdp-db-use-persist-buf-on-alloc-fail", 0,
     "buffers are planned before the run"},
    {no_effect, "ddp.fsdp_all_gather_in_start_param_sync", "", 0, "gathers start as early as they can"},
    {no_effect, "ddp.megatron_fsdp_max_pool_double_buffer", "--megatron-fsdp-max-pool-double-buffer", 0,
     "buffers are planned before the run"},
    {no_effect, "ddp.megatron_fsdp_enable_fine_grained_param_gather",
     "--megatron-fsdp-enable-fine-grained-param-gather", 0, "gathers are as fine as the weights' uses"},
    {no_effect, "ddp.megatron_fsdp_version", "--megatron-fsdp-version", 1,
     "there is one sharded data parallelism"},
    {no_effect, "", "--no-use-layer-wise-param-layout", 0, "there is one parameter layout"},
    // Python and PyTorch
    {no_effect, "train.manual_gc", "--manual-gc", 0, no_interpreter},
    {no_effect, "train.manual_gc_interval", "--manual-gc-interval", 1, no_interpreter},
    {no_effect, "train.manual_gc_eval", "--no-manual-gc-eval --disable-manual-gc-eval", 0, no_interpreter},
    {no_effect, "train.exit_signal_handler_for_dataloader", "--exit-signal-handler-for-dataloader", 0,
     "data threads live in the same process"},
    {no_effect, "train.exit_signal_handler_for_training", "--exit-signal-handler-for-training", 0,
     "there is one signal handler"},
    {no_effect, "dist.distributed_backend", "--distributed-backend", 1, "ranks talk as --comm says"},
    {no_effect, "dist.backend", "", 0, "ranks talk as --comm says"},
    {no_effect, "dist.use_gloo_process_groups", "--disable-gloo-process-groups --enable-gloo-process-groups",
     0, "host-side groups need no Gloo"},
    {no_effect, "dist.local_rank", "--local-rank", 1, "ranks are found from the launcher's environment"},
    {no_effect, "dist.lazy_mpu_init", "--lazy-mpu-init", 0, "groups are values"},
    {no_effect, "dist.disable_jit_fuser", "--disable-jit-fuser", 0, no_torch},
    {no_effect, "dist.external_gpu_device_mapping", "", 0, "rank i uses GPU i mod n of what it sees"},
    {no_effect, "dist.use_decentralized_pg", "", 0, "groups are values"},
    {no_effect, "dist.flight_recorder_dump_on_timeout",
     "--no-flight-recorder-dump-on-timeout --disable-flight-recorder-dump-on-timeout", 0,
     "collectives are always recorded"},
    {no_effect, "dist.flight_recorder_include_stack_trace", "--flight-recorder-include-stack-trace", 0,
     no_interpreter},
    {no_effect, "dist.flight_recorder_include_only_active",
     "--no-flight-recorder-include-only-active --disable-flight-recorder-include-only-active", 0,
     "collectives are always recorded"},
    {no_effect, "dist.flight_recorder_extra_dump_on_exec",
     "--no-flight-recorder-extra-dump-on-exec --disable-flight-recorder-extra-dump-on-exec", 0,
     "collectives are always recorded"},
    {no_effect, "dataset.pin_memory", "", 0, "host buffers are pinned where a GPU is used"},
    {no_effect, "dataset.persistent_workers", "", 0, "data threads live as long as the run"},
    {no_effect, "dataset.drop_last", "", 0, "an incomplete last batch is left out"},
    {no_effect, "dataset.memmap_workers", "", 0, "--num-workers threads read data"},
    {no_effect, "rng.te_rng_tracker", "--te-rng-tracker", 0, "random numbers come from a counter"},
    {no_effect, "rng.inference_rng_tracker", "--inference-rng-tracker", 0,
     "random numbers come from a counter"},
    {no_effect, "model.use_te_rng_tracker", "", 0, "random numbers come from a counter"},
    {no_effect, "logger.filter_warnings", "", 0, no_interpreter},
    {no_effect, "logger.modules_to_filter", "", 0, no_interpreter},
    {no_effect, "logger.set_level_for_all_loggers", "", 0, no_interpreter},
    {no_effect, "logger.memory_keys", "", 0, "memory is reported by tag"},
    {no_effect, "logger.runtime_time_unit", "", 0, "times carry their unit"},
    {no_effect, "profiling.pytorch_profiler_collect_shapes", "--pytorch-profiler-collect-shapes", 0,
     "traces always hold shapes"},
    {no_effect, "profiling.pytorch_profiler_collect_callstack", "--pytorch-profiler-collect-callstack", 0,
     no_interpreter},
    {no_effect, "profiling.pytorch_profiler_collect_chakra", "--pytorch-profiler-collect-chakra", 0,
     no_torch},
    {no_effect, "", "--enable-experimental", 0, "no feature is locked away"},
    {no_effect, "", "--enable-msc --disable-msc", 0, "files are read from the file system"},
    {no_effect, "", "--no-one-logger --one-logger-async", 0, no_torch},
    {no_effect, "", "--one-logger-project --one-logger-run-name --app-tag-run-name --app-tag-run-version", 1,
     no_torch},
    {no_effect, "", "--run-workload-inspector-server", 0, no_torch},
    {no_effect, "", "--onnx-safe", 1, no_torch},
    {no_effect, "tokenizer.tokenizer_hf_no_use_fast", "--tokenizer-hf-no-use-fast", 0,
     "there is one implementation of each tokenizer"},
    {no_effect, "tokenizer.trust_remote_code", "--trust-remote-code", 0,
     "no code of a model's folder is ever run"},
    {no_effect, "tokenizer.use_gigatoken", "--use-gigatoken", 0,
     "there is one implementation of each tokenizer"},
    {no_effect, "checkpoint.hf_trust_remote_code", "", 0, "no code of a model's folder is ever run"},
    {no_effect, "checkpoint.hf_distributed_save", "", 0, "all ranks write"},
    {no_effect, "checkpoint.hf_save_every_n_ranks", "", 0, "all ranks write"},
    {no_effect, "nvrx_straggler.enable_logging", "", 0, "reports are always logged"},
    {no_effect, "nvrx_straggler.logger_name", "", 0, "there is one log"},
    {no_effect, "inprocess_restart.max_rank_faults", "", 0,
     "a rank may fail as often as restarts are allowed"},
    {no_effect, "inprocess_restart.monitor_process_logdir", "", 0, "there is one log"},
    // Checkpoints
    {no_effect, "checkpoint.async_strategy", "--async-strategy", 1, own_threads},
    {no_effect, "checkpoint.use_persistent_ckpt_worker", "--use-persistent-ckpt-worker", 0, own_threads},
    {no_effect, "checkpoint.async_ckpt_cpu_priority", "--async-ckpt-cpu-priority", 1, own_threads},
    {no_effect, "checkpoint.async_ckpt_io_priority", "--async-ckpt-io-priority", 1, own_threads},
    {no_effect, "checkpoint.async_ckpt_use_cpu_shm", "--async-ckpt-use-cpu-shm", 0, own_threads},
    {no_effect, "checkpoint.ckpt_fully_parallel_load_exchange_algo",
     "--ckpt-fully-parallel-load-exchange-algo", 1, "ranks read just what they need"},
    {no_effect, "checkpoint.ckpt_fully_parallel_load_per_rank_objects",
     "--ckpt-fully-parallel-load-per-rank-objects", 0, "ranks read just what they need"},
    {no_effect, "checkpoint.ckpt_fully_parallel_save_process_group",
     "--ckpt-fully-parallel-save-process-group", 1, "all replicas share the writing"},
    {no_effect, "checkpoint.ckpt_fully_parallel_load_process_group",
     "--ckpt-fully-parallel-load-process-group", 1, "ranks read just what they need"},
    {no_effect, "checkpoint.ckpt_pg_tensors_cache_path", "--ckpt-pg-tensors-cache-path", 1,
     "ranks read just what they need"},
    {no_effect, "checkpoint.ckpt_pg_tensors_cache_create", "--ckpt-pg-tensors-cache-create", 0,
     "ranks read just what they need"},
    {no_effect, "checkpoint.ckpt_load_validate_sharding_integrity",
     "--no-ckpt-load-validate-sharding-integrity --disable-ckpt-load-validate-sharding-integrity", 0,
     "what is loaded is always checked"},
    {no_effect, "checkpoint.strict_fsdp_dtensor_load",
     "--no-strict-fsdp-dtensor-load --disable-strict-fsdp-dtensor-load", 0,
     "what is loaded is always checked"},
    {no_effect, "checkpoint.dist_ckpt_save_pre_mcore_014", "--dist-ckpt-save-pre-mcore-014", 0,
     "there is one layout of optimizer states"},
    {no_effect, "checkpoint.distrib_optim_fully_reshardable_mem_efficient",
     "--distrib-optim-fully-reshardable-mem-efficient", 0, "optimizer states are never gathered"},
    {no_effect, "checkpoint.ckpt_convert_update_legacy_dist_opt_format",
     "--ckpt-convert-update-legacy-dist-opt-format", 0, "there is one layout of optimizer states"},
    {no_effect, "", "--use-dist-ckpt", 0, "checkpoints are always distributed"},
    {no_effect, "", "--dist-ckpt-format", 1, "the layout of the files is --ckpt-format"},
    {no_effect, "", "--ckpt-drop-redundant-extra-state", 0, "there is no extra state"},
    {no_effect, "", "--dump-param-to-param-group-map", 1, "see megatron plan for parameter groups"},
    {no_effect, "", "--result-rejected-tracker-filename", 1, "rejected results are in the log"},
    // Services
    {refused, "logger.mlflow_*", "", 0, no_service},
    {refused, "logger.comet_*", "", 0, no_service},
    {refused, "", "--otel-enabled", 0, no_service},
    {refused, "", "--otel-service-name --otel-span-groups", 1, no_service},
    {refused, "", "--adlr-autoresume", 0, "use --exit-signal-handler, which saves and leaves on a signal"},
    {refused, "", "--adlr-autoresume-interval", 1,
     "use --exit-signal-handler, which saves and leaves on a signal"},
    {no_effect, "model.config_logger_dir", "--config-logger-dir", 1,
     "the resolved configuration is kept with each checkpoint"},
    {no_effect, "model.cpu_offloading_retain_pinned_cpu_buffers",
     "--cpu-offloading-retain-pinned-cpu-buffers", 0, "buffers are planned before the run"},
    {no_effect, "model.cpu_offloading_double_buffering", "", 0, "buffers are planned before the run"},
    {no_effect, "model.delay_offload_until_cuda_graph", "--delay-offload-until-cuda-graph", 0, by_shape},
    {no_effect, "",
     "--gtp-remat-nccl-ub --gtp-expert-remat-nccl-ub --gtp-remat-reduce-scatter-with-fp32-accumulation", 0,
     by_shape},
    {no_effect, "model.gtp_remat_opt_in_modules", "--gtp-remat-opt-in-modules", -1, "all modules take part"},
    {no_effect, "model.inference_cuda_graph_scope", "--inference-cuda-graph-scope", 1, by_shape},
    {no_effect, "inference.inference_disable_ep_consensus", "--inference-disable-ep-consensus", 0,
     "expert-parallel ranks step together"},
    {no_effect, "inference.inference_use_synchronous_zmq_collectives",
     "--inference-use-synchronous-zmq-collectives", 0, "replicas talk through the process group"},
    {no_effect, "inference.inference_dynamic_batching_async_sched_mode",
     "--inference-dynamic-batching-async-sched-mode", 1, "batches are always planned ahead"},
    {no_effect, "inference.inference_dynamic_batching_track_paused_request_events",
     "--inference-dynamic-batching-track-paused-request-events", 0, "the trace holds every event"},
    {no_effect, "inference.inference_dynamic_batching_track_generated_token_events",
     "--inference-dynamic-batching-track-generated-token-events", 0, "the trace holds every event"},
    {no_effect, "inference.inference_text_gen_server_logging", "--inference-text-gen-server-logging", 0,
     "requests are logged with -v"},
    {refused, "inference.inference_wandb_logging", "--inference-wandb-logging", 0, no_service},
    {no_effect, "", "--logits-load-msc-prefetch-depth", 1, "files are read from the file system"},
    {no_effect, "model.mtp_standalone", "--mtp-standalone", 0,
     "a stage of MTP layers alone follows from the layout"},
    {no_effect, "model.mup_width_mult", "--mup-width-mult", 1,
     "the width's multiple follows from --mup-base-hidden-size"},
    {no_effect, "", "--runtime-time-unit", 1, "times carry their unit"},
    // Retired names
    {refused, "", "--batch-size", 1, "use --micro-batch-size"},
    {refused, "", "--warmup", 1, "use --lr-warmup-fraction"},
    {refused, "", "--model-parallel-size", 1, "use --tensor-model-parallel-size"},
    {refused, "", "--checkpoint-activations", 0, "use --recompute-activations"},
    {refused, "", "--yaml-cfg", 1,
     "use --config FILE.yaml, whose sections are those of megatron config show"},
    {refused, "model.enable_cuda_graph", "--enable-cuda-graph", 0, "use --cuda-graph-impl local"},
    {refused, "model.external_cuda_graph", "--external-cuda-graph", 0,
     "use --cuda-graph-impl transformer_engine"},
    {refused, "model.moe_enable_deepep", "--moe-enable-deepep", 0,
     "use --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep"},
    {refused, "model.moe_layer_recompute", "--moe-layer-recompute", 0,
     "use --recompute-granularity selective --recompute-modules moe"},
    {refused, "model.moe_token_dropping", "", 0, "use model.moe_expert_capacity_factor"},
    {refused, "model.moe_router_topk_limited_devices", "--moe-router-topk-limited-devices", 1,
     "use --moe-router-num-groups and --moe-router-group-topk"},
    {refused, "ddp.use_custom_fsdp", "--use-custom-fsdp", 0, "use --use-megatron-fsdp"},
    {refused, "dist.use_torch_fsdp2", "--use-torch-fsdp2", 0, "use --use-megatron-fsdp"},
    {refused, "", "--torch-fsdp2-no-reshard-after-forward", 0, "use --use-megatron-fsdp"},
    {refused, "", "--enable-full-sharding-in-hsdp", 0, "use --outer-dp-sharding-strategy optim"},
    {refused, "scheduler.no_weight_decay_cond_type", "--no-weight-decay-cond-type", 1,
     "use --apply-wd-to-qk-layernorm"},
    // Other programs
    {refused, "", "--spec", -1, "a model is described by its settings; remove it"},
    {refused, "model.use_kitchen", "--use-kitchen", 0, "use --fp8-format and --fp8-recipe"},
    {refused, "model.use_kitchen_attention", "--use-kitchen-attention", 0, "remove it"},
    {refused, "model.kitchen_attention_backend", "--kitchen-attention-backend", 1, "remove it"},
    {refused, "", "--kitchen-config-file --kitchen-recipe-number", 1, "use --te-precision-config-file"},
    {refused, "model.fp8_quantizer_factory", "--fp8-quantizer-factory", 1,
     "Python functions cannot be called; choose a --fp8-recipe"},
    {refused, "model.fp4_quantizer_factory", "--fp4-quantizer-factory", 1,
     "Python functions cannot be called; choose a --fp4-recipe"},
    {refused, "", "--fake-process-group", 0, "use megatron plan, which needs no ranks"},
    {refused, "tensor_inspect.*", "", 0, "remove the section"},
    {refused, "optimizer_config_override_provider", "", 0, "Python functions cannot be called; remove it"},
    {refused, "", "--use-legacy-static-engine --output-bert-embeddings", 0, "remove it"},
    {refused, "", "--bert-embedder-type", 1, "remove it"},
    {refused, "",
     "--vision-pretraining --biencoder-shared-query-context-model --use-one-sent-docs "
     "--retriever-score-scaling --dino-norm-last-layer",
     0, no_vision},
    {refused, "",
     "--img-h --img-w --patch-dim --num-channels --num-classes --classes-fraction "
     "--data-per-class-fraction --head-lr-mult --vision-pretraining-type --vision-backbone-type "
     "--swin-backbone-type --mask-type --mask-factor --iter-per-epoch --dino-local-img-size "
     "--dino-local-crops-number --dino-head-hidden-size --dino-bottleneck-size --dino-freeze-last-layer "
     "--dino-warmup-teacher-temp --dino-teacher-temp --dino-warmup-teacher-temp-epochs --ict-head-size "
     "--biencoder-projection-dim --ict-load --bert-load --titles-data-path --query-in-block-prob "
     "--evidence-data-path --block-data-path --embedding-path --indexer-batch-size --indexer-log-interval "
     "--sample-rate",
     1, no_vision},
    {refused, "", "--mask-prob --short-seq-prob", 1, no_masked_model},
    {refused, "",
     "--freeze-LM --freeze-ViT --use-tiling --use-thumbnail --disable-vision-class-token --use-te "
     "--allow-missing-vision-projection-checkpoint --pixel-shuffle --use-pixel-shuffle-only --use-tile-tags "
     "--use-loss-scaling --use-area-weighted-aspect-ratio --recompute-vision --force-system-message "
     "--use-packed-sequence --dynamic-resolution --encoder-ddp-overlap --hf-assign-unused-tokens",
     0, no_multimodal},
    {refused, "", "--special-tokens", -1, no_multimodal},
    {refused, "",
     "--language-model-type --vision-model-type --max-num-tiles --model-provider --dataset-provider "
     "--image-tag-type --prompt-path --tokenizer-prompt-format --inference-type --model-temperature "
     "--dataloader-save --dataloader-seq-length --total-seq-length --packing-seq-length "
     "--packing-buffer-size --num-frames --image-token-id --language-model-checkpoint --audio-encoder-model "
     "--encoder-dp --encoder-tp --llm-cp --llm-dp --llm-ep --llm-expt-tp --llm-offset --llm-pp --llm-tp",
     1, no_multimodal},
    // Launchers, and scripts that do not train
    {refused, "", "--nproc-per-node --nproc --nnodes --node-rank --master-addr --master-port", 1,
     of_launcher},
    {refused, "", "--inference-ckpt-non-strict --use-coordinator --drain-between-batches", 0, of_generation},
    {refused, "",
     "--num-tokens-to-generate --out-seq-length --temperature --top-k --top-p --top-n-logprobs "
     "--termination-id --output-path --prompt-file --prompt-file-num-truncate --inference-repeat-n "
     "--incoming-requests-per-sec --incoming-requests-per-step --batch-boundaries --output-every-n-results "
     "--suspend-resume-interval --suspend-timeout --inference-server-conversation-template "
     "--sample-input-file "
     "--sample-output-file --num-samples --genfile",
     1, of_generation},
    {refused, "", "--prompts --stop-words", -1, of_generation},
    {refused, "", "--no-record-throughput", 0, of_generation},
    {refused, "",
     "--pipeline-model-parallel-split-rank --encoder-tensor-model-parallel-size "
     "--encoder-pipeline-model-parallel-size",
     1, no_encoder},
    {refused, "", "--retro-add-retriever --retro-verify-neighbor-count --retro-no-verify-neighbor-count", 0,
     no_retro},
    {refused, "",
     "--retro-project-dir --retro-workdir --retro-cyclic-train-iters --retro-encoder-layers "
     "--retro-encoder-hidden-dropout --retro-encoder-attention-dropout --retro-num-neighbors "
     "--retro-num-retrieved-chunks --retro-attention-gate --retro-chunk-length",
     1, no_retro},
    // Retired upstream
    {refused, "", "--DDP-impl", 1, "there is one data parallelism; see --use-distributed-optimizer"},
    {refused, "", "--activations-checkpoint-method", 1,
     "use --recompute-method with --recompute-granularity full"},
    {refused, "", "--hybrid-attention-ratio --hybrid-mlp-ratio", 1,
     "name each layer's kind with --hybrid-layer-pattern"},
    {refused, "", "--use-legacy-models", 0, "there is one implementation of each model; remove it"},
    {refused, "", "--legacy-tokenizer", 0, "there is one implementation of each tokenizer; remove it"},
    {no_effect, "", "--no-async-tensor-model-parallel-allreduce", 0, by_shape},
    {refused, "", "--layernorm-epsilon", 1, "use --norm-epsilon"},
    {refused, "", "--s3-cache-path", 1,
     "files are read from the file system; mount the bucket, and remove it"},
    {refused, "", "--delay-grad-reduce", 0, "it is the default; remove it"},
    {no_effect, "", "--log-batch-size-to-tensorboard", 0, "the batch size is always logged"},
    {refused, "", "--retriever-report-topk-accuracies", -1, no_vision},
    {refused, "",
     "--flextron --distillation --distill-only --binary-mask --slice --soft-mask "
     "--enable-router --add-skipping --no-attn-skip --flex-strict --is-flex-eval "
     "--freeze-router --freeze-model --flex-hetero-ffn --flex-hetero-mamba "
     "--flex-hetero-moe-expert --normalize-router-logits --disable-budget",
     0, no_flextron},
    {refused, "",
     "--distill-coeff --lr-mult-router --router-std --router-beta --loss-alpha --tau-init --tau-decay "
     "--router-inter-dim --linear-scaler-start --linear-scaler-end --router-gbs --budget-type "
     "--memory-profile --hard-sample-th --original-model-sample-prob --flextron-config-file "
     "--basemodel-type --bpe-kv-cache --bpe-max-buffer --bpe-params --bpe-ssm-cache --curr-iteration "
     "--mem-batch-size --mem-infer-seq-len --memory-profile-path --param-budget-target --prefill-chunk-size "
     "--skip-num-attn-layer-constraint --skip-total-layer-constraint",
     1, no_flextron},
    {refused, "",
     "--budget-list --budget-probs --mamba-int-list --mlp-int-list --emb-int-list "
     "--moe-expert-int-list --mamba-per-list --mlp-per-list --emb-per-list "
     "--moe-expert-per-list --layer-ranking-list --override-selected-budget --log-budgets --force-emb "
     "--force-mamba --force-mlp --force-router-skip",
     -1, no_flextron},
    {refused, "",
     "--export-legacy-megatron --export-te-mcore-model --export-default-te-spec "
     "--export-force-local-attention --export-qk-l2-norm --export-moe-apply-probs-on-input "
     "--export-offline-model --modelopt-enabled --enable-gpt-oss --freeze-base-for-mtp",
     0, "use megatron convert; remove it"},
    {refused, "", "--finetune-hf-dataset --finetune-data-split", 1, "use --data-path with --sft"},
    {refused, "", "--finetune-data-files", -1, "use --data-path with --sft"},
};

}  // namespace

std::span<const UpstreamFlag> upstream_flags() { return kUpstreamFlags; }

const UpstreamFlag* find_upstream_flag(std::string_view flag) {
  const std::string name = canonical_flag(flag);
  for (const UpstreamFlag& row : kUpstreamFlags)
    if (holds_word(row.flags, name)) return &row;
  return nullptr;
}

const UpstreamFlag* find_upstream_key(std::string_view key) {
  for (const UpstreamFlag& row : kUpstreamFlags) {
    if (row.key == key) return &row;
    if (row.key.ends_with('*') && key.starts_with(row.key.substr(0, row.key.size() - 1))) return &row;
  }
  return nullptr;
}

}  // namespace megatron
