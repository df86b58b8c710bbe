#include "megatron/training/setup/optimizer_setup.h"

#include "megatron/optimizer/adam.h"
#include "megatron/optimizer/sgd.h"
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

// A wider model takes smaller steps in its matrices; with gradient descent larger ones in all else.
LearningRateScale mup_scale(const ModelConfig& model, OptimizerKind kind) {
  if (!model.use_mup) return {};
  const double width = mup_width(model);
  if (kind == OptimizerKind::sgd)
    return [width](const Parameter& p) { return is_hidden_matrix(p) ? 1.0 : width; };
  return [width](const Parameter& p) { return is_hidden_matrix(p) ? 1 / width : 1.0; };
}

AdamOptions adam_options(const OptimizerConfig& config, const ModelConfig& model) {
  AdamOptions options{.beta1 = config.adam_beta1,
                      .beta2 = config.adam_beta2,
                      .epsilon = config.adam_eps,
                      .weight_decay = config.weight_decay,
                      .decoupled = config.decoupled_weight_decay,
                      .lr_scale = mup_scale(model, config.optimizer)};
  if (!config.use_precision_aware_optimizer) return options;
  if (config.store_param_remainders) options.masters = Masters::Split;
  options.first = dtype_from_name(config.exp_avg_dtype);
  options.second = dtype_from_name(config.exp_avg_sq_dtype);
  return options;
}

}  // namespace

DataParallelOptions data_parallel_options(const DdpConfig& config) {
  return {.sharding = sharding_of(config),
          .bf16_grads = !config.grad_reduce_in_fp32.value_or(true),
          .overlap_reduce = config.overlap_grad_reduce,
          .overlap_gather = config.overlap_param_gather,
          .average = config.average_in_collective,
          .bucket_size = config.bucket_size,
          .num_buckets = config.num_buckets,
          .large_pad = config.pad_buckets_for_high_nccl_busbw};
}

std::unique_ptr<Optimizer> make_optimizer(RankContext& ctx, const OptimizerConfig& config,
                                          const ModelConfig& model, std::span<const ParameterSlice> slices) {
  std::vector<ParameterSlice> own(slices.begin(), slices.end());
  switch (config.optimizer) {
    case OptimizerKind::adam:
      return std::make_unique<Adam>(ctx, std::move(own), adam_options(config, model));
    case OptimizerKind::sgd:
      return std::make_unique<Sgd>(ctx, std::move(own),
                                   SgdOptions{.momentum = config.sgd_momentum,
                                              .weight_decay = config.weight_decay,
                                              .lr_scale = mup_scale(model, config.optimizer)});
    default:
      throw ConfigError("optimizer: only adam and sgd are built; use --optimizer adam");
  }
}

}  // namespace megatron
