#include "megatron/training/setup/optimizer_setup.h"

#include "megatron/optimizer/adam.h"
#include "megatron/optimizer/chained.h"
#include "megatron/optimizer/host_optimizer.h"
#include "megatron/optimizer/lion.h"
#include "megatron/optimizer/muon.h"
#include "megatron/optimizer/sgd.h"
#include "megatron/optimizer/soap.h"
#include "megatron/transformer/mup.h"

namespace megatron {
namespace {

Sharding sharding_of(const DdpConfig& config) {
  if (!config.use_megatron_fsdp)
    return config.use_distributed_optimizer ? Sharding::Optimizer : Sharding::None;
  switch (config.data_parallel_sharding_strategy) {
    case ShardingStrategy::no_shard:
      return Sharding::None;
    case ShardingStrategy::optim:
      return Sharding::Optimizer;
    case ShardingStrategy::optim_grads:
      return Sharding::Gradients;
    case ShardingStrategy::optim_grads_params:
      return Sharding::Parameters;
  }
  fail("data parallelism: unknown sharding strategy");
}

// Whether gradients that travel in bf16 gather in fp32.
bool gathers_wide(const DdpConfig& config) {
  return !config.param_name_patterns_for_fp32_local_accumulation.empty() &&
         !config.grad_reduce_in_fp32.value_or(true);
}

// In which gradients travel; empty: as they are kept.
std::optional<DType> wire_of(const DdpConfig& config) {
  if (gathers_wide(config)) return DType::BF16;
  if (!config.use_megatron_fsdp || config.megatron_fsdp_grad_comm_dtype == "auto") return {};
  return dtype_from_name(config.megatron_fsdp_grad_comm_dtype);
}

// How Adam keeps the weights that it updates.
Masters masters_of(const Config& config) {
  if (config.ddp.use_megatron_fsdp) {
    const std::string& wanted = config.ddp.megatron_fsdp_main_params_dtype;
    if (wanted == "auto" || (wanted != "fp32" && wanted == config.precision.params_dtype))
      return Masters::None;
    if (wanted == "fp16") return Masters::Half;
  }
  if (!config.optimizer.use_precision_aware_optimizer) return Masters::Whole;
  if (config.optimizer.main_params_dtype == "fp16") return Masters::Half;
  return config.optimizer.store_param_remainders ? Masters::Split : Masters::Whole;
}

// "fp8" is e4m3, whose scale takes care of the range.
DType moment_dtype(const std::string& name) { return name == "fp8" ? DType::F8E4M3 : dtype_from_name(name); }

// A wider model takes smaller steps in its matrices; with gradient descent larger ones in all else.
std::function<double(const Parameter&)> mup_scale(const ModelConfig& model, OptimizerKind kind) {
  if (!model.use_mup) return {};
  const double width = mup_width(model);
  if (kind == OptimizerKind::sgd)
    return [width](const Parameter& p) { return is_hidden_matrix(p) ? 1.0 : width; };
  return [width](const Parameter& p) { return is_hidden_matrix(p) ? 1 / width : 1.0; };
}

bool is_embedding_or_output(const Parameter& parameter) {
  return parameter.name == "embedding.word_embeddings.weight" || parameter.name == "output_layer.weight";
}

bool is_qk_norm(const Parameter& parameter) {
  return parameter.name.ends_with(".q_layernorm.weight") || parameter.name.ends_with(".k_layernorm.weight");
}

bool is_of_elastic_router(const Parameter& parameter) {
  return parameter.name.starts_with("elastic_router.");
}

// The router of sub-networks has a rate of its own.
std::function<double(const Parameter&)> lr_scale(const Config& all) {
  const auto usual = mup_scale(all.model, all.optimizer.optimizer);
  const double factor = all.elastic.lr_mult_router;
  if (!all.elastic.flextron || factor == 1) return usual;
  return [usual, factor](const Parameter& p) {
    return is_of_elastic_router(p) ? factor : usual ? usual(p) : 1.0;
  };
}

ParameterGroups parameter_groups(const Config& all) {
  const OptimizerConfig& config = all.optimizer;
  ParameterGroups groups{.lr_scale = lr_scale(all)};
  if (config.decoupled_lr) groups.decoupled = is_embedding_or_output;
  if (config.apply_wd_to_qk_layernorm)
    groups.decayed = [](const Parameter& p) { return p.decayed() || is_qk_norm(p); };
  return groups;
}

AdamOptions adam_options(const Config& all) {
  const OptimizerConfig& config = all.optimizer;
  AdamOptions options{.beta1 = config.adam_beta1,
                      .beta2 = config.adam_beta2,
                      .epsilon = config.adam_eps,
                      .weight_decay = config.weight_decay,
                      .decoupled = config.decoupled_weight_decay,
                      .groups = parameter_groups(all),
                      .masters = masters_of(all)};
  if (!config.use_precision_aware_optimizer) return options;
  options.first = moment_dtype(config.exp_avg_dtype);
  options.second = moment_dtype(config.exp_avg_sq_dtype);
  return options;
}

// Those that multiply activations: no table of the vocabulary, no filter along the sequence.
bool is_matrix(const Parameter& parameter) {
  return is_hidden_matrix(parameter) && parameter.shard.global_shape.rank() == (parameter.expert ? 3 : 2) &&
         !parameter.name.ends_with(".conv1d.weight");
}

// Rows of each query group: queries, their gates, one key, one value.
std::vector<int64_t> qkv_rows(const ModelConfig& model) {
  const int64_t heads = model.num_attention_heads, size = model.kv_channels;
  const int64_t groups = model.num_query_groups > 0 ? model.num_query_groups : heads;
  const int64_t queries = heads / groups * size;
  if (model.attention_output_gate) return {queries, queries, size, size};
  return {queries, size, size};
}

MuonOptions muon_options(const Config& all, const ParallelContext& parallel,
                         const DataParallel& data_parallel) {
  const OptimizerConfig& config = all.optimizer;
  std::optional<MuonSecondMoment> second;
  if (config.optimizer == OptimizerKind::adaptive_muon)
    second = {.method = config.adaptive_muon_moment2_method,
              .beta2 = config.adaptive_muon_beta2,
              .epsilon = config.adaptive_muon_eps};
  return {.momentum = config.muon_momentum,
          .weight_decay = config.weight_decay,
          .nesterov = config.muon_nesterov,
          .scale = config.muon_scale_mode,
          .extra_scale = config.muon_extra_scale_factor,
          .steps = newton_schulz_steps(config.muon_coefficient_type, config.muon_num_ns_steps),
          .tp_mode = config.muon_tp_mode,
          .qkv_rows = config.muon_split_qkv ? qkv_rows(all.model) : std::vector<int64_t>(),
          .dense = {parallel.group(Axis::tp), data_parallel.shard_group(false)},
          .expert = {parallel.group(Axis::etp), data_parallel.shard_group(true)},
          .second = second,
          .groups = parameter_groups(all)};
}

SoapOptions soap_options(const Config& all, const ParallelContext& parallel,
                         const DataParallel& data_parallel) {
  const OptimizerConfig& config = all.optimizer;
  return {.beta1 = config.adam_beta1,
          .beta2 = config.adam_beta2,
          .epsilon = config.adam_eps,
          .weight_decay = config.weight_decay,
          .shampoo_beta = config.soap_shampoo_beta,
          .kl_shampoo = config.soap_use_kl_shampoo,
          .dense = {parallel.group(Axis::tp), data_parallel.shard_group(false)},
          .expert = {parallel.group(Axis::etp), data_parallel.shard_group(true)},
          .groups = parameter_groups(all)};
}

// The rule of all parameters, or of those that Muon and SOAP leave alone.
OptimizerKind plain_kind(const OptimizerConfig& config) {
  if (config.is_soap()) return OptimizerKind::adam;
  if (!config.is_muon()) return config.optimizer;
  return config.muon_scalar_optimizer == MuonScalarOptimizer::lion ? OptimizerKind::lion
                                                                   : OptimizerKind::adam;
}

std::unique_ptr<Optimizer> plain_optimizer(RankContext& ctx, const Config& all,
                                           std::vector<ParameterSlice> slices) {
  const OptimizerConfig& config = all.optimizer;
  switch (plain_kind(config)) {
    case OptimizerKind::adam:
      return std::make_unique<Adam>(ctx, std::move(slices), adam_options(all));
    case OptimizerKind::sgd:
      return std::make_unique<Sgd>(ctx, std::move(slices),
                                   SgdOptions{.momentum = config.sgd_momentum,
                                              .weight_decay = config.weight_decay,
                                              .groups = parameter_groups(all)});
    case OptimizerKind::lion:
      return std::make_unique<Lion>(ctx, std::move(slices),
                                    LionOptions{.beta1 = config.lion_beta1,
                                                .beta2 = config.lion_beta2,
                                                .weight_decay = config.weight_decay,
                                                .groups = parameter_groups(all)});
    default:
      throw ConfigError(fmt::format("optimizer.optimizer = {}: is not built; use --optimizer adam",
                                    name_of(config.optimizer)));
  }
}

// With --optimizer-cpu-offload the host updates a part of the parameters, and the device the others.
std::unique_ptr<Optimizer> plain_or_offloaded(RankContext& ctx, const Config& config,
                                              std::vector<ParameterSlice> slices) {
  if (!config.optimizer.optimizer_cpu_offload) return plain_optimizer(ctx, config, std::move(slices));
  SplitSlices split = split_slices(std::move(slices), config.optimizer.optimizer_offload_fraction);
  std::vector<std::unique_ptr<Optimizer>> parts;
  parts.push_back(std::make_unique<HostOptimizer>(
      ctx, std::move(split.on_host), [&](RankContext& host, std::vector<ParameterSlice> mirrors) {
        return plain_optimizer(host, config, std::move(mirrors));
      }));
  parts.push_back(plain_optimizer(ctx, config, std::move(split.on_device)));
  return std::make_unique<ChainedOptimizer>(ctx, std::move(parts));
}

}  // namespace

DataParallelOptions data_parallel_options(const DdpConfig& config) {
  return {.sharding = sharding_of(config),
          .bf16_grads = !config.grad_reduce_in_fp32.value_or(true) && !gathers_wide(config),
          .wire = wire_of(config),
          .fp32_sums = config.reduce_scatter_with_fp32_accumulation,
          .overlap_reduce = config.overlap_grad_reduce,
          .overlap_gather = config.overlap_param_gather,
          .average = config.average_in_collective,
          .bucket_size = config.bucket_size,
          .num_buckets = config.num_buckets,
          .large_pad = config.pad_buckets_for_high_nccl_busbw};
}

bool has_unshared_state(const Config& config, int replicas, int expert_replicas) {
  const bool experts = config.model.num_moe_experts > 0;
  return sharding_of(config.ddp) != Sharding::None || replicas == 1 || (experts && expert_replicas == 1);
}

LossScaleOptions loss_scale_options(const OptimizerConfig& config) {
  return {.constant = config.loss_scale,
          .initial = config.initial_loss_scale,
          .minimum = config.min_loss_scale,
          .window = config.loss_scale_window,
          .hysteresis = config.hysteresis};
}

std::unique_ptr<Optimizer> make_optimizer(RankContext& ctx, const Config& config,
                                          const ParallelContext& parallel,
                                          const DataParallel& data_parallel) {
  const bool muon = config.optimizer.is_muon(), soap = config.optimizer.is_soap();
  std::vector<ParameterSlice> matrices, others;
  for (const ParameterSlice& slice : data_parallel.slices())
    ((muon || soap) && is_matrix(*slice.parameter) ? matrices : others).push_back(slice);
  std::unique_ptr<Optimizer> rest = plain_or_offloaded(ctx, config, std::move(others));
  if (!muon && !soap) return rest;
  std::vector<std::unique_ptr<Optimizer>> parts;
  if (muon)
    parts.push_back(
        std::make_unique<Muon>(ctx, std::move(matrices), muon_options(config, parallel, data_parallel)));
  else
    parts.push_back(
        std::make_unique<Soap>(ctx, std::move(matrices), soap_options(config, parallel, data_parallel)));
  parts.push_back(std::move(rest));
  return std::make_unique<ChainedOptimizer>(ctx, std::move(parts));
}

}  // namespace megatron
