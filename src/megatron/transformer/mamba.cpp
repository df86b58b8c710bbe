#include "megatron/transformer/mamba.h"

#include <cmath>
#include <limits>

#include "megatron/base/sum.h"
#include "megatron/nn/elastic_widths.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/ssd.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"
#include "megatron/transformer/recurrent_cache.h"

namespace megatron {
namespace {

// The projection makes, side by side: gate, x, B, C, steps.
std::vector<int64_t> mamba_columns(const ModelConfig& config) {
  const int64_t inner = config.mamba_num_heads * config.mamba_head_dim,
                shared = config.mamba_num_groups * config.mamba_state_dim;
  return {inner, inner, shared, shared, config.mamba_num_heads};
}

// The part of it that passes the convolution: x, B, C.
std::vector<int64_t> convolved(const ModelConfig& config) {
  const std::vector<int64_t> parts = mamba_columns(config);
  return {parts[1], parts[2], parts[3]};
}

// Ranks share out groups of heads.
SplitShard mamba_heads(const ModelConfig& config, const TensorParallel& tp) {
  return tp.split("mamba", {config.mamba_num_heads}, 0, config.mamba_num_groups);
}

Initializer convolution(const ModelConfig& config) {
  return Initializer::uniform(1 / std::sqrt(static_cast<double>(config.mamba_conv_kernel)));
}

}  // namespace

MambaMixer::MambaMixer(const std::string& name, int64_t layer, const ModelConfig& config,
                       const ModelParallel& parallel)
    : layer_(layer),
      tp_(parallel.tensor),
      groups_(tp_.count("mamba: groups of heads", config.mamba_num_groups)),
      heads_(config.mamba_num_heads / config.mamba_num_groups * groups_),
      channels_(config.mamba_head_dim),
      states_(config.mamba_state_dim),
      chunk_(config.mamba_chunk_size),
      inner_(config.mamba_num_heads * config.mamba_head_dim),
      step_min_(config.mamba_time_step_min),
      step_max_(config.mamba_time_step_max.value_or(std::numeric_limits<double>::infinity())),
      epsilon_(config.layernorm_epsilon),
      full_width_norm_(config.mamba_norm_full_width),
      share_("mamba", parallel.context,
             {{heads_, channels_}, {groups_, states_, true}, {groups_, states_, true}, {heads_, 1}}),
      in_(name + ".in_proj", config.hidden_size, sum_of(mamba_columns(config)), tp_,
          {.initializer = input_initializer(config),
           .bias = config.mamba_proj_bias,
           .parts = mamba_columns(config),
           .units = config.mamba_num_groups}),
      conv_weight_(name + ".conv1d.weight",
                   tp_.split(name, {sum_of(convolved(config)), 1, config.mamba_conv_kernel}, 0,
                             config.mamba_num_groups, convolved(config)),
                   convolution(config)),
      a_log_(name + ".A_log", mamba_heads(config, tp_), Initializer::log_uniform(1, 16)),
      d_(name + ".D", mamba_heads(config, tp_), Initializer::constant(1)),
      dt_bias_(name + ".dt_bias", mamba_heads(config, tp_), Initializer::step_bias(1e-3, 1e-1)),
      norm_weight_(name + ".norm.weight", tp_.split(name, {inner_}, 0, config.mamba_num_groups),
                   Initializer::constant(1)),
      out_(name + ".out_proj", inner_, config.hidden_size, tp_,
           {.initializer = output_initializer(config),
            .bias = config.mamba_proj_bias,
            .units = config.mamba_num_groups}) {
  require(config.mamba_num_heads % config.mamba_num_groups == 0, "mamba: {} heads are not {} equal groups",
          config.mamba_num_heads, config.mamba_num_groups);
  for (Parameter* parameter : {&a_log_, &d_, &dt_bias_}) parameter->keep_fp32 = true;
  if (config.mamba_conv_bias)
    conv_bias_ = std::make_unique<Parameter>(
        name + ".conv1d.bias",
        tp_.split(name, {sum_of(convolved(config))}, 0, config.mamba_num_groups, convolved(config)),
        convolution(config));
}

Tensor MambaMixer::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                           const RecomputeFn& recompute_input, HostOffload*) {
  const SequenceRows rows = share_.rows(seq);
  const int64_t inner = heads_ * channels_, sizes[] = {inner, inner + 2 * groups_ * states_, heads_};
  const std::vector<Tensor> parts =
      ops::split(ctx, without_padding(ctx, in_.forward(ctx, x, recompute_input), seq, tp_), sizes, 1);
  const std::vector<Tensor> states = share_.whole(ctx, {parts[1], parts[2]}, seq);
  const RecurrentCache carried(seq, layer_);
  Tensor xbc = carried.convolve(ctx, states[0], share_.weight(ctx, conv_weight_, 0, 3),
                                conv_bias_ ? share_.weight(ctx, *conv_bias_, 0, 3) : Weight{}, rows);
  const auto per_head = [&](Parameter& parameter) { return share_.weight(ctx, parameter, 3, 1, true); };
  RecurrentState state = carried.state(ctx);
  Tensor y = ops::ssd(ctx, xbc, states[1], {per_head(a_log_), per_head(d_), per_head(dt_bias_)},
                      {.heads = share_.heads(0),
                       .channels = channels_,
                       .groups = share_.heads(1),
                       .states = states_,
                       .chunk = seq.cache ? 1 : chunk_,  // where steps end then does not change the sums
                       .step_min = step_min_,
                       .step_max = step_max_},
                      rows, state.value);
  state.keep(ctx);
  y = share_.held(ctx, y, seq);
  if (!seq.elastic) return out_.forward(ctx, with_padding(ctx, norm(ctx, y, parts[0]), tp_));
  const ElasticWidths::Normed& active = seq.elastic->heads;
  const Tensor normed = within(ctx, norm(ctx, within(ctx, y, active.in), parts[0]), active.out);
  return out_.forward(ctx, with_padding(ctx, normed, tp_));
}

// Of each group, all of which this rank holds, or of all heads, some of which other ranks hold.
Tensor MambaMixer::norm(RankContext& ctx, const Tensor& y, const Tensor& gate) {
  ops::GatedNormOptions options{
      .groups = full_width_norm_ ? 1 : groups_, .epsilon = epsilon_, .sum_over_ranks = {}};
  if (full_width_norm_ && tp_.size() > 1) {
    options.width = inner_;
    options.sum_over_ranks = [group = tp_.group](RankContext&, const Tensor& sums) {
      group.all_reduce(sums).wait();
    };
  }
  return ops::gated_norm(ctx, y, gate, norm_weight_.get(ctx), options);
}

CacheShape MambaMixer::cache_shape() const {
  return {.convolved = heads_ * channels_ + 2 * groups_ * states_,
          .kept = conv_weight_.shard.local_shape[2] - 1,
          .state = {heads_, channels_, states_}};
}

void MambaMixer::visit(const ParameterVisitor& visitor) {
  in_.visit(visitor);
  visitor(conv_weight_);
  if (conv_bias_) visitor(*conv_bias_);
  for (Parameter* parameter : {&a_log_, &d_, &dt_bias_, &norm_weight_}) visitor(*parameter);
  out_.visit(visitor);
}

}  // namespace megatron
