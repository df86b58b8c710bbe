#include "megatron/parallel/tensor/vocab_cross_entropy.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/kl_divergence.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/reduce.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

// Makes each rank's statistics those of the whole vocabulary.
void reduce_over_group(RankContext& ctx, ops::CrossEntropyStats& stats, const ProcessGroup& group) {
  auto kernels = ctx.kernel_context();
  Tensor shift = ctx.empty_like(stats.maximum);
  ctx.kernels->copy(kernels, {stats.maximum, shift});
  group.all_reduce(stats.maximum, ReduceOp::Max).wait();
  ctx.kernels->binary(kernels, {Binary::Sub, shift, stats.maximum, shift});
  ctx.kernels->unary(kernels, {.kind = Unary::Exp, .x = shift, .y = shift});
  ctx.kernels->binary(kernels, {Binary::Mul, stats.sum_exp, shift, stats.sum_exp});
  group.all_reduce(stats.sum_exp).wait();
  group.all_reduce(stats.target).wait();
  if (stats.sum_logits) group.all_reduce(stats.sum_logits).wait();
}

// `columns`: of the vocabulary, on this rank.
ops::CrossEntropyOptions loss_options(int64_t columns, const TensorParallel& tp,
                                      const VocabLossOptions& options) {
  ops::CrossEntropyOptions loss;
  loss.ignore_index = options.ignore_index;
  loss.smoothing = options.label_smoothing;
  loss.z_loss = options.z_loss;
  loss.vocab_size = options.vocab_size;
  loss.vocab_begin = columns * tp.rank();
  if (options.rows) {
    loss.vocab_begin = options.rows->begin(columns);
    loss.ignore_index = options.rows->ignored(options.ignore_index);
  }
  if (tp.size() > 1)
    loss.reduce = [group = tp.group](RankContext& ctx, ops::CrossEntropyStats& stats) {
      reduce_over_group(ctx, stats, group);
    };
  return loss;
}

// Whether more than the GEMM makes the logits, so that they must exist whole.
bool needs_logits(const VocabLossOptions& options) {
  return options.logit_softcap > 0 || options.bias.defined() || options.fp8;
}

Tensor own_labels(RankContext& ctx, const Tensor& labels, const VocabLossOptions& options) {
  return options.rows ? options.rows->renamed(ctx, labels) : labels;
}

// Every token's states; with sequence parallelism they may come with padding.
Tensor all_tokens(RankContext& ctx, const Tensor& hidden, const Tensor& labels, const TensorParallel& tp) {
  return with_rows(ctx, enter_tensor_parallel(ctx, hidden, tp), labels.size(0));
}

}  // namespace

Tensor vocab_parallel_logits(RankContext& ctx, const Tensor& hidden, const Weight& weight,
                             const TensorParallel& tp, const VocabLossOptions& options) {
  const Tensor input = enter_tensor_parallel(ctx, hidden, tp);
  const Tensor logits = ops::call_linear(ctx, input, weight, {.bias = options.bias, .fp8 = options.fp8}).y;
  return options.logit_softcap > 0 ? softcap(ctx, logits, options.logit_softcap) : logits;
}

Tensor vocab_parallel_cross_entropy(RankContext& ctx, const Tensor& logits, const Tensor& labels,
                                    const TensorParallel& tp, const VocabLossOptions& options) {
  return ops::cross_entropy(ctx, with_rows(ctx, logits, labels.size(0)), own_labels(ctx, labels, options),
                            loss_options(logits.size(1), tp, options));
}

ops::KlDivergenceOptions vocab_columns(int64_t columns, const TensorParallel& tp,
                                       const VocabLossOptions& options) {
  const ops::CrossEntropyOptions loss = loss_options(columns, tp, options);
  ops::KlDivergenceOptions result{
      .vocab_size = loss.vocab_size, .vocab_begin = loss.vocab_begin, .reduce = loss.reduce, .sum = {}};
  if (tp.size() > 1)
    result.sum = [group = tp.group](RankContext&, const Tensor& sums) { group.all_reduce(sums).wait(); };
  return result;
}

Tensor vocab_parallel_kl_divergence(RankContext& ctx, const Tensor& logits, Tensor teacher,
                                    const Tensor& labels, double temperature, const TensorParallel& tp,
                                    const VocabLossOptions& options) {
  ops::KlDivergenceOptions divergence = vocab_columns(logits.size(1), tp, options);
  divergence.temperature = temperature;
  const Tensor losses = ops::kl_divergence(ctx, logits, std::move(teacher), divergence);
  const Tensor ignored = ctx.full({1}, DType::I64, static_cast<double>(options.ignore_index));
  return ops::where(ctx, ops::compare(ctx, Comparison::Equal, labels, ignored),
                    ctx.zeros({1}, losses.dtype()), losses);
}

Tensor vocab_parallel_loss(RankContext& ctx, const Tensor& hidden, const Weight& weight, const Tensor& labels,
                           const TensorParallel& tp, const VocabLossOptions& options) {
  if (needs_logits(options))
    return vocab_parallel_cross_entropy(ctx, vocab_parallel_logits(ctx, hidden, weight, tp, options), labels,
                                        tp, options);
  return ops::linear_cross_entropy(ctx, all_tokens(ctx, hidden, labels, tp), weight,
                                   own_labels(ctx, labels, options),
                                   loss_options(weight.value.size(0), tp, options));
}

Tensor vocab_parallel_loss_sum(RankContext& ctx, const Tensor& hidden, const Weight& weight,
                               const Tensor& labels, const Tensor& weights, const TensorParallel& tp,
                               const VocabLossOptions& options) {
  if (needs_logits(options) || options.wide_logits)  // linear_cross_entropy() makes its logits in fp32
    return ops::weighted_sum(ctx, vocab_parallel_loss(ctx, hidden, weight, labels, tp, options), weights);
  return ops::linear_cross_entropy_sum(ctx, all_tokens(ctx, hidden, labels, tp), weight,
                                       own_labels(ctx, labels, options), weights,
                                       loss_options(weight.value.size(0), tp, options));
}

Tensor softcap(RankContext& ctx, const Tensor& logits, double cap) {
  return ops::scale(ctx, ops::activation(ctx, Unary::Tanh, ops::scale(ctx, logits, 1 / cap)), cap);
}

}  // namespace megatron
