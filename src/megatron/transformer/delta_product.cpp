#include "megatron/transformer/delta_product.h"

#include <cmath>

#include "megatron/autograd/recompute.h"
#include "megatron/base/sum.h"
#include "megatron/ops/delta_rule.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"
#include "megatron/transformer/recurrent_cache.h"

namespace megatron {
namespace {

constexpr double kNoDecay = -1e4;  // whose softplus is 0: of all corrections of a token but the first

// What passes the convolution: values and keys of all corrections, queries.
std::vector<int64_t> convolved(const ModelConfig& config) {
  const int64_t inner = config.mamba_num_heads * config.mamba_head_dim,
                shared = config.mamba_num_groups * config.mamba_state_dim;
  const auto times = static_cast<size_t>(config.gdp_num_householder);
  std::vector<int64_t> parts(times, inner);
  parts.insert(parts.end(), times + 1, shared);
  return parts;
}

// The projection makes, side by side: gate, what passes the convolution, strengths of all corrections, decay.
std::vector<int64_t> projected(const ModelConfig& config) {
  std::vector<int64_t> parts = convolved(config);
  parts.insert(parts.begin(), config.mamba_num_heads * config.mamba_head_dim);
  parts.insert(parts.end(), static_cast<size_t>(config.gdp_num_householder + 1), config.mamba_num_heads);
  return parts;
}

std::vector<RecurrentContextParallel::Part> shared_parts(const ModelConfig& config, int64_t groups,
                                                         int64_t heads) {
  const auto times = static_cast<size_t>(config.gdp_num_householder);
  std::vector<RecurrentContextParallel::Part> parts(times, {heads, config.mamba_head_dim});
  parts.insert(parts.end(), times + 1, {groups, config.mamba_state_dim, true});
  parts.insert(parts.end(), times + 1, {heads, 1});
  return parts;
}

SplitShard split_heads(const ModelConfig& config, const TensorParallel& tp, int64_t length) {
  return tp.split("gated delta product", {length}, 0, config.mamba_num_groups);
}

// Ends of sequences whose tokens are `times` rows each.
SequenceRows repeated(RankContext& ctx, const SequenceRows& rows, int64_t times) {
  if (!rows.cu || times == 1) return rows;
  Tensor ends = ctx.empty(rows.cu.shape(), DType::F64), cu = ctx.empty(rows.cu.shape(), rows.cu.dtype());
  ctx.kernels->copy(ctx.kernel_context(), {rows.cu, ends});
  ctx.kernels->axpby(ctx.kernel_context(),
                     {.alpha = static_cast<double>(times), .a = ends, .beta = 0, .b = {}, .out = ends});
  ctx.kernels->copy(ctx.kernel_context(), {ends, cu});
  return {.count = rows.count, .cu = cu};
}

}  // namespace

DeltaProduct::DeltaProduct(const std::string& name, int64_t layer, const ModelConfig& config,
                           const ModelParallel& parallel)
    : layer_(layer),
      tp_(parallel.tensor),
      groups_(tp_.count("gated delta product: groups of heads", config.mamba_num_groups)),
      heads_(config.mamba_num_heads / config.mamba_num_groups * groups_),
      channels_(config.mamba_head_dim),
      states_(config.mamba_state_dim),
      times_(config.gdp_num_householder),
      epsilon_(config.layernorm_epsilon),
      share_("gated delta product", parallel.context, shared_parts(config, groups_, heads_)),
      in_(name + ".in_proj", config.hidden_size, sum_of(projected(config)), tp_,
          {.initializer = input_initializer(config),
           .parts = projected(config),
           .units = config.mamba_num_groups}),
      conv_weight_(name + ".conv1d.weight",
                   tp_.split(name, {sum_of(convolved(config)), 1, config.mamba_conv_kernel}, 0,
                             config.mamba_num_groups, convolved(config)),
                   Initializer::uniform(1 / std::sqrt(static_cast<double>(config.mamba_conv_kernel)))),
      a_log_(name + ".A_log", split_heads(config, tp_, config.mamba_num_heads),
             Initializer::log_uniform(1e-4, 16)),
      dt_bias_(name + ".dt_bias", split_heads(config, tp_, config.mamba_num_heads),
               Initializer::step_bias(1e-3, 1e-1)),
      norm_weight_(name + ".norm.weight",
                   split_heads(config, tp_, config.mamba_num_heads * config.mamba_head_dim),
                   Initializer::constant(1)),
      out_(name + ".out_proj", config.mamba_num_heads * config.mamba_head_dim, config.hidden_size, tp_,
           {.initializer = output_initializer(config), .units = config.mamba_num_groups}) {
  for (Parameter* parameter : {&a_log_, &dt_bias_}) parameter->keep_fp32 = true;
}

void DeltaProduct::set_activation_plan(const ActivationPlan& plan) {
  project_again_ = plan.delta_projection;
  convolve_again_ = plan.delta_convolution;
}

std::vector<Tensor> DeltaProduct::project(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                                          const RecomputeFn& recompute_input) {
  const int64_t inner = heads_ * channels_,
                sizes[] = {inner, times_ * inner + (times_ + 1) * groups_ * states_, times_ * heads_, heads_};
  const std::vector<Tensor> parts =
      ops::split(ctx, without_padding(ctx, in_.forward(ctx, x, recompute_input), seq, tp_), sizes, 1);
  std::vector<Tensor> whole = share_.whole(ctx, {parts[1], parts[2], parts[3]}, seq);
  whole.insert(whole.begin(), parts[0]);
  return whole;
}

Tensor DeltaProduct::corrections(RankContext& ctx, const Tensor& vkq, const SeqInfo& seq) {
  const auto times = static_cast<size_t>(times_);
  const Tensor made =
      RecurrentCache(seq, layer_)
          .convolve(ctx, vkq, share_.weight(ctx, conv_weight_, 0, 2 * times + 1), {}, share_.rows(seq));
  std::vector<int64_t> sizes(times, share_.heads(0) * channels_);
  sizes.insert(sizes.end(), times + 1, share_.heads(times) * states_);
  const std::vector<Tensor> parts = ops::split(ctx, made, sizes, 1);
  std::vector<Tensor> rows;
  for (size_t i = 0; i < times; ++i) rows.insert(rows.end(), {parts.back(), parts[times + i], parts[i]});
  const Tensor side_by_side = ops::concat(ctx, rows, 1);
  return ops::view(ctx, side_by_side, {vkq.size(0) * times_, side_by_side.size(1) / times_});
}

Tensor DeltaProduct::read(RankContext& ctx, const Tensor& qkv, const Tensor& strengths, const Tensor& decays,
                          const SeqInfo& seq) {
  const auto times = static_cast<size_t>(times_);
  const int64_t tokens = decays.size(0), heads = share_.heads(0);
  std::vector<Tensor> steps(times, ctx.full({tokens, heads}, decays.dtype(), kNoDecay));
  steps[0] = decays;
  const Shape shape{tokens * times_, heads};
  const auto per_head = [&](Parameter& parameter) {
    return share_.weight(ctx, parameter, 3 * times + 1, 1, true);
  };
  RecurrentState state = RecurrentCache(seq, layer_).state(ctx);
  const Tensor o =
      ops::delta_rule(ctx, qkv, ops::view(ctx, ops::contiguous(ctx, strengths), shape),
                      ops::view(ctx, ops::concat(ctx, steps, 1), shape), per_head(a_log_), per_head(dt_bias_),
                      {.key_heads = share_.heads(times),
                       .value_heads = heads,
                       .key_channels = states_,
                       .value_channels = channels_},
                      repeated(ctx, share_.rows(seq), times_), state.value);
  state.keep(ctx);
  const Tensor by_token = ops::view(ctx, o, {tokens, times_, heads * channels_});
  const Tensor last = ops::slice(ctx, by_token, 1, times_ - 1, times_);
  return ops::view(ctx, ops::contiguous(ctx, last), {tokens, heads * channels_});
}

Tensor DeltaProduct::leave(RankContext& ctx, const Tensor& y, const Tensor& gate) {
  const Tensor normed = ops::gated_norm(ctx, y, gate, norm_weight_.get(ctx),
                                        {.groups = groups_, .epsilon = epsilon_, .sum_over_ranks = {}});
  return out_.forward(ctx, with_padding(ctx, normed, tp_));
}

Tensor DeltaProduct::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                             const RecomputeFn& recompute_input, HostOffload*) {
  const auto finish = [&](const Tensor& gate, const Tensor& qkv, const Tensor& strengths,
                          const Tensor& decays) {
    return leave(ctx, share_.held(ctx, read(ctx, qkv, strengths, decays, seq), seq), gate);
  };
  if (project_again_ && ctx.tape && !out_.fp8())
    return recompute_for(
        ctx, {&x, 1},
        [this, seq](RankContext& c, std::span<const Tensor> in) {
          std::vector<Tensor> parts = project(c, in[0], seq, {});
          parts[1] = corrections(c, parts[1], seq);
          return parts;
        },
        [&](std::span<const Tensor> made) { return finish(made[0], made[1], made[2], made[3]); });
  const std::vector<Tensor> parts = project(ctx, x, seq, recompute_input);
  if (convolve_again_ && ctx.tape)
    return recompute_for(
        ctx, {&parts[1], 1},
        [this, seq](RankContext& c, std::span<const Tensor> in) {
          return std::vector<Tensor>{corrections(c, in[0], seq)};
        },
        [&](std::span<const Tensor> made) { return finish(parts[0], made[0], parts[2], parts[3]); });
  return finish(parts[0], corrections(ctx, parts[1], seq), parts[2], parts[3]);
}

CacheShape DeltaProduct::cache_shape() const {
  return {.convolved = times_ * heads_ * channels_ + (times_ + 1) * groups_ * states_,
          .kept = conv_weight_.shard.local_shape[2] - 1,
          .state = {heads_, states_, channels_}};
}

void DeltaProduct::visit(const ParameterVisitor& visitor) {
  in_.visit(visitor);
  for (Parameter* parameter : {&conv_weight_, &a_log_, &dt_bias_, &norm_weight_}) visitor(*parameter);
  out_.visit(visitor);
}

}  // namespace megatron
