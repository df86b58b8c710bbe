#include "megatron/config/resolve/derive.h"

#include "megatron/base/error.h"
#include "megatron/config/resolve/hybrid_pattern.h"
#include "megatron/config/resolve/layer_blocks.h"
#include "megatron/config/resolve/pipeline_layout.h"

namespace megatron {
namespace {

void number_formats(Draft& draft) {
  const PrecisionConfig& precision = draft.config.precision;
  const char* dtype = precision.bf16 ? "bf16" : precision.fp16 ? "fp16" : "fp32";
  const std::string why = precision.bf16 ? "bf16" : precision.fp16 ? "fp16" : "neither bf16 nor fp16";
  if (!draft.given("model.params_dtype")) draft.derive("model.params_dtype", dtype, why);
  if (!draft.given("model.pipeline_dtype"))
    draft.derive("model.pipeline_dtype", precision.params_dtype, "params_dtype");
  if (!draft.config.ddp.grad_reduce_in_fp32) draft.derive("ddp.grad_reduce_in_fp32", precision.bf16, why);
  if (!precision.fp16) return;
  // Overflows are the loss scaler's business.
  for (const char* name : {"ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss"})
    if (!draft.given(name)) draft.derive(name, false, "fp16 skips steps that overflow");
}

void hybrid_layers(Draft& draft) {
  const ModelConfig& model = draft.config.model;
  if (model.hybrid_layer_pattern.empty()) return;
  if (!draft.given("model.is_hybrid_model"))
    draft.derive("model.is_hybrid_model", true, "hybrid_layer_pattern");
  try {
    const HybridPattern pattern = parse_hybrid_pattern(model.hybrid_layer_pattern);
    const int64_t layers = static_cast<int64_t>(pattern.layers.size());
    if (!draft.given("model.num_layers") && layers > 0)
      draft.derive("model.num_layers", layers, "hybrid_layer_pattern");
    if (!draft.given("model.mtp_num_layers") && pattern.mtp_depths > 0)
      draft.derive("model.mtp_num_layers", pattern.mtp_depths, "hybrid_layer_pattern");
  } catch (const Error&) {
    // The rule on patterns reports it.
  }
}

// A file that describes each layer becomes the text that a checkpoint keeps.
void differing_layers(Draft& draft) {
  const ModelConfig& model = draft.config.model;
  const std::string path = model.heterogeneous_layers_config_path;
  if (path.empty() || draft.given("model.heterogeneous_layers_config_encoded_json")) return;
  try {
    const Json description = Json::read(path);
    Json text = Json::object();
    if (const Json* blocks = description.find("block_configs")) text["block_configs"] = *blocks;
    draft.derive("model.heterogeneous_layers_config_encoded_json", text.dump(),
                 "heterogeneous_layers_config_path");
    draft.derive("model.heterogeneous_layers_config_path", "", "its text is kept");
  } catch (const Error& error) {
    draft.refuse("model.heterogeneous_layers_config_path", error.what(), "name a JSON file");
  }
}

void layer_widths(Draft& draft) {
  const ModelConfig& model = draft.config.model;
  const int64_t hidden = model.hidden_size, heads = model.num_attention_heads;
  if (model.ffn_hidden_size == 0 && hidden > 0) {
    // Two thirds of 4h keep a gated unit's parameters equal to those of a plain one.
    const int64_t gated = hidden * 8 / 3 / 64 * 64;
    const bool swiglu = model.gated_linear_unit && model.activation_func == Activation::silu && gated > 0;
    draft.derive("model.ffn_hidden_size", swiglu ? gated : 4 * hidden,
                 swiglu ? "8/3 x hidden_size, a multiple of 64" : "4 x hidden_size");
  }
  if (model.kv_channels == 0 && hidden > 0 && heads > 0 && hidden % heads == 0)
    draft.derive("model.kv_channels", hidden / heads, "hidden_size / num_attention_heads");
  if (model.num_query_groups == 0 && model.group_query_attention)
    draft.derive("model.num_query_groups", 1, "group_query_attention");
  if (model.num_query_groups == 0 && heads > 0)
    draft.derive("model.num_query_groups", heads, "num_attention_heads");
  if (model.moe_ffn_hidden_size == 0 && model.num_moe_experts > 0 && model.ffn_hidden_size > 0)
    draft.derive("model.moe_ffn_hidden_size", model.ffn_hidden_size, "ffn_hidden_size");
  if (model.mamba_num_heads == 0 && model.is_hybrid_model && hidden > 0 && 2 * hidden >= model.mamba_head_dim)
    draft.derive("model.mamba_num_heads", 2 * hidden / model.mamba_head_dim,
                 "2 x hidden_size / mamba_head_dim");
  if (!model.add_attention_output_bias)
    draft.derive("model.add_attention_output_bias", model.add_bias_linear, "add_bias_linear");
  if (!model.add_mlp_bias) draft.derive("model.add_mlp_bias", model.add_bias_linear, "add_bias_linear");
  if (!model.embedding_init_method_std)
    draft.derive("model.embedding_init_method_std", model.init_method_std, "init_method_std");
  if (model.moe_expert_capacity_factor && *model.moe_expert_capacity_factor < 0)
    draft.derive("model.moe_expert_capacity_factor", nullptr, "a negative factor drops no tokens");
}

void layer_blocks(Draft& draft) {
  try {
    draft.config.model.layer_blocks = read_layer_blocks(draft.config.model);
  } catch (const Error&) {
    // The rule on layers that differ reports it.
  }
}

void lengths_and_vocabulary(Draft& draft) {
  Config& config = draft.config;
  if (config.model.seq_length == 0 && config.dataset.seq_length > 0)
    draft.derive("model.seq_length", config.dataset.seq_length, "dataset.seq_length");
  if (config.dataset.seq_length == 0 && config.model.seq_length > 0)
    draft.derive("dataset.seq_length", config.model.seq_length, "model.seq_length");
  // A recipe's or a model's own length gives way to a stronger source's for the other.
  const Source model = draft.origin("model.seq_length").source,
               data = draft.origin("dataset.seq_length").source;
  if (config.model.seq_length != config.dataset.seq_length && data > model)
    draft.derive("model.seq_length", config.dataset.seq_length, "dataset.seq_length");
  if (config.model.seq_length != config.dataset.seq_length && model > data)
    draft.derive("dataset.seq_length", config.model.seq_length, "model.seq_length");
  if (config.model.max_position_embeddings == 0 && config.model.seq_length > 0)
    draft.derive("model.max_position_embeddings", config.model.seq_length, "seq_length");
  if (config.model.vocab_size == 0 && config.tokenizer.vocab_size > 0)
    draft.derive("model.vocab_size", config.tokenizer.vocab_size, "tokenizer.vocab_size");
}

// A model pads to a multiple: the whole padded size is one, too.
void padded_vocabulary(Draft& draft) {
  const Config& config = draft.config;
  const int64_t tp = config.parallel.tensor_model_parallel_size, tokens = config.model.vocab_size;
  const char *padded = "tokenizer.padded_vocab_size", *multiple = "model.make_vocab_size_divisible_by";
  if (tokens == 0) return;
  if (config.tokenizer.padded_vocab_size > 0) {
    if (config.tokenizer.padded_vocab_size % tp == 0)
      draft.derive(multiple, config.tokenizer.padded_vocab_size / tp,
                   "padded_vocab_size / tensor-parallel ranks");
  } else if (config.tokenizer.pad_vocab_size) {
    const int64_t step = config.model.make_vocab_size_divisible_by * tp;
    draft.derive(padded, (tokens + step - 1) / step * step,
                 fmt::format("vocab_size to a multiple of {}", step));
  } else {
    draft.derive(multiple, 1, "pad_vocab_size is off");
    draft.derive(padded, tokens, "vocab_size, not padded");
  }
}

void parallel_sizes(Draft& draft) {
  const ParallelConfig& parallel = draft.config.parallel;
  if (parallel.sequence_parallel && parallel.tensor_model_parallel_size == 1) {
    draft.derive("model.sequence_parallel", false, "there is one tensor-parallel rank");
    draft.note("sequence_parallel is switched off: there is one tensor-parallel rank");
  }
  if (parallel.expert_tensor_parallel_size == 0)
    draft.derive("model.expert_tensor_parallel_size", parallel.tensor_model_parallel_size,
                 "tensor_model_parallel_size");
  if (parallel.tensor_parallel_num_weight_shards == 0)
    draft.derive("model.tensor_parallel_num_weight_shards", parallel.tensor_model_parallel_size,
                 "tensor_model_parallel_size");
  if (parallel.expert_tensor_parallel_num_weight_shards == 0)
    draft.derive("model.expert_tensor_parallel_num_weight_shards", parallel.expert_tensor_parallel_size,
                 "expert_tensor_parallel_size");
  if (draft.config.dist.eval_context_parallel_size == 0)
    draft.derive("dist.eval_context_parallel_size", parallel.context_parallel_size,
                 "model.context_parallel_size");
}

void pipeline_chunks(Draft& draft) {
  const ParallelConfig& parallel = draft.config.parallel;
  const int64_t stages = parallel.pipeline_model_parallel_size;
  if (parallel.virtual_pipeline_model_parallel_size == 0 &&
      !parallel.pipeline_model_parallel_layout.empty()) {
    try {
      const int64_t all =
          static_cast<int64_t>(parse_pipeline_layout(parallel.pipeline_model_parallel_layout).size());
      if (all % stages == 0)
        draft.derive("model.virtual_pipeline_model_parallel_size", all / stages,
                     "stages of the layout / pipeline ranks");
    } catch (const Error&) {
      // The rule on layouts reports it.
    }
  }
  const int64_t per_chunk = parallel.num_layers_per_virtual_pipeline_stage;
  if (parallel.virtual_pipeline_model_parallel_size == 0 && per_chunk > 0) {
    const int64_t layers = draft.config.model.num_layers + parallel.account_for_embedding_in_pipeline_split +
                           parallel.account_for_loss_in_pipeline_split;
    if (layers > 0 && layers % (stages * per_chunk) == 0)
      draft.derive("model.virtual_pipeline_model_parallel_size", layers / (stages * per_chunk),
                   "num_layers_per_virtual_pipeline_stage");
  }
  if (parallel.virtual_pipeline_model_parallel_size == 0 &&
      parallel.pipeline_schedule == PipelineSchedule::zb_v)
    draft.derive("model.virtual_pipeline_model_parallel_size", 2, "pipeline_schedule zb-v");
  if (parallel.virtual_pipeline_model_parallel_size == 0)
    draft.derive("model.virtual_pipeline_model_parallel_size", 1, "one chunk per stage");
  if (!parallel.microbatch_group_size_per_vp_stage)
    draft.derive("model.microbatch_group_size_per_vp_stage", stages, "pipeline_model_parallel_size");
  const bool interleaved = parallel.virtual_pipeline_model_parallel_size > 1;
  if (parallel.pipeline_schedule == PipelineSchedule::automatic && stages > 1)
    draft.derive("model.pipeline_schedule", interleaved ? "interleaved" : "1f1b",
                 interleaved ? "several chunks per stage" : "one chunk per stage");
  if (!parallel.overlap_p2p_comm)
    draft.derive("model.overlap_p2p_comm", stages > 1, stages > 1 ? "several stages" : "one stage");
  if (!draft.given("ddp.align_param_gather") && !interleaved)
    draft.derive("ddp.align_param_gather", false, "no interleaved schedule");
}

void world(Draft& draft) {
  const ParallelConfig& parallel = draft.config.parallel;
  if (!draft.world_size) return;
  const int64_t model_ranks = parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size *
                              parallel.context_parallel_size;
  if (*draft.world_size % model_ranks == 0) draft.data_parallel_size = *draft.world_size / model_ranks;
}

void batches(Draft& draft) {
  Config& config = draft.config;
  const bool scheduled = !config.train.step_batch_size_schedule.empty();
  if (config.train.global_batch_size == 0 && config.train.micro_batch_size > 0 && draft.data_parallel_size &&
      !scheduled)
    draft.derive("train.global_batch_size", config.train.micro_batch_size * *draft.data_parallel_size,
                 "micro_batch_size x data-parallel size");
  if (config.validation.eval_global_batch_size == 0 && config.train.global_batch_size > 0)
    draft.derive("validation.eval_global_batch_size", config.train.global_batch_size,
                 "train.global_batch_size");
  if (config.validation.eval_micro_batch_size == 0 && config.train.micro_batch_size > 0)
    draft.derive("validation.eval_micro_batch_size", config.train.micro_batch_size, "train.micro_batch_size");
}

void schedules(Draft& draft) {
  Config& config = draft.config;
  if (config.scheduler.lr_decay_iters == 0 && config.train.train_iters > 0)
    draft.derive("scheduler.lr_decay_iters", config.train.train_iters, "train.train_iters");
  if (config.scheduler.lr_decay_samples == 0 && config.train.train_samples > 0)
    draft.derive("scheduler.lr_decay_samples", config.train.train_samples, "train.train_samples");
  const bool constant = config.scheduler.weight_decay_incr_style == WeightDecayGrowth::constant;
  for (const char* name : {"scheduler.start_weight_decay", "scheduler.end_weight_decay"})
    if (!draft.given(name) && constant)
      draft.derive(name, config.optimizer.weight_decay, "optimizer.weight_decay");
  if (!draft.given("dataset.random_seed")) draft.derive("dataset.random_seed", config.rng.seed, "rng.seed");
}

void recompute_defaults(Draft& draft) {
  const ExecutionConfig& execution = draft.config.execution;
  if (execution.recompute_granularity == RecomputeGranularity::selective &&
      execution.recompute_modules.empty())
    draft.derive("model.recompute_modules", Json::Array{"core_attn"}, "selective recompute");
  if (execution.recompute_granularity != RecomputeGranularity::full) return;
  if (execution.recompute_method == RecomputeMethod::none)
    draft.derive("model.recompute_method", "uniform", "full recompute");
  if (execution.recompute_num_layers == 0) draft.derive("model.recompute_num_layers", 1, "full recompute");
}

void optimizer_kind(Draft& draft) {
  if (draft.config.optimizer.optimizer != OptimizerKind::dist_muon) return;
  draft.derive("optimizer.optimizer", "muon", "dist_muon is muon with whole matrices dealt out");
  draft.derive("optimizer.use_layer_wise_distributed_optimizer", true, "dist_muon");
  draft.note("optimizer dist_muon is now muon with optimizer.use_layer_wise_distributed_optimizer");
}

void derive_sharding(Draft& draft) {
  if (draft.config.ddp.use_megatron_fsdp && !draft.given("ddp.data_parallel_sharding_strategy"))
    draft.derive("ddp.data_parallel_sharding_strategy", "optim_grads_params", "use_megatron_fsdp");
}

}  // namespace

void derive_defaults(Draft& draft) {
  number_formats(draft);
  hybrid_layers(draft);
  differing_layers(draft);
  layer_widths(draft);
  layer_blocks(draft);
  lengths_and_vocabulary(draft);
  padded_vocabulary(draft);
  parallel_sizes(draft);
  pipeline_chunks(draft);
  world(draft);
  batches(draft);
  schedules(draft);
  recompute_defaults(draft);
  optimizer_kind(draft);
  derive_sharding(draft);
}

}  // namespace megatron
