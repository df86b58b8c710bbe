#include "megatron/transformer/moe/experts.h"

#include "megatron/nn/elastic_widths.h"
#include "megatron/nn/linear.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/grouped_format.h"
#include "megatron/parallel/tensor/tensor_parallel.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"
#include "megatron/transformer/mlp.h"

namespace megatron {
namespace {

Shape with_leading(int64_t first, const Shape& rest) {
  Shape shape{first};
  for (int64_t size : rest) shape.push_back(size);
  return shape;
}

// The same part of each of this rank's experts.
ShardSpec of_experts(const ShardSpec& part, int64_t experts, const ExpertParallel& parallel) {
  int64_t local = experts / parallel.size(), first = local * parallel.rank();
  ShardSpec spec{with_leading(experts, part.global_shape), with_leading(local, part.local_shape), {}};
  for (const ShardBlock& block : part.blocks)
    spec.blocks.push_back({with_leading(first, block.global_offset), with_leading(0, block.local_offset),
                           with_leading(local, block.extent)});
  return spec;
}

std::unique_ptr<Parameter> expert_parameter(const std::string& name, SplitShard split, int64_t experts,
                                            const ExpertParallel& parallel, Initializer initializer) {
  split.shard = of_experts(split.shard, experts, parallel);
  if (split.holders)
    for (auto* part : {&split.holders.held, &split.holders.owned})
      *part = [experts, parallel, one = *part](int rank) { return of_experts(one(rank), experts, parallel); };
  auto parameter = std::make_unique<Parameter>(name, std::move(split), initializer);
  parameter->expert = true;
  return parameter;
}

}  // namespace

Experts::Experts(const std::string& name, const ModelConfig& config, const ExpertParallel& parallel)
    : parallel_(parallel),
      gated_(config.gated_linear_unit),
      activation_{activation_kernel(config.activation_func), config.activation_func_clamp_value.value_or(0),
                  config.glu_linear_offset} {
  int64_t hidden = config.moe_latent_size ? config.moe_latent_size : config.hidden_size,
          experts = config.num_moe_experts;
  int64_t width = config.moe_ffn_hidden_size ? config.moe_ffn_hidden_size : config.ffn_hidden_size;
  const TensorParallel tensor{.group = parallel.tensor, .replica_sizes = parallel.replica_sizes};
  std::vector<int64_t> parts(gated_ ? 2 : 1, width);
  int64_t rows = width * static_cast<int64_t>(parts.size());
  fc1_ = expert_parameter(name + ".linear_fc1.weight", tensor.split(name, {rows, hidden}, 0, 0, parts),
                          experts, parallel, input_initializer(config));
  fc2_ = expert_parameter(name + ".linear_fc2.weight", tensor.split(name, {hidden, width}, 1), experts,
                          parallel, output_initializer(config));
  fc1_->quantizable = fc2_->quantizable = true;
  if (!config.add_mlp_bias.value_or(config.add_bias_linear)) return;
  fc1_bias_ = expert_parameter(name + ".linear_fc1.bias", tensor.split(name, {rows}, 0, 0, parts), experts,
                               parallel, Initializer::constant(0));
  fc2_bias_ = expert_parameter(name + ".linear_fc2.bias", {ShardSpec::whole({hidden})}, experts, parallel,
                               Initializer::constant(0));
  fc2_bias_->partial_over_tp = tensor.size() > 1;  // only one part of an expert adds it
}

int64_t Experts::row_alignment() const {
  int64_t alignment = 1;
  for (const Parameter* weight : {fc1_.get(), fc2_.get()})
    alignment = std::max(alignment, ops::grouped_fp8_alignment(weight->fp8.get(), weight->shard.local_shape));
  return alignment;
}

Tensor Experts::activate(RankContext& ctx, const Tensor& up) const {
  return gated_ ? ops::gated_activation(ctx, activation_, up) : ops::activation(ctx, activation_.kind, up);
}

Tensor Experts::forward(RankContext& ctx, const Dispatched& tokens, const ActivationPlan& plan,
                        HostOffload* host, const Tensor& width) {
  auto with_bias = [&](const Tensor& x, Parameter* bias, const Tensor& expert_of_row) {
    return bias ? ops::add(ctx, x, ops::embedding_or_zeros(ctx, bias->get(ctx), expert_of_row)) : x;
  };
  Tensor up, active;
  {
    PackerScope scope = offload_scope(ctx, host, plan.offloaded.expert_fc1);
    up = apply_linear(ctx, tokens.tokens, *fc1_, {.offsets = tokens.offsets}).y;
  }
  up = with_bias(up, fc1_bias_.get(), tokens.expert_of_row);
  std::shared_ptr<Saved> kept;  // what the activation keeps: fc2 makes its input again from that
  {
    PackerScope scope = offload_scope(ctx, host, plan.offloaded.expert_activation);
    active = within(ctx, activate(ctx, up), width);
    if (plan.expert_activation && ctx.tape) kept = std::make_shared<Saved>(ctx, up);
  }
  Tensor down;
  {
    std::optional<Rematerialize> remade;
    if (kept)
      remade.emplace(ctx, active, [this, kept, fixed = width.detach()](RankContext& c) {
        return within(c, activate(c, kept->get(c)), fixed);
      });
    down = apply_linear(ctx, active, *fc2_, {.offsets = tokens.offsets}).y;
  }
  if (!fc2_bias_) return down;
  bool adds = parallel_.tensor.rank() == 0;  // the results of all parts are summed
  return with_bias(down, fc2_bias_.get(),
                   adds ? tokens.expert_of_row : ctx.full(tokens.expert_of_row.shape(), DType::I64, -1));
}

void Experts::visit(const ParameterVisitor& visitor) {
  visitor(*fc1_);
  if (fc1_bias_) visitor(*fc1_bias_);
  visitor(*fc2_);
  if (fc2_bias_) visitor(*fc2_bias_);
}

}  // namespace megatron
