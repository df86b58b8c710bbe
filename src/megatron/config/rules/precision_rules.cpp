#include <algorithm>
#include <array>

#include "megatron/config/resolve/captured_step.h"
#include "megatron/config/resolve/precision_recipe.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

void one_half_format(ConfigBuilder& builder) {
  const PrecisionConfig& p = builder.config.precision;
  if (p.bf16 && p.fp16) builder.reject("model.fp16", "bf16 is on too", "leave it out");
  const std::string wanted = p.bf16 ? "bf16" : p.fp16 ? "fp16" : "";
  if (!wanted.empty() && builder.given("model.params_dtype") && p.params_dtype != wanted &&
      !(p.bf16 && p.fp16))
    builder.reject("model.params_dtype", fmt::format("{} is on", wanted), "leave it out");
  if (builder.given("model.pipeline_dtype") && p.pipeline_dtype != p.params_dtype)
    builder.reject("model.pipeline_dtype", fmt::format("params_dtype is {}", p.params_dtype), "leave it out");
}

void fp8_needs(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const PrecisionConfig& p = config.precision;
  const bool on = p.fp8 != Fp8Format::none;
  if (!p.bf16 && !p.fp16 && builder.on_gpus() && config.model.add_bias_linear && may_have_fp8_linears(p))
    builder.reject(on ? "model.fp8" : "model.te_precision_config_file",
                   "fp8 GEMMs of a GPU add no bias to fp32 results", "add --bf16");
  if (p.first_last_layers_bf16 && p.fp8_recipe == Fp8Recipe::delayed && on)
    builder.reject("model.first_last_layers_bf16", "delayed scaling keeps all layers in fp8",
                   "use --fp8-recipe tensorwise");
  if (p.fp8_output_proj && config.model.output_logit_dtype == "fp32" && p.params_dtype != "fp32")
    builder.reject("model.fp8_output_proj", "wide logits of fp8 GEMMs are not built",
                   "leave it out, or leave out --output-logit-dtype");
  if (on && p.fp8_output_proj && p.fp8_recipe == Fp8Recipe::delayed &&
      config.model.share_embeddings_and_output_weights && config.parallel.pipeline_model_parallel_size > 1)
    builder.reject("model.fp8_output_proj",
                   "delayed scaling has one history of the table that first and last stage share",
                   "use --fp8-recipe tensorwise, or --untie-embeddings-and-output-weights");
  if (config.model.num_layers > 0 && p.bf16_at_start() + p.bf16_at_end() > config.model.num_layers)
    builder.note(fmt::format("first and last layers in bf16 are all {} layers: none is in fp8",
                             config.model.num_layers));
  if (on && p.fp4 != Fp4Format::none)
    builder.reject("model.fp4", "the model is in fp8", "leave out --fp4-format or --fp8-format");
}

void precision_by_module(ConfigBuilder& builder) {
  const PrecisionConfig& p = builder.config.precision;
  if (p.te_precision_config_file.empty()) return;
  try {
    const PrecisionRecipe recipe = PrecisionRecipe::read(p.te_precision_config_file);
    for (const std::string& note : recipe.notes()) builder.note(note);
  } catch (const Error& error) {
    builder.reject("model.te_precision_config_file", error.what(), "mend the file, or leave it out");
  }
}

void muon_steps(ConfigBuilder& builder) {
  const OptimizerConfig& o = builder.config.optimizer;
  if (o.is_muon() && o.muon_coefficient_type == MuonCoefficients::cubic5 && o.muon_num_ns_steps != 5)
    builder.reject("optimizer.muon_num_ns_steps", "cubic5 is a set of five steps", "use 5");
}

void optimizer_states(ConfigBuilder& builder) {
  const OptimizerConfig& o = builder.config.optimizer;
  if (o.use_precision_aware_optimizer && o.optimizer != OptimizerKind::adam)
    builder.reject("optimizer.use_precision_aware_optimizer", "only Adam keeps its states in fewer bits",
                   "use --optimizer adam");
  for (const auto& [key, dtype] : {std::pair{"optimizer.main_grads_dtype", o.main_grads_dtype},
                                   {"optimizer.main_params_dtype", o.main_params_dtype},
                                   {"optimizer.exp_avg_dtype", o.exp_avg_dtype},
                                   {"optimizer.exp_avg_sq_dtype", o.exp_avg_sq_dtype}})
    if (dtype != "fp32" && !o.use_precision_aware_optimizer)
      builder.reject(
          key, "the optimizer keeps fp32 states",
          o.optimizer == OptimizerKind::adam ? "add --use-precision-aware-optimizer" : "leave it out");
  if (o.main_grads_dtype == "fp32") return;
  if (!builder.config.precision.bf16)
    builder.reject("optimizer.main_grads_dtype", "only a bf16 model has bf16 gradients", "leave it out");
  else if (builder.config.ddp.grad_reduce_in_fp32.value_or(false))
    builder.reject(
        "optimizer.main_grads_dtype", "gradients are fp32",
        builder.config.ddp.use_megatron_fsdp ? "use fp32" : "leave out --accumulate-allreduce-grads-in-fp32");
}

void fsdp_formats(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const DdpConfig& d = config.ddp;
  if (!d.use_megatron_fsdp) return;
  const std::string &params = d.megatron_fsdp_main_params_dtype, &grads = d.megatron_fsdp_main_grads_dtype;
  const std::string& own = config.precision.params_dtype;
  const bool half = own == "bf16" || own == "fp16";
  if (params != "fp32" && params != "auto" && !half)
    builder.reject("ddp.megatron_fsdp_main_params_dtype", fmt::format("the parameters are {}", own),
                   "use auto");
  else if (params == "bf16" && own == "fp16")
    builder.reject("ddp.megatron_fsdp_main_params_dtype", "has fewer digits than the fp16 parameters",
                   "use auto");
  if (params != "fp32" && half && config.optimizer.optimizer != OptimizerKind::adam)
    builder.reject("ddp.megatron_fsdp_main_params_dtype", "only Adam updates weights in fewer bits",
                   "use fp32, or --optimizer adam");
  if (grads == "fp16")
    builder.reject("ddp.megatron_fsdp_main_grads_dtype", "gradients gather in fp32 or bf16", "use fp32");
  if (grads == "bf16" && own != "bf16")
    builder.reject("ddp.megatron_fsdp_main_grads_dtype", "only a bf16 model has bf16 gradients", "use auto");
}

void gradients_and_parameters_overlap(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const DdpConfig& d = config.ddp;
  if (d.overlap_param_gather && !d.use_distributed_optimizer && !d.use_megatron_fsdp)
    builder.reject("ddp.overlap_param_gather", "parameters are not split, so nothing is gathered",
                   "add --use-distributed-optimizer");
  if (d.overlap_param_gather && !d.overlap_grad_reduce)
    builder.reject("ddp.overlap_param_gather", "needs overlapped gradients too", "add --overlap-grad-reduce");
}

void buckets(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const DdpConfig& d = config.ddp;
  if (d.bucket_size > 0 && d.num_buckets > 0)
    builder.reject("ddp.num_buckets", "the buckets' size is given too",
                   "keep one of --ddp-bucket-size and --ddp-num-buckets");
  if (d.average_in_collective && config.model.calculate_per_token_loss)
    builder.reject("ddp.average_in_collective",
                   "a loss per token is divided by the tokens of all ranks at the end",
                   "leave out --ddp-average-in-collective or --calculate-per-token-loss");
  if (builder.data_parallel_size && *builder.data_parallel_size * config.parallel.context_parallel_size %
                                            d.num_distributed_optimizer_instances !=
                                        0)
    builder.reject("ddp.num_distributed_optimizer_instances",
                   fmt::format("does not divide the {} replicas",
                               *builder.data_parallel_size * config.parallel.context_parallel_size),
                   fmt::format("use {}", common_divisors(std::array{*builder.data_parallel_size *
                                                                    config.parallel.context_parallel_size})));
  if (d.num_distributed_optimizer_instances > 1 && !d.use_distributed_optimizer)
    builder.reject("ddp.num_distributed_optimizer_instances", "optimizer states are not split",
                   "add --use-distributed-optimizer");
}

void recompute(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ExecutionConfig& e = config.execution;
  const bool full = e.recompute_granularity == RecomputeGranularity::full;
  // What is given of one kind of recompute stands in the way of the other.
  const bool modules_given = builder.given("model.recompute_modules") || e.recompute_memory_gib;
  const bool layers_given =
      builder.given("model.recompute_method") || builder.given("model.recompute_num_layers");
  const char* make_full =
      modules_given ? "leave it out" : "use --recompute-granularity full, or leave it out";
  const char* make_selective = layers_given || e.distribute_saved_activations
                                   ? "leave it out"
                                   : "use --recompute-granularity selective, or leave it out";
  if (e.recompute_method != RecomputeMethod::none && !full)
    builder.reject("model.recompute_method", "layers are not recomputed as a whole", make_full);
  if (!e.recompute_modules.empty() && e.recompute_granularity != RecomputeGranularity::selective)
    builder.reject("model.recompute_modules", "recompute is not selective", make_selective);
  const auto recomputes = [&](const char* module) {
    return std::find(e.recompute_modules.begin(), e.recompute_modules.end(), module) !=
           e.recompute_modules.end();
  };
  if (recomputes("auto") && e.recompute_modules.size() > 1)
    builder.reject("model.recompute_modules", "auto chooses among all modules", "use auto");
  if (e.recompute_memory_gib && !recomputes("auto"))
    builder.reject("model.recompute_memory_gib", "no module is chosen by its cost",
                   layers_given || !e.recompute_module_layers.empty()
                       ? "leave it out"
                       : "use --recompute-granularity selective --recompute-modules auto, or leave it out");
  if (!e.recompute_module_layers.empty() &&
      (recomputes("auto") || e.recompute_module_layers.size() != e.recompute_modules.size()))
    builder.reject("model.recompute_module_layers", "there is not one number for each module",
                   "leave it out, or give as many numbers as there are modules");
  if (recomputes("mlp_act") && config.precision.every_layer_in_fp8())
    builder.reject("model.recompute_modules", "mlp_act: in fp8 the activation is kept in one byte as it is",
                   "leave it out, or use mlp");
  if (recomputes("layernorm") && config.precision.fp8 != Fp8Format::none && config.model.num_moe_experts == 0)
    builder.note(
        "recompute_modules layernorm saves nothing in fp8 layers: they keep their inputs in one byte");
  if (recomputes("moe_act") && config.precision.fp8 != Fp8Format::none && config.precision.fp8_wgrad)
    builder.note("recompute_modules moe_act saves nothing in fp8 layers: experts keep it in one byte");
  if (recomputes("gdp_in_proj") && config.precision.fp8 != Fp8Format::none)
    builder.note("recompute_modules gdp_in_proj is passed over in fp8 layers");
  const auto needs = [&](const char* module, bool there, const char* what, const char* fix) {
    if (recomputes(module) && !there)
      builder.reject("model.recompute_modules", fmt::format("{}: the model has no {}", module, what), fix);
  };
  needs("moe_act", config.model.num_moe_experts > 0, "experts", "leave it out");
  needs("mla_up_proj", config.model.multi_latent_attention, "multi-latent attention", "leave it out");
  needs("mhc", config.model.enable_mhc_connections, "hyper-connections", "leave it out");
  for (const char* module : {"gdp_in_proj", "gdp_qkv"})
    needs(module, config.model.gated_delta_product, "gated delta products", "leave it out");
  if (!e.distribute_saved_activations) return;
  const char* key = "model.distribute_saved_activations";
  if (config.parallel.tensor_model_parallel_size == 1)
    builder.reject(key, "there is one tensor-parallel rank", "leave it out");
  if (config.parallel.sequence_parallel)
    builder.reject(key, "sequence parallelism splits activations already", "leave it out");
  if (!full) builder.reject(key, "only inputs of whole layers are split", make_full);
}

void offload(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ExecutionConfig& e = config.execution;
  if (e.cpu_offloading_num_layers > 0 && config.model.num_layers > 0 &&
      e.cpu_offloading_num_layers >= config.model.num_layers)
    builder.reject("model.cpu_offloading_num_layers",
                   fmt::format("the model has {} layers", config.model.num_layers),
                   fmt::format("use at most {}", config.model.num_layers - 1));
  if (e.cpu_offloading_num_layers > 0 && !e.cpu_offloading)
    builder.reject("model.cpu_offloading_num_layers", "nothing is offloaded", "leave it out");
  if (e.cpu_offloading) {
    const char* no_offload = "leave out --cpu-offloading and --cpu-offloading-num-layers";
    if (e.cpu_offloading_num_layers == 0)
      builder.reject("model.cpu_offloading", "no layer is named", "give --cpu-offloading-num-layers N");
    if (!e.cpu_offloading_activations)
      builder.reject("model.cpu_offloading_activations", "nothing else is offloaded", "leave it out");
    if (config.parallel.pipeline_model_parallel_size > 1)
      builder.reject("model.cpu_offloading", "works without pipeline stages only", no_offload);
    if (e.recompute_granularity != RecomputeGranularity::none)
      builder.reject("model.cpu_offloading", "recomputed activations are not kept at all", no_offload);
  }
  if (e.offload_modules.empty() && e.fine_grained_activation_offloading)
    builder.reject("model.fine_grained_activation_offloading", "no module is named",
                   "give --offload-modules core_attn");
  if (!e.offload_modules.empty() && !e.fine_grained_activation_offloading)
    builder.reject("model.offload_modules", "nothing is offloaded",
                   "add --fine-grained-activation-offloading");
  const auto offloads = [&](const char* module) {
    return std::find(e.offload_modules.begin(), e.offload_modules.end(), module) != e.offload_modules.end();
  };
  std::string all_modules, without_experts;
  for (const std::string& module : e.offload_modules) {
    all_modules += " " + module;
    if (module != "expert_fc1" && module != "moe_act") without_experts += " " + module;
  }
  for (const char* module : {"expert_fc1", "moe_act"})
    if (offloads(module) && config.model.num_moe_experts == 0)
      builder.reject("model.offload_modules", fmt::format("{}: the model has no experts", module),
                     without_experts.empty()
                         ? "leave out --offload-modules and --fine-grained-activation-offloading"
                         : "use" + without_experts);
  if (offloads("attn_proj") && !offloads("core_attn"))
    builder.reject("model.offload_modules", "attn_proj needs core_attn", "use core_attn" + all_modules);
}

void graphs(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ExecutionConfig& e = config.execution;
  if (e.cuda_graph_impl == GraphImpl::none) return;
  if (e.cuda_graph_impl != GraphImpl::full_iteration) {
    const std::string why = parts_not_captured(config);
    builder.note(fmt::format("cuda_graph_impl {}: {}{}", name_of(e.cuda_graph_impl),
                             why.empty()
                                 ? "all of a step is captured as one graph, these modules among it, on GPUs "
                                   "that ranks do not share"
                                 : "steps run without CUDA graphs: ",
                             why));
    return;
  }
  if (e.cuda_graph_warmup_steps < 1)
    builder.reject("model.cuda_graph_warmup_steps", "the first step measures and cannot be captured",
                   "use at least 1");
  for (const CaptureObstacle& obstacle : capture_obstacles(config))
    builder.reject("model.cuda_graph_impl", obstacle.why, obstacle.fix);
}

void batch_invariance(ConfigBuilder& builder) {
  if (builder.config.precision.batch_invariant_mode && builder.on_gpus())
    builder.reject("model.batch_invariant_mode",
                   "GEMMs of GPUs are chosen by their shape, so that sums depend on the batch",
                   "leave it out, or use --device cpu");
}

constexpr Rule kPrecisionRules[] = {
    {"batch_invariance", "model.batch_invariant_mode run.device",
     "GEMMs that do not depend on the batch run on the CPU", batch_invariance},
    {"one_half_format", "model.bf16 model.fp16 model.params_dtype model.pipeline_dtype",
     "one half-precision format at most", one_half_format},
    {"fp8_needs",
     "model.fp8 model.te_precision_config_file model.fp4 model.fp8_recipe model.first_last_layers_bf16 "
     "model.num_layers_at_start_in_bf16 "
     "model.num_layers_at_end_in_bf16 model.bf16 model.fp16 model.num_layers model.add_bias_linear "
     "model.fp8_output_proj model.output_logit_dtype model.share_embeddings_and_output_weights "
     "model.pipeline_model_parallel_size model.params_dtype run.device",
     "options of fp8 need fp8 and its prerequisites", fp8_needs},
    {"precision_by_module", "model.te_precision_config_file",
     "a file of number formats by module names what there is", precision_by_module},
    {"muon_steps", "optimizer.optimizer optimizer.muon_coefficient_type optimizer.muon_num_ns_steps",
     "Newton-Schulz steps suit the set of coefficients", muon_steps},
    {"optimizer_states",
     "optimizer.use_precision_aware_optimizer optimizer.exp_avg_dtype optimizer.exp_avg_sq_dtype "
     "optimizer.main_grads_dtype optimizer.main_params_dtype optimizer.optimizer model.bf16 "
     "ddp.grad_reduce_in_fp32 ddp.use_megatron_fsdp",
     "optimizer states in fewer bits need the precision-aware optimizer", optimizer_states},
    {"fsdp_formats",
     "ddp.megatron_fsdp_main_params_dtype ddp.megatron_fsdp_main_grads_dtype ddp.use_megatron_fsdp "
     "model.params_dtype optimizer.optimizer",
     "number formats of Megatron-FSDP suit the model's", fsdp_formats},
    {"gradients_and_parameters_overlap",
     "ddp.overlap_param_gather ddp.overlap_grad_reduce ddp.use_distributed_optimizer ddp.use_megatron_fsdp",
     "gathering parameters while training goes on needs split states and overlapped gradients",
     gradients_and_parameters_overlap},
    {"buckets",
     "ddp.bucket_size ddp.num_buckets ddp.average_in_collective ddp.num_distributed_optimizer_instances "
     "ddp.use_distributed_optimizer model.calculate_per_token_loss model.context_parallel_size",
     "buckets and instances suit the replicas", buckets},
    {"recompute",
     "model.recompute_* model.distribute_saved_activations model.tensor_model_parallel_size "
     "model.sequence_parallel model.num_moe_experts model.multi_latent_attention model.fp8 "
     "model.first_last_layers_bf16 model.num_layers_at_*",
     "options of recompute suit its kind", recompute},
    {"offload",
     "model.cpu_offloading model.cpu_offloading_num_layers model.cpu_offloading_activations "
     "model.offload_modules "
     "model.fine_grained_activation_offloading model.pipeline_model_parallel_size "
     "model.recompute_granularity model.num_layers model.num_moe_experts",
     "offloading has its conditions", offload},
    {"graphs",
     "model.cuda_graph_impl model.cuda_graph_warmup_steps checkpoint.save "
     "checkpoint.save_activations_interval checkpoint.save_dgrads_interval "
     "checkpoint.save_tokens_per_expert_interval logger.moe_routing_trace_path "
     "model.num_moe_experts model.expert_model_parallel_size model.expert_tensor_parallel_size "
     "model.moe_router_load_balancing_type model.cpu_offloading "
     "model.fine_grained_activation_offloading model.fp8 model.fp8_recipe model.pipeline_model_parallel_size "
     "model.variable_seq_lengths model.model_type model.vision_tower model.moe_shared_expert_overlap "
     "model.overlap_moe_expert_parallel_comm model.overlap_dispatch_backward_with_experts_wgrad",
     "recorded graphs have their conditions", graphs},
};

}  // namespace

std::span<const Rule> precision_rules() { return kPrecisionRules; }

}  // namespace megatron
