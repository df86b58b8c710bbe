#include "megatron/transformer/sparse_indexer.h"

#include <cmath>
#include <limits>

#include "megatron/nn/causal_mask.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/index.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/softmax.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/moe/topk_routing.h"

namespace megatron {
namespace {

constexpr double kHidden = -1e30;  // added to the score of a key that is not attended to
constexpr double kTiny = 1e-10;    // keeps the logarithm of a probability of 0 finite

Parameter matrix(const std::string& name, int64_t rows, int64_t columns, const ModelConfig& config) {
  return Parameter(name + ".weight", ShardSpec::whole({rows, columns}), input_initializer(config));
}

// The norm of keys is a LayerNorm, whatever the model's are.
ModelConfig key_norm(ModelConfig config) {
  config.normalization = Normalization::layer_norm;
  config.layernorm_zero_centered_gamma = false;
  config.layernorm_epsilon = config.dsa_indexer_k_norm_epsilon.value_or(config.layernorm_epsilon);
  return config;
}

Tensor minus_infinity(RankContext& ctx, DType dtype) {
  return ctx.full({1}, dtype, -std::numeric_limits<double>::infinity());
}

}  // namespace

SparseIndexer::SparseIndexer(const std::string& name, int64_t layer, const ModelConfig& config,
                             const ModelParallel& parallel)
    : layer_(layer),
      heads_(config.dsa_indexer_n_heads),
      width_(config.dsa_indexer_head_dim),
      topk_(config.dsa_indexer_topk),
      coefficient_(config.dsa_indexer_loss_coeff),
      chosen_alone_(config.dsa_indexer_use_sparse_loss),
      interleaved_(config.dsa_indexer_rope_interleaved),
      relu_(config.dsa_indexer_scoring_relu),
      tp_(parallel.tensor),
      query_(matrix(name + ".linear_wq_b", heads_ * width_, *config.q_lora_rank, config)),
      key_(matrix(name + ".linear_wk", width_, config.hidden_size, config)),
      weights_(matrix(name + ".linear_weights_proj", heads_, config.hidden_size, config)),
      key_norm_(name + ".k_norm", width_, key_norm(config), TensorParallel()) {}

Tensor SparseIndexer::scores_of(RankContext& ctx, const Tensor& x, const Tensor& queries,
                                const SeqInfo& seq) {
  const auto all = [&](const Tensor& part) {
    return without_padding(ctx, enter_tensor_parallel(ctx, part.detach(), tp_), seq, tp_);
  };
  const Tensor hidden = all(x), latent = all(queries);
  const int64_t tokens = hidden.size(0), batch = seq.batch, length = tokens / batch;
  const ops::Rotation rotation{seq.rope_cos, seq.rope_sin, interleaved_};
  const Tensor q = ops::rope(
      ctx, ops::view(ctx, ops::linear(ctx, latent, query_.get(ctx)), {tokens, heads_, width_}), rotation);
  const Tensor k = ops::rope(
      ctx,
      ops::view(ctx, key_norm_.forward(ctx, ops::linear(ctx, hidden, key_.get(ctx))), {tokens, 1, width_}),
      rotation);
  const DType dtype = accumulation_dtype(hidden.dtype());
  Tensor products = ops::matmul(ctx, ops::view(ctx, q, {batch, length * heads_, width_}),
                                ops::view(ctx, k, {batch, length, width_}), {.transpose_b = true});
  if (relu_) products = ops::activation(ctx, Unary::Relu, products);
  const Tensor weights = ops::scale(ctx, ops::linear(ctx, hidden, weights_.get(ctx)),
                                    1 / std::sqrt(static_cast<double>(heads_) * static_cast<double>(width_)));
  const Tensor sums = ops::matmul(ctx, ops::view(ctx, ops::cast(ctx, weights, dtype), {tokens, 1, heads_}),
                                  ops::view(ctx, ops::cast(ctx, products, dtype), {tokens, heads_, length}));
  return ops::view(ctx, sums, {batch, length, length});
}

SparseIndexer::Result SparseIndexer::forward(RankContext& ctx, const Tensor& x, const Tensor& queries,
                                             const SeqInfo& seq) {
  require(
      !seq.cu_seqlens && !seq.cache && !seq.token_index,
      "sparse attention: it reads whole sequences, one in a row; leave packing and context parallelism out");
  Result result;
  result.scores = scores_of(ctx, x, queries, seq);
  const int64_t batch = result.scores.size(0), length = result.scores.size(1);
  const DType dtype = result.scores.dtype();
  const Tensor seen =
      ops::where(ctx, causal_mask(ctx, length), result.scores.detach(), minus_infinity(ctx, dtype));
  const Tensor best = ops::top_k(ctx, seen.view({batch * length, length}), std::min(topk_, length)).indices;
  const Tensor map = routing_map(ctx, best, length, x.dtype()).view({batch, length, length});
  result.chosen = ops::compare(ctx, Comparison::Less, ctx.zeros({1}, x.dtype()), map);
  result.bias = ops::where(ctx, result.chosen, ctx.zeros({1}, x.dtype()), ctx.full({1}, x.dtype(), kHidden))
                    .view({batch, 1, length, length});
  return result;
}

Tensor SparseIndexer::loss(RankContext& ctx, const Result& result, const Tensor& queries, const Tensor& keys,
                           double scale, const SeqInfo& seq) {
  if (!seq.training || !ctx.tape || coefficient_ == 0) return {};
  const int64_t batch = result.scores.size(0), length = result.scores.size(1), heads = queries.size(1);
  const DType dtype = result.scores.dtype();
  const Tensor seen = causal_mask(ctx, length);
  const auto masked = [&](const Tensor& scores) {  // [n, length, length], n a multiple of batch
    Tensor shown = ops::where(ctx, seen, scores, minus_infinity(ctx, dtype));
    if (!chosen_alone_) return shown;
    const int64_t each = scores.size(0) / batch;
    shown = ops::view(ctx, shown, {batch, each, length, length});
    shown =
        ops::where(ctx, result.chosen.view({batch, 1, length, length}), shown, minus_infinity(ctx, dtype));
    return ops::view(ctx, shown, {batch * each, length, length});
  };
  // What attention looks at: of all heads, of which each rank has some.
  const auto by_head = [&](const Tensor& x) {
    const Tensor parted = x.detach().view({batch, length, heads, x.size(2)}).transpose(1, 2);
    return ops::cast(ctx, ops::contiguous(ctx, parted), dtype).view({batch * heads, length, x.size(2)});
  };
  const Tensor looks = ops::softmax(
      ctx, masked(ops::matmul(ctx, by_head(queries), by_head(keys), {.transpose_b = true, .alpha = scale})));
  Tensor target = ops::sum(ctx, looks.view({batch, heads, length, length}), 1);
  tp_.group.all_reduce(target).wait();
  target = ops::scale(ctx, target, 1 / static_cast<double>(heads * tp_.size()));

  const Tensor tiny = ctx.full({1}, dtype, kTiny);
  const auto logarithm = [&](const Tensor& p) {
    return ops::activation(ctx, Unary::Log, ops::add(ctx, p, tiny));
  };
  const Tensor guess = ops::softmax(ctx, masked(result.scores));
  const Tensor apart = ops::mul(ctx, target, ops::sub(ctx, logarithm(target), logarithm(guess)));
  const Tensor loss =
      ops::scale(ctx, ops::sum(ctx, apart), coefficient_ / static_cast<double>(batch * length));
  // Each rank of a TP group has all of the loss, and tells its part.
  Tensor value = ctx.empty({1}, DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {loss.detach().view({1}), value});
  value = ops::scale(ctx, value, 1 / static_cast<double>(tp_.size()));
  if (logged_)
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, logged_, value, logged_});
  else
    logged_ = value;
  return loss;
}

std::vector<AuxLossSum> SparseIndexer::take_losses() {
  if (!logged_) return {};
  return {{"indexer_loss", layer_, std::exchange(logged_, {})}};
}

void SparseIndexer::visit(const ParameterVisitor& visitor) {
  visitor(query_);
  visitor(key_);
  key_norm_.visit(visitor);
  visitor(weights_);
}

}  // namespace megatron
