#include "megatron/config/resolve/derive.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/config/resolve/batch_steps.h"
#include "megatron/config/resolve/distill_file.h"
#include "megatron/config/resolve/finetune_files.h"
#include "megatron/config/resolve/hybrid_layers.h"
#include "megatron/config/resolve/layer_blocks.h"
#include "megatron/config/resolve/model_type.h"
#include "megatron/config/resolve/pipeline_layout.h"
#include "megatron/config/resolve/vision_tower.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

// Megatron-FSDP has a format of its own, which goes before those of other data parallelism.
void gradient_format(ConfigBuilder& builder, bool half, const std::string& why) {
  const Config& config = builder.config;
  const char* key = "ddp.grad_reduce_in_fp32";
  const std::string& fsdp = config.ddp.megatron_fsdp_main_grads_dtype;
  if (config.ddp.use_megatron_fsdp && (fsdp == "fp32" || fsdp == "bf16")) {
    if (config.ddp.grad_reduce_in_fp32.value_or(fsdp == "fp32") != (fsdp == "fp32"))
      builder.note(fmt::format("megatron_fsdp_main_grads_dtype: gradients are {}", fsdp));
    builder.derive(key, fsdp == "fp32", "megatron_fsdp_main_grads_dtype");
  } else if (!config.ddp.grad_reduce_in_fp32) {
    const bool narrow = config.precision.bf16 && config.optimizer.main_grads_dtype == "bf16";
    builder.derive(key, half && !narrow, narrow ? "main_grads_dtype" : why);
  }
  if (config.ddp.reduce_scatter_with_fp32_accumulation &&
      (config.ddp.grad_reduce_in_fp32.value_or(true) || !config.precision.bf16)) {
    builder.derive("ddp.reduce_scatter_with_fp32_accumulation", false, "gradients are fp32");
    builder.note("reduce_scatter_with_fp32_accumulation is switched off: gradients are fp32 as they are");
  }
}

// Matrix units for numbers of four bits are those of later GPUs.
void derive_fp4(ConfigBuilder& builder) {
  const PrecisionConfig& precision = builder.config.precision;
  if (precision.fp4 == Fp4Format::none || precision.fp8 != Fp8Format::none) return;
  builder.derive("model.fp8", "e4m3", "fp4 has no kernels here");
  builder.derive("model.fp8_recipe", "blockwise", "fp4 has no kernels here");
  builder.derive("model.fp4", "none", "fp8 stands in for it");
  builder.note("fp4 e2m1: numbers of four bits have no kernels here; fp8 e4m3, blockwise, is used");
}

void number_formats(ConfigBuilder& builder) {
  const PrecisionConfig& precision = builder.config.precision;
  const char* dtype = precision.bf16 ? "bf16" : precision.fp16 ? "fp16" : "fp32";
  const std::string why = precision.bf16 ? "bf16" : precision.fp16 ? "fp16" : "neither bf16 nor fp16";
  if (!builder.given("model.params_dtype")) builder.derive("model.params_dtype", dtype, why);
  if (!builder.given("model.pipeline_dtype"))
    builder.derive("model.pipeline_dtype", precision.params_dtype, "params_dtype");
  gradient_format(builder, precision.bf16 || precision.fp16, why);
  // Blocks of 32 numbers need matrix units of later GPUs; those of 128 scale as finely as Hopper's can.
  if (precision.fp8 != Fp8Format::none && precision.fp8_recipe == Fp8Recipe::mxfp8) {
    builder.derive("model.fp8_recipe", "blockwise", "mxfp8 has no kernels here");
    builder.note("fp8_recipe mxfp8: blocks of 32 have no kernels here; blockwise (blocks of 128) is used");
  }
  derive_fp4(builder);
  // Overflows are the business of a loss scale that adapts.
  if (!precision.fp16 || builder.config.optimizer.loss_scale) return;
  for (const char* name : {"ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss"})
    if (!builder.given(name)) builder.derive(name, false, "fp16 skips steps that overflow");
}

void offload_and_graphs(ConfigBuilder& builder) {
  const ExecutionConfig& execution = builder.config.execution;
  if (execution.cpu_offloading_num_layers > 0 && !builder.given("model.cpu_offloading"))
    builder.derive("model.cpu_offloading", true, "cpu_offloading_num_layers");
  const std::vector<std::string>& modules = execution.offload_modules;
  if (std::find(modules.begin(), modules.end(), "fused_group_mlp") != modules.end()) {
    // The input of all that experts do is that of their first GEMM; what is fused otherwise is the
    // activation.
    Json list = Json::array();
    for (const std::string& module : modules)
      if (module != "fused_group_mlp" && module != "expert_fc1" && module != "moe_act")
        list.push_back(module);
    list.push_back("expert_fc1");
    list.push_back("moe_act");
    builder.derive("model.offload_modules", list, "fused_group_mlp");
  }
  // Graphs change no number, so that the same command runs where there is no GPU.
  if (execution.cuda_graph_impl == GraphImpl::full_iteration &&
      builder.config.run.device == DeviceChoice::cpu) {
    builder.derive("model.cuda_graph_impl", "none", "the CPU has no CUDA graphs");
    builder.note("cuda_graph_impl full_iteration: nothing is captured on the CPU");
  }
}

// Old scripts have --no-position-embedding beside rotary positions, which it leaves alone.
void derive_positions(ConfigBuilder& builder) {
  const char* key = "model.position_embedding_type";
  if (!builder.config.model.add_position_embedding && !builder.given(key))
    builder.derive(key, "none", "--no-position-embedding");
}

void whole_replicas(ConfigBuilder& builder) {
  const ParallelConfig& parallel = builder.config.parallel;
  if (parallel.tp_base > 0 && !builder.given("model.tensor_model_parallel_size"))
    builder.derive("model.tensor_model_parallel_size", parallel.tp_base, "tp_base");
}

// A file that describes each layer becomes the text that a checkpoint keeps.
void differing_layers(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const std::string path = model.heterogeneous_layers_config_path;
  if (path.empty() || builder.given("model.heterogeneous_layers_config_encoded_json")) return;
  try {
    const Json description = Json::read(path);
    Json text = Json::object();
    if (const Json* blocks = description.find("block_configs")) text["block_configs"] = *blocks;
    builder.derive("model.heterogeneous_layers_config_encoded_json", text.dump(),
                   "heterogeneous_layers_config_path");
    builder.derive("model.heterogeneous_layers_config_path", "", "its text is kept");
  } catch (const Error& error) {
    builder.reject("model.heterogeneous_layers_config_path", error.what(),
                   "leave it out, or name a JSON file");
  }
}

void layer_widths(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const int64_t hidden = model.hidden_size, heads = model.num_attention_heads;
  if (model.ffn_hidden_size == 0 && hidden > 0) {
    // Two thirds of 4h keep a gated unit's parameters equal to those of a plain one.
    const int64_t gated = hidden * 8 / 3 / 64 * 64;
    const bool swiglu = model.gated_linear_unit && model.activation_func == Activation::silu && gated > 0;
    builder.derive("model.ffn_hidden_size", swiglu ? gated : 4 * hidden,
                   swiglu ? "8/3 x hidden_size, a multiple of 64" : "4 x hidden_size");
  }
  if (model.kv_channels == 0 && hidden > 0 && heads > 0 && hidden % heads == 0)
    builder.derive("model.kv_channels", hidden / heads, "hidden_size / num_attention_heads");
  if (model.num_query_groups == 0 && model.group_query_attention)
    builder.derive("model.num_query_groups", 1, "group_query_attention");
  if (model.num_query_groups == 0 && heads > 0)
    builder.derive("model.num_query_groups", heads, "num_attention_heads");
  if (model.moe_ffn_hidden_size == 0 && model.num_moe_experts > 0 && model.ffn_hidden_size > 0)
    builder.derive("model.moe_ffn_hidden_size", model.ffn_hidden_size, "ffn_hidden_size");
  if (model.mamba_num_heads == 0 && model.is_hybrid_model && hidden > 0 && 2 * hidden >= model.mamba_head_dim)
    builder.derive("model.mamba_num_heads", 2 * hidden / model.mamba_head_dim,
                   "2 x hidden_size / mamba_head_dim");
  if (!model.add_attention_output_bias)
    builder.derive("model.add_attention_output_bias", model.add_bias_linear, "add_bias_linear");
  if (!model.add_mlp_bias) builder.derive("model.add_mlp_bias", model.add_bias_linear, "add_bias_linear");
  if (!model.embedding_init_method_std)
    builder.derive("model.embedding_init_method_std", model.init_method_std, "init_method_std");
  if (model.moe_expert_capacity_factor && *model.moe_expert_capacity_factor < 0)
    builder.derive("model.moe_expert_capacity_factor", nullptr, "a negative factor drops no tokens");
}

void layer_blocks(ConfigBuilder& builder) {
  try {
    builder.config.model.layer_blocks = read_layer_blocks(builder.config.model);
  } catch (const Error&) {
    // The rule on layers that differ reports it.
  }
}

void lengths_and_vocabulary(ConfigBuilder& builder) {
  Config& config = builder.config;
  if (config.model.seq_length == 0 && config.dataset.seq_length > 0)
    builder.derive("model.seq_length", config.dataset.seq_length, "dataset.seq_length");
  if (config.dataset.seq_length == 0 && config.model.seq_length > 0)
    builder.derive("dataset.seq_length", config.model.seq_length, "model.seq_length");
  // A recipe's or a model's own length gives way to a stronger source's for the other.
  const Source model = builder.origin("model.seq_length").source,
               data = builder.origin("dataset.seq_length").source;
  if (config.model.seq_length != config.dataset.seq_length && data > model)
    builder.derive("model.seq_length", config.dataset.seq_length, "dataset.seq_length");
  if (config.model.seq_length != config.dataset.seq_length && model > data)
    builder.derive("dataset.seq_length", config.model.seq_length, "model.seq_length");
  add_image_tokens(builder);
  if (config.model.max_position_embeddings == 0 && config.model.seq_length > 0)
    builder.derive("model.max_position_embeddings", config.model.seq_length, "seq_length");
  if (config.model.vocab_size == 0 && config.tokenizer.vocab_size > 0)
    builder.derive("model.vocab_size", config.tokenizer.vocab_size, "tokenizer.vocab_size");
}

// A model pads to a multiple: the whole padded size is one, too.
void padded_vocabulary(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const int64_t tp = config.parallel.tensor_model_parallel_size, tokens = config.model.vocab_size;
  const char *padded = "tokenizer.padded_vocab_size", *multiple = "model.make_vocab_size_divisible_by";
  if (tokens == 0) return;
  if (config.tokenizer.padded_vocab_size > 0) {
    if (config.tokenizer.padded_vocab_size % tp == 0)
      builder.derive(multiple, config.tokenizer.padded_vocab_size / tp,
                     "padded_vocab_size / tensor-parallel ranks");
  } else if (config.tokenizer.pad_vocab_size) {
    const int64_t step = config.model.make_vocab_size_divisible_by * tp;
    builder.derive(padded, (tokens + step - 1) / step * step,
                   fmt::format("vocab_size to a multiple of {}", step));
  } else {
    builder.derive(multiple, 1, "pad_vocab_size is off");
    builder.derive(padded, tokens, "vocab_size, not padded");
  }
}

// Weights that are split beyond tensor parallelism and gathered at use are those of sharded data parallelism:
// the results are the same.
void derive_weight_shards(ConfigBuilder& builder) {
  const ParallelConfig& parallel = builder.config.parallel;
  if (builder.purpose == Purpose::inspect) return;
  const int64_t tp = parallel.tensor_model_parallel_size, etp = parallel.expert_tensor_parallel_size;
  const char *dense = "model.tensor_parallel_num_weight_shards",
             *expert = "model.expert_tensor_parallel_num_weight_shards";
  if (parallel.tensor_parallel_num_weight_shards > tp ||
      parallel.expert_tensor_parallel_num_weight_shards > etp) {
    if (!builder.config.ddp.use_megatron_fsdp && builder.purpose == Purpose::training) {
      builder.derive("ddp.use_megatron_fsdp", true, "tensor_parallel_num_weight_shards");
      builder.note(
          "tensor_parallel_num_weight_shards: weights are split over data-parallel ranks and gathered at "
          "use, as --use-megatron-fsdp does");
    }
    builder.derive(dense, tp, "the data-parallel ranks have the other shards");
    builder.derive(expert, etp, "the data-parallel ranks have the other shards");
  }
}

void derive_context_parallel(ConfigBuilder& builder) {
  if (builder.purpose == Purpose::inspect || !builder.config.parallel.hybrid_context_parallel) return;
  builder.derive("model.hybrid_context_parallel", false, "every sequence is split alike");
  builder.note("hybrid_context_parallel: every sequence is split over all context-parallel ranks");
}

void parallel_sizes(ConfigBuilder& builder) {
  const ParallelConfig& parallel = builder.config.parallel;
  if (parallel.sequence_parallel && parallel.tensor_model_parallel_size == 1) {
    builder.derive("model.sequence_parallel", false, "there is one tensor-parallel rank");
    builder.note("sequence_parallel is switched off: there is one tensor-parallel rank");
  }
  if (parallel.expert_tensor_parallel_size == 0)
    builder.derive("model.expert_tensor_parallel_size", parallel.tensor_model_parallel_size,
                   "tensor_model_parallel_size");
  derive_weight_shards(builder);
  derive_context_parallel(builder);
  if (parallel.tensor_parallel_num_weight_shards == 0)
    builder.derive("model.tensor_parallel_num_weight_shards", parallel.tensor_model_parallel_size,
                   "tensor_model_parallel_size");
  if (parallel.expert_tensor_parallel_num_weight_shards == 0)
    builder.derive("model.expert_tensor_parallel_num_weight_shards", parallel.expert_tensor_parallel_size,
                   "expert_tensor_parallel_size");
}

void pipeline_chunks(ConfigBuilder& builder) {
  const ParallelConfig& parallel = builder.config.parallel;
  const int64_t stages = parallel.pipeline_model_parallel_size;
  if (parallel.virtual_pipeline_model_parallel_size == 0 &&
      !parallel.pipeline_model_parallel_layout.empty()) {
    try {
      const int64_t all =
          static_cast<int64_t>(parse_pipeline_layout(parallel.pipeline_model_parallel_layout).size());
      if (all % stages == 0)
        builder.derive("model.virtual_pipeline_model_parallel_size", all / stages,
                       "stages of the layout / pipeline ranks");
    } catch (const Error&) {
      // The rule on layouts reports it.
    }
  }
  const int64_t per_chunk = parallel.num_layers_per_virtual_pipeline_stage;
  if (parallel.virtual_pipeline_model_parallel_size == 0 && per_chunk > 0) {
    const int64_t layers = builder.config.model.num_layers +
                           parallel.account_for_embedding_in_pipeline_split +
                           parallel.account_for_loss_in_pipeline_split;
    if (layers > 0 && layers % (stages * per_chunk) == 0)
      builder.derive("model.virtual_pipeline_model_parallel_size", layers / (stages * per_chunk),
                     "num_layers_per_virtual_pipeline_stage");
  }
  if (parallel.virtual_pipeline_model_parallel_size == 0 &&
      parallel.pipeline_schedule == PipelineSchedule::zb_v)
    builder.derive("model.virtual_pipeline_model_parallel_size", 2, "pipeline_schedule zb-v");
  if (parallel.virtual_pipeline_model_parallel_size == 0)
    builder.derive("model.virtual_pipeline_model_parallel_size", 1, "one chunk per stage");
  if (!parallel.microbatch_group_size_per_vp_stage)
    builder.derive("model.microbatch_group_size_per_vp_stage", stages, "pipeline_model_parallel_size");
  const bool interleaved = parallel.virtual_pipeline_model_parallel_size > 1;
  if (parallel.pipeline_schedule == PipelineSchedule::automatic && stages > 1)
    builder.derive("model.pipeline_schedule", interleaved ? "interleaved" : "1f1b",
                   interleaved ? "several chunks per stage" : "one chunk per stage");
  if (!parallel.overlap_p2p_comm)
    builder.derive("model.overlap_p2p_comm", stages > 1, stages > 1 ? "several stages" : "one stage");
}

void world(ConfigBuilder& builder) {
  const ParallelConfig& parallel = builder.config.parallel;
  if (!builder.world_size) return;
  const int64_t model_ranks = parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size *
                              parallel.context_parallel_size;
  if (*builder.world_size % model_ranks == 0) builder.data_parallel_size = *builder.world_size / model_ranks;
}

void batches(ConfigBuilder& builder) {
  Config& config = builder.config;
  const TrainConfig& train = config.train;
  if (train.global_batch_size == 0 && !train.step_batch_size_schedule.empty()) try {
      // The largest: what iterations are converted to samples with.
      builder.derive("train.global_batch_size",
                     parse_batch_steps(train.step_batch_size_schedule, config.model.seq_length).back().size,
                     "the last entry of train.step_batch_size_schedule");
    } catch (const ConfigError&) {  // a rule tells what is wrong with it
    }
  if (config.train.global_batch_size == 0 && config.train.micro_batch_size > 0 && builder.data_parallel_size)
    builder.derive("train.global_batch_size", config.train.micro_batch_size * *builder.data_parallel_size,
                   "micro_batch_size x data-parallel size");
  // A batch that may be made smaller is in evaluations, too.
  const ValidationConfig& validation = config.validation;
  const int64_t micro = validation.eval_micro_batch_size > 0 ? validation.eval_micro_batch_size
                                                             : config.train.micro_batch_size,
                step = micro * builder.data_parallel_size.value_or(0), batch = config.train.global_batch_size;
  if (config.train.decrease_batch_size_if_needed && validation.eval_global_batch_size == 0 && step > 0 &&
      batch > step && batch % step != 0)
    builder.derive("validation.eval_global_batch_size", batch / step * step,
                   "global_batch_size, decrease_batch_size_if_needed");
}

void schedules(ConfigBuilder& builder) {
  Config& config = builder.config;
  if (config.scheduler.lr_decay_iters == 0 && config.train.train_iters > 0)
    builder.derive("scheduler.lr_decay_iters", config.train.train_iters, "train.train_iters");
  if (config.scheduler.lr_decay_samples == 0 && config.train.train_samples > 0)
    builder.derive("scheduler.lr_decay_samples", config.train.train_samples, "train.train_samples");
  if (config.scheduler.no_weight_decay_cond_type != WeightDecayCondition::none)
    builder.derive("optimizer.apply_wd_to_qk_layernorm", true, "no_weight_decay_cond_type");
  if (!builder.given("dataset.random_seed"))
    builder.derive("dataset.random_seed", config.rng.seed, "rng.seed");
}

// Megatron-LM passes over what is said of another kind of recompute than the one that is chosen. What only we
// have, such as modules chosen by their cost, is refused by a rule instead.
void idle_recompute(ConfigBuilder& builder) {
  const ExecutionConfig& execution = builder.config.execution;
  const RecomputeGranularity chosen = execution.recompute_granularity;
  if (chosen == RecomputeGranularity::none && execution.recompute_method != RecomputeMethod::none) {
    builder.derive("model.recompute_method", "none", "nothing is recomputed");
    builder.note("recompute_method has no effect without --recompute-granularity full");
  }
  const std::vector<std::string>& modules = execution.recompute_modules;
  const bool ours = std::find(modules.begin(), modules.end(), "auto") != modules.end() ||
                    execution.recompute_memory_gib || !execution.recompute_module_layers.empty();
  if (chosen != RecomputeGranularity::selective && !modules.empty() && !ours) {
    builder.derive("model.recompute_modules", Json::Array{}, "recompute is not selective");
    builder.note("recompute_modules has no effect without --recompute-granularity selective");
  }
}

// --moe-layer-recompute adds experts to what is recomputed.
void recompute_experts(ConfigBuilder& builder) {
  const ExecutionConfig& execution = builder.config.execution;
  const RecomputeGranularity chosen = execution.recompute_granularity;
  if (!builder.config.model.moe_layer_recompute) return;
  if (chosen == RecomputeGranularity::full)
    return builder.note("moe_layer_recompute has no effect: layers are recomputed as a whole");
  std::vector<std::string> modules = execution.recompute_modules;
  const bool chooses = std::find(modules.begin(), modules.end(), "auto") != modules.end();
  if (modules.empty()) modules.emplace_back("core_attn");
  if (std::find(modules.begin(), modules.end(), "moe") == modules.end() && !chooses)
    modules.emplace_back("moe");
  if (chosen == RecomputeGranularity::none)
    builder.derive("model.recompute_granularity", "selective", "moe_layer_recompute");
  Json list = Json::array();
  for (const std::string& module : modules) list.push_back(module);
  builder.derive("model.recompute_modules", list, "moe_layer_recompute");
}

// Modules that a model has not, or that its attention keeps, are passed over: recompute changes no number.
void absent_modules(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const ExecutionConfig& execution = builder.config.execution;
  const std::vector<int64_t> layers = execution.recompute_module_layers;
  if (execution.recompute_granularity != RecomputeGranularity::selective ||
      (!layers.empty() && layers.size() != execution.recompute_modules.size()))  // a rule refuses it
    return;
  const auto why = [&](const std::string& module) -> const char* {
    if (module == "moe" && model.num_moe_experts == 0) return "the model has no experts";
    if (module == "shared_experts" && model.moe_shared_expert_intermediate_size == 0)
      return "the model has no shared experts";
    if ((module == "core_attn" || module == "mla_up_proj") && model.attends_sparsely())
      return "sparse attention keeps what its indexer chose";
    return nullptr;
  };
  const std::vector<std::string> modules = execution.recompute_modules;
  Json left = Json::array(), left_layers = Json::array();
  for (size_t i = 0; i < modules.size(); ++i) {
    if (const char* reason = why(modules[i])) {
      builder.note(fmt::format("recompute_modules {}: {}", modules[i], reason));
      continue;
    }
    left.push_back(modules[i]);
    if (!layers.empty()) left_layers.push_back(layers[i]);
  }
  if (left.size() == modules.size()) return;
  if (left.size() == 0) builder.derive("model.recompute_granularity", "none", "no module is left");
  builder.derive("model.recompute_modules", left, "modules that the model has");
  if (!layers.empty())
    builder.derive("model.recompute_module_layers", left_layers, "modules that the model has");
}

void recompute_defaults(ConfigBuilder& builder) {
  recompute_experts(builder);
  idle_recompute(builder);
  const ExecutionConfig& execution = builder.config.execution;
  if (execution.recompute_granularity == RecomputeGranularity::selective &&
      execution.recompute_modules.empty())
    builder.derive("model.recompute_modules", Json::Array{"core_attn"}, "selective recompute");
  absent_modules(builder);
  if (execution.recompute_granularity != RecomputeGranularity::full) return;
  if (execution.recompute_method == RecomputeMethod::none)
    builder.derive("model.recompute_method", "uniform", "full recompute");
  if (execution.recompute_num_layers == 0) builder.derive("model.recompute_num_layers", 1, "full recompute");
}

// Rows of conversations hold unequal numbers of answers, and packing decides which rows there are.
void derive_sft(ConfigBuilder& builder) {
  const DatasetConfig& data = builder.config.dataset;
  // Answers weigh by their lengths within a micro-batch, and micro-batches are alike.
  if (data.use_loss_scaling && builder.config.model.has_tower() &&
      !builder.given("model.calculate_per_token_loss"))
    return builder.derive("model.calculate_per_token_loss", false, "use_loss_scaling");
  if (!data.sft) return;
  if (!builder.given("model.calculate_per_token_loss"))
    builder.derive("model.calculate_per_token_loss", true, "sft");
  if (data.packing == Packing::batch) builder.derive("model.variable_seq_lengths", true, "packing batch");
}

// Draft tokens change no result, and states along the sequence cannot go back to before one.
void derive_speculation(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const bool states = has_layers(model, 'M') || has_delta_nets(model);
  if (builder.config.inference.num_speculative_tokens == 0 || !states) return;
  builder.derive("inference.num_speculative_tokens", 0, "the model has states along the sequence");
  builder.note(
      "num_speculative_tokens: states along the sequence cannot go back to before a draft token; none is "
      "made");
}

void derive_sharding(ConfigBuilder& builder) {
  if (builder.config.optimizer.optimizer == OptimizerKind::dist_muon &&
      !builder.given("ddp.use_distributed_optimizer"))
    builder.derive("ddp.use_distributed_optimizer", true, "optimizer dist_muon");
  if (builder.config.ddp.use_megatron_fsdp && !builder.given("ddp.data_parallel_sharding_strategy"))
    builder.derive("ddp.data_parallel_sharding_strategy", "optim_grads_params", "use_megatron_fsdp");
}

// The optimizer's state of a dense model has no places for experts.
void derive_upcycling(ConfigBuilder& builder) {
  const Config& config = builder.config;
  if (!config.model.moe_use_upcycling || !config.checkpoint.load_optim) return;
  builder.derive("checkpoint.load_optim", false, "moe_use_upcycling");
}

}  // namespace

void derive_defaults(ConfigBuilder& builder) {
  number_formats(builder);
  offload_and_graphs(builder);
  derive_model_type(builder);
  whole_replicas(builder);
  derive_positions(builder);
  derive_hybrid_layers(builder);
  differing_layers(builder);
  layer_widths(builder);
  derive_vision(builder);
  layer_blocks(builder);
  lengths_and_vocabulary(builder);
  padded_vocabulary(builder);
  parallel_sizes(builder);
  pipeline_chunks(builder);
  world(builder);
  batches(builder);
  schedules(builder);
  recompute_defaults(builder);
  derive_finetune_files(builder);
  derive_sft(builder);
  derive_speculation(builder);
  derive_sharding(builder);
  derive_upcycling(builder);
  read_distill_file(builder);
}

}  // namespace megatron
