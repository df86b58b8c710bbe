#include "megatron/transformer/moe/router.h"

#include <algorithm>
#include <cmath>

#include "megatron/nn/elastic_widths.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/index.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/softmax.h"
#include "megatron/ops/straight_through.h"
#include "megatron/ops/weight_tensor.h"
#include "megatron/ops/wide_linear.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"
#include "megatron/transformer/moe/quantile_balancing.h"
#include "megatron/transformer/moe/routing_record.h"
#include "megatron/transformer/moe/sinkhorn.h"

namespace megatron {
namespace {

constexpr int kJitterSite = 3, kRandomSite = 4, kBiasSite = 5;  // of the layer's random numbers

// Random rows [tokens, columns] of a share, each drawn by the token's place in the global batch.
Tensor random_rows(RankContext& ctx, RandomArgs args, DType dtype, int64_t columns, const SeqInfo& seq,
                   const MicrobatchShare& share) {
  // Tokens that are not in turn take their rows from those of the whole micro-batch.
  int64_t rows = seq.token_index ? seq.batch * seq.row_length : share.rows;
  args.out = ctx.empty({rows, columns}, dtype);
  args.base = (seq.batch_begin * seq.row_length + (seq.token_index ? 0 : share.begin)) * columns;
  args.global_strides = {columns, 1};
  ctx.kernels->random(ctx.kernel_context(), args);
  if (!seq.token_index) return args.out;
  return ops::gather_rows(ctx, args.out, seq.token_index.slice(0, share.begin, share.begin + share.rows));
}

Tensor sum_of(RankContext& ctx, const Tensor& a, const Tensor& b) { return a ? ops::add(ctx, a, b) : b; }

}  // namespace

Router::Router(const std::string& name, int64_t layer, const ModelConfig& config,
               const ModelParallel& parallel)
    : layer_(layer),
      experts_(config.num_moe_experts),
      choice_(ChoiceOptions::of(config)),
      z_coefficient_(config.moe_z_loss_coeff),
      jitter_(config.moe_input_jitter_eps.value_or(0)),
      bias_rate_(config.moe_router_bias_update_rate),
      random_(config.moe_router_force_load_balancing || config.moe_router_force_biased),
      quantile_memory_(config.moe_router_quantile_balancing_ema),
      biased_(config.moe_router_force_biased),
      dtype_(config.moe_router_dtype),
      batch_group_(parallel.expert.batch),
      weight_(name + ".weight", ShardSpec::whole({experts_, config.hidden_size}), input_initializer(config)) {
  if (layer < config.num_layers) replay_layer_ = expert_layers_before(config, layer);
  const auto& coefficients = config.moe_aux_loss_coeff;
  for (size_t i = 0; i < config.moe_router_load_balancing_type.size(); ++i) {
    const std::string& kind = config.moe_router_load_balancing_type[i];
    double coefficient = i < coefficients.size() ? coefficients[i] : 0;
    if (kind == "quantile_balancing") quantiles_ = true;
    if (kind == "sinkhorn") sinkhorn_ = true;
    if (kind != "none" && coefficient != 0) balance_.push_back({kind, coefficient});
  }
  if (config.moe_expert_capacity_factor)
    capacity_ = CapacityOptions{*config.moe_expert_capacity_factor, config.moe_token_drop_policy};
  // Every TP rank routes some of the tokens.
  weight_.partial_over_tp = parallel.tensor.size() > 1;
  if (config.add_bias_linear) {
    bias_ = std::make_unique<Parameter>(name + ".bias", ShardSpec::whole({experts_}),
                                        Initializer::normal(config.init_method_std));
    bias_->partial_over_tp = weight_.partial_over_tp;
  }
  if (config.moe_router_enable_expert_bias || quantiles_) {
    expert_bias_ = std::make_unique<Parameter>(name + (quantiles_ ? ".qb_beta" : ".expert_bias"),
                                               ShardSpec::whole({experts_}), Initializer::constant(0));
    expert_bias_->trainable = false;
    expert_bias_->keep_fp32 = true;
  }
}

Tensor Router::noisy(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                     const MicrobatchShare& share) const {
  if (jitter_ == 0 || !seq.training) return x;
  RandomArgs uniform{.kind = Distribution::Uniform,
                     .a = 1 - jitter_,
                     .b = 1 + jitter_,
                     .key = dropout_key(seq, layer_, kJitterSite)};
  Tensor noise = random_rows(ctx, uniform, x.dtype(), x.size(1), seq, share);
  return ops::mul(ctx, x, noise);
}

// At least fp32, whatever the activations are.
Tensor Router::logits(RankContext& ctx, const Tensor& x) {
  DType dtype = x.dtype();
  if (dtype_ == RouterDType::fp64) dtype = DType::F64;
  if (dtype_ == RouterDType::fp32 && dtype != DType::F64) dtype = DType::F32;
  const Weight weight = weight_.get(ctx);
  Tensor y;
  if (dtype == x.dtype())
    y = ops::linear(ctx, x, weight, bias_ ? bias_->get(ctx) : Weight{});
  else if (dtype == DType::F32 && weight.value.dtype() == x.dtype())
    y = ops::wide_linear(ctx, x, weight);
  else
    y = ops::matmul(ctx, ops::cast(ctx, x, dtype), ops::weight_tensor(ctx, weight, dtype),
                    {.transpose_b = true});
  if (bias_ && dtype != x.dtype()) y = ops::add(ctx, y, ops::weight_tensor(ctx, bias_->get(ctx), dtype));
  return ops::cast(ctx, y, accumulation_dtype(dtype));
}

Tensor Router::random_logits(RankContext& ctx, const Tensor& logits, const SeqInfo& seq,
                             const MicrobatchShare& share) const {
  RandomArgs normal{.key = dropout_key(seq, layer_, kRandomSite)};
  Tensor y = random_rows(ctx, normal, logits.dtype(), experts_, seq, share);
  if (biased_) {  // the same for all tokens of a step, on whichever rank
    const RngKey key = *biased_ < 0 ? RngKey{seq.seed, dropout_stream(0, layer_, kBiasSite)}
                                    : dropout_key(seq, layer_, kBiasSite);
    const Tensor bias = ctx.empty({1, experts_}, logits.dtype());
    ctx.kernels->random(ctx.kernel_context(),
                        {.out = bias, .b = std::abs(*biased_), .key = key, .global_strides = {experts_, 1}});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, y, bias.expand(y.shape()), y});
  }
  return ops::straight_through(ctx, y, logits);
}

// What tokens of a share are to choose, [rows, k]; undefined: what their logits say.
Tensor Router::replayed(RankContext& ctx, const SeqInfo& seq, const MicrobatchShare& share) const {
  if (!seq.replayed_experts || replay_layer_ < 0) return {};
  const Tensor all = seq.replayed_experts.select(1, replay_layer_);
  if (seq.token_index) {
    const Tensor own = ctx.empty({share.rows, all.size(1)}, DType::I64);
    ctx.kernels->gather_rows(
        ctx.kernel_context(),
        {ops::contiguous(ctx, all), seq.token_index.slice(0, share.begin, share.begin + share.rows), own});
    return own;
  }
  return ops::contiguous(ctx, all.slice(0, share.begin, share.begin + share.rows));
}

Routing Router::route(RankContext& ctx, const Tensor& logits, const SeqInfo& seq,
                      const MicrobatchShare& share) {
  if (!sinkhorn_) {
    Tensor bias = expert_bias_ ? expert_bias_->value : Tensor{};
    if (bias) bias = ops::cast(ctx, bias, logits.dtype());
    if (quantiles_)
      return choose_experts(ctx, logits, choice_, {},
                            with_replayed(ctx, choose_below_quantiles(ctx, logits, bias, choice_.k),
                                          replayed(ctx, seq, share)));
    return choose_experts(ctx, logits, choice_, bias, replayed(ctx, seq, share),
                          seq.elastic ? seq.elastic->experts : Tensor{});
  }
  Tensor plan = seq.training ? sinkhorn(ctx, logits, share) : logits.detach();
  Routing routing{
      .experts = with_replayed(ctx, ops::top_k(ctx, plan, choice_.k).indices, replayed(ctx, seq, share)),
      .probs = {}};
  Tensor scores = choice_.k == 1 ? ops::activation(ctx, Unary::Sigmoid, logits) : ops::softmax(ctx, logits);
  routing.probs = ops::gather_columns(ctx, scores, routing.experts);
  return routing;
}

// Sums into load_ how many tokens each expert was chosen by.
void Router::count(RankContext& ctx, const Tensor& experts) {
  Tensor map = routing_map(ctx, experts, experts_, DType::F64);
  bool first = !load_;
  if (first) load_ = ctx.empty({1, experts_}, DType::F64, MemoryTag::Parameter);
  ctx.kernels->reduce(ctx.kernel_context(), {.kind = Reduction::Sum,
                                             .x = map,
                                             .out = load_,
                                             .outer = 1,
                                             .n = map.size(0),
                                             .inner = experts_,
                                             .accumulate = !first});
}

void Router::log_loss(RankContext& ctx, const std::string& kind, const Tensor& loss) {
  const auto found = std::find_if(logged_.begin(), logged_.end(),
                                  [&](const AuxLossSum& logged) { return logged.kind == kind; });
  Tensor value = ctx.empty({1}, DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {loss.detach().view({1}), value});
  if (found == logged_.end())
    logged_.push_back({kind, layer_, value});
  else
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, found->sum, value, found->sum});
}

Tensor Router::losses(RankContext& ctx, const Tensor& logits, const Routing& routing,
                      const MicrobatchShare& share) {
  Tensor total;
  if (z_coefficient_ != 0) {
    total = z_loss(ctx, logits, z_coefficient_, share.all_tokens());
    log_loss(ctx, "z_loss", total);
  }
  if (balance_.empty()) return total;
  Tensor scores = aux_loss_scores(ctx, logits, choice_.score);
  // What would be chosen by the scores alone.
  Tensor experts = choice_.groups > 0 || expert_bias_ ? ops::top_k(ctx, scores.detach(), choice_.k).indices
                                                      : routing.experts;
  Tensor map = routing_map(ctx, experts, experts_, scores.dtype());
  for (const Balance& balance : balance_) {
    AuxLossUnits units{ctx.full({share.rows}, DType::I64, 0), 1, share.all_tokens()};
    double coefficient = balance.coefficient;
    Tensor load;
    if (balance.kind == "global_aux_loss") {
      // The load so far in this step, of all replicas, per micro-batch.
      int64_t replicas = batch_group_.size() / share.group.size();
      units.tokens *= replicas;
      coefficient *= static_cast<double>(replicas);
      Tensor now = expert_load(ctx, map, units, batch_group_);
      if (global_load_)
        ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, global_load_, now, global_load_});
      else
        global_load_ = now;
      load = ops::scale(ctx, global_load_, 1.0 / static_cast<double>(++global_microbatches_));
    } else {
      if (balance.kind == "seq_aux_loss") {
        units.count = share.sequences;
        units.tokens /= share.sequences;
        for (int64_t row = 0; row < share.rows;) {  // the run of a sequence
          int64_t sequence = (share.begin + row) / share.per_sequence();
          int64_t end = std::min(share.rows, (sequence + 1) * share.per_sequence() - share.begin);
          ctx.kernels->fill(ctx.kernel_context(),
                            {units.ids.slice(0, row, end), static_cast<double>(sequence)});
          row = end;
        }
      }
      load = expert_load(ctx, map, units, share.group);
    }
    Tensor loss = load_balancing_loss(ctx, scores, load, units, coefficient, choice_.k);
    log_loss(ctx, balance.kind, loss);
    total = sum_of(ctx, total, loss);
  }
  return total;
}

Router::Result Router::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                               const MicrobatchShare& share) {
  Tensor scores = logits(ctx, noisy(ctx, x, seq, share));
  ctx.show(weight_.name, "input0", x);
  ctx.show(weight_.name, "output0", scores);
  if (random_) scores = random_logits(ctx, scores, seq, share);
  Result result{.routing = route(ctx, scores, seq, share), .loss = {}};
  if (seq.routing_record && replay_layer_ >= 0)
    seq.routing_record->put(ctx, replay_layer_, share.begin, result.routing.experts);
  if (ctx.probe) {
    ctx.show(weight_.name, "experts", result.routing.experts);
    ctx.show(weight_.name, "weight", weight_.value);
    if (expert_bias_) ctx.show(weight_.name, "expert_bias", expert_bias_->value);
  }
  // Where a layer is computed twice, only the pass that is recorded counts.
  if (seq.training && ctx.tape) {
    result.loss = losses(ctx, scores, result.routing, share);
    if (quantiles_)
      add_quantiles(ctx, scores, share);
    else if (expert_bias_)
      count(ctx, result.routing.experts);
  }
  if (capacity_) {
    Tensor positions = seq.positions.slice(0, share.begin, share.begin + share.rows);
    Tensor token_index =
        seq.token_index ? seq.token_index.slice(0, share.begin, share.begin + share.rows) : Tensor();
    result.routing.experts =
        within_capacity(ctx, result.routing, experts_, *capacity_, share, positions, token_index);
  }
  return result;
}

void Router::add_quantiles(RankContext& ctx, const Tensor& logits, const MicrobatchShare& share) {
  const auto kernels = ctx.kernel_context();
  if (!quantile_sum_) quantile_sum_ = ctx.zeros({experts_ + 1}, DType::F64, MemoryTag::Parameter);
  const Tensor beta = ops::cast(ctx, expert_bias_->value, logits.dtype());
  const Tensor sum = quantile_sum_.slice(0, 0, experts_),
               batches = quantile_sum_.slice(0, experts_, experts_ + 1);
  ctx.kernels->axpby(kernels,
                     {.a = expert_quantiles(ctx, logits, beta, choice_.k, share), .b = sum, .out = sum});
  const Tensor one = ctx.full({1}, DType::F64, 1);
  ctx.kernels->binary(kernels, {Binary::Add, batches, one, batches});
}

// The mean over all micro-batches of all replicas, mixed with what there was, about zero.
void Router::finish_quantiles(RankContext& ctx) {
  if (!quantile_sum_) return;
  const auto kernels = ctx.kernel_context();
  const Tensor& beta = expert_bias_->value;
  if (!bias_update_) bias_update_ = ctx.zeros({experts_}, beta.dtype());
  batch_group_.all_reduce(quantile_sum_).wait();  // ranks that share a micro-batch count it alike
  Tensor fresh = ctx.empty({experts_}, DType::F64), mean = ctx.empty({1}, DType::F64);
  const Tensor batches = quantile_sum_.slice(0, experts_, experts_ + 1);
  ctx.kernels->binary(kernels,
                      {Binary::Div, quantile_sum_.slice(0, 0, experts_), batches.expand({experts_}), fresh});
  ctx.kernels->axpby(
      kernels,
      {.alpha = 1 - quantile_memory_, .a = fresh, .beta = quantile_memory_, .b = beta, .out = fresh});
  ctx.kernels->reduce(kernels, {.kind = Reduction::Mean, .x = fresh, .out = mean, .outer = 1, .n = experts_});
  ctx.kernels->binary(kernels, {Binary::Sub, fresh, mean.expand({experts_}), fresh});
  ctx.kernels->axpby(kernels, {.a = fresh, .beta = -1, .b = beta, .out = bias_update_});
  ctx.kernels->fill(kernels, {quantile_sum_, 0});
}

void Router::finish_batch(RankContext& ctx) {
  global_load_ = {};
  global_microbatches_ = 0;
  if (quantiles_) return finish_quantiles(ctx);
  if (bias_update_) ctx.kernels->fill(ctx.kernel_context(), {bias_update_, 0});
  if (!expert_bias_ || !load_) return;
  if (!bias_update_) bias_update_ = ctx.zeros({experts_}, expert_bias_->value.dtype());
  batch_group_.all_reduce(load_).wait();
  Tensor load = std::exchange(load_, {}).view({experts_});
  auto kernels = ctx.kernel_context();
  Tensor mean = ctx.empty({1}, DType::F64);
  ctx.kernels->reduce(kernels, {.kind = Reduction::Mean, .x = load, .out = mean, .outer = 1, .n = experts_});
  mean = mean.expand(load.shape());
  Tensor few = ctx.empty(load.shape(), DType::Bool), many = ctx.empty(load.shape(), DType::Bool);
  ctx.kernels->compare(kernels, {Comparison::Less, load, mean, few});
  ctx.kernels->compare(kernels, {Comparison::Less, mean, load, many});
  for (auto [mask, step] : {std::pair{few, bias_rate_}, std::pair{many, -bias_rate_}}) {
    Tensor moved = ctx.empty(load.shape(), bias_update_.dtype());
    ctx.kernels->copy(kernels, {mask, moved});
    ctx.kernels->axpby(kernels,
                       {.alpha = step, .a = moved, .beta = 1, .b = bias_update_, .out = bias_update_});
  }
}

void Router::update_bias(RankContext& ctx, const Tensor& gate) {
  if (!bias_update_) return;
  auto kernels = ctx.kernel_context();
  const Tensor& bias = expert_bias_->value;
  const Tensor fresh = ctx.empty(bias.shape(), bias.dtype());
  ctx.kernels->binary(kernels, {Binary::Add, bias, bias_update_, fresh});
  // Chosen, not multiplied: the update of a step that is skipped may be NaN.
  ctx.kernels->where(kernels, {gate.expand(bias.shape()), fresh, bias, bias});
}

void Router::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  if (bias_) visitor(*bias_);
  if (expert_bias_) visitor(*expert_bias_);
}

}  // namespace megatron
