#include "megatron/training/step/qk_clip.h"

namespace megatron {
namespace {

// Factors of a layer lie in one list: 1, then those of queries, of keys and of lone queries, by group.
int64_t factor_of(const ClippedRow& row, int64_t groups) {
  if (row.part == QkPart::none) return 0;
  return 1 + (static_cast<int64_t>(row.part) - 1) * groups + row.group;
}

// Of this rank's rows.
std::vector<int64_t> factors_of_rows(const QkClipTarget::ClippedWeight& clipped, int64_t groups) {
  const ShardSpec& shard = clipped.weight->shard;
  std::vector<int64_t> rows(static_cast<size_t>(shard.local_shape[0]), 0);
  for (const ShardBlock& block : shard.blocks)
    for (int64_t i = 0; i < block.extent[0]; ++i)
      rows[static_cast<size_t>(block.local_offset[0] + i)] =
          factor_of(clipped.row(block.global_offset[0] + i), groups);
  return rows;
}

}  // namespace

QkClip::QkClip(RankContext& ctx, const ModelConfig& config, std::vector<QkClipTarget*> targets,
               const ParallelContext& parallel)
    : alpha_(config.qk_clip_alpha), threshold_(config.qk_clip_threshold), parallel_(parallel) {
  for (QkClipTarget* target : targets) {
    Clipped layer{target, {}};
    for (const QkClipTarget::ClippedWeight& clipped : target->weights)
      layer.rows.push_back(
          ctx.from_vector(factors_of_rows(clipped, target->groups), {clipped.weight->shard.local_shape[0]}));
    layers_.push_back(std::move(layer));
  }
}

// [layers, heads], of all ranks that have a part of these layers. The lengths of rows differ where layers do.
Tensor QkClip::largest(RankContext& ctx) {
  int64_t heads = 0;
  for (const Clipped& layer : layers_) heads = std::max(heads, layer.target->heads);
  const DType dtype = layers_[0].target->max_scores.dtype();
  Tensor all = ctx.zeros({std::ssize(layers_), heads}, dtype);
  for (size_t i = 0; i < layers_.size(); ++i) {
    QkClipTarget& target = *layers_[i].target;
    const Tensor row = all.select(0, static_cast<int64_t>(i));
    ctx.kernels->copy(
        ctx.kernel_context(),
        {target.max_scores, row.slice(0, target.first_head, target.first_head + target.own_heads)});
    ctx.kernels->fill(ctx.kernel_context(), {target.max_scores, 0});
  }
  for (const Axis axis : {Axis::tp, Axis::dp_cp})
    if (const ProcessGroup& group = parallel_.group(axis); group.size() > 1)
      group.all_reduce(all, ReduceOp::Max).wait();
  return all;
}

// As factor_of() counts them, [·, 1], from a layer's [groups, heads of one].
Tensor QkClip::factors(RankContext& ctx, const Tensor& largest, const Tensor& gate) const {
  const auto kernels = ctx.kernel_context();
  const int64_t groups = largest.size(0);
  const DType dtype = largest.dtype();
  const Tensor score = ctx.empty({groups}, dtype), threshold = ctx.full({groups}, dtype, threshold_),
               list = ctx.full({1 + 3 * groups}, dtype, 1);
  ctx.kernels->reduce(
      kernels, {.kind = Reduction::Max, .x = largest, .out = score, .outer = groups, .n = largest.size(1)});
  // log η = 0 where nothing is too large, or the gate is closed, behind which scores may be infinite.
  ctx.kernels->binary(kernels, {Binary::Max, score, threshold, score});
  ctx.kernels->where(kernels, {gate.expand(score.shape()), score, threshold, score});
  ctx.kernels->binary(kernels, {Binary::Div, threshold, score, score});
  ctx.kernels->unary(kernels, {Unary::Log, score, {}, score});
  const double powers[] = {alpha_, 1 - alpha_, 1};
  for (int64_t part = 0; part < 3; ++part) {
    const Tensor own = list.slice(0, 1 + part * groups, 1 + (part + 1) * groups);
    ctx.kernels->axpby(kernels, {.alpha = powers[part], .a = score, .out = own});
    ctx.kernels->unary(kernels, {Unary::Exp, own, {}, own});
  }
  return list.view({1 + 3 * groups, 1});
}

void QkClip::clip(RankContext& ctx, Optimizer& optimizer, const Tensor& gate) {
  if (layers_.empty() || !layers_[0].target->max_scores) return;
  const Tensor all = largest(ctx);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const QkClipTarget& target = *layers_[i].target;
    const Tensor row = all.select(0, static_cast<int64_t>(i)).slice(0, 0, target.heads);
    const Tensor list = factors(ctx, row.view({target.groups, target.heads / target.groups}), gate);
    for (size_t w = 0; w < target.weights.size(); ++w) {
      const Tensor of_rows = ctx.empty({layers_[i].rows[w].size(0), 1}, list.dtype());
      ctx.kernels->gather_rows(ctx.kernel_context(), {list, layers_[i].rows[w], of_rows});
      optimizer.multiply(ctx, *target.weights[w].weight, of_rows);
    }
  }
}

}  // namespace megatron
