#include "megatron/transformer/hidden_state_mixing.h"

#include "megatron/ops/elementwise.h"
#include "megatron/ops/index.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

constexpr int kMixingSite = 9;  // of the layer's random numbers

// Numbers in [0, 1), one a token of this rank's tensor-parallel group, [rows, 1].
Tensor draws(RankContext& ctx, const SeqInfo& seq, int64_t layer, int64_t rows) {
  const int64_t drawn = seq.token_index ? seq.batch * seq.row_length : rows;
  RandomArgs args{.kind = Distribution::Uniform,
                  .out = ctx.empty({drawn, 1}, DType::F64),
                  .key = dropout_key(seq, layer, kMixingSite),
                  .base = seq.batch_begin * seq.row_length,
                  .global_strides = {1, 1}};
  ctx.kernels->random(ctx.kernel_context(), args);
  return seq.token_index ? ops::gather_rows(ctx, args.out, rows_from(ctx, seq.token_index, 0, rows))
                         : args.out;
}

// Rows from `shift` on, and as many of `rest` behind them: those are not read.
Tensor moved(RankContext& ctx, const Tensor& x, int64_t shift, const Tensor& rest) {
  const Tensor parts[] = {ops::slice(ctx, x, 0, shift, x.size(0)), ops::slice(ctx, rest, 0, 0, shift)};
  return ops::concat(ctx, parts, 0);
}

}  // namespace

Tensor mix_hidden_states(RankContext& ctx, std::span<const Tensor> states, const SeqInfo& seq, int64_t layer,
                         const TensorParallel& tp) {
  const Tensor& newest = states.back();
  const auto older = static_cast<int64_t>(states.size()) - 1;
  const int64_t own = newest.size(0), rows = tp.splits_tokens() ? own * tp.size() : own;
  const int64_t begin = tp.splits_tokens() ? own * tp.rank() : 0;
  KernelContext kernels = ctx.kernel_context();
  const auto filled = [&](double value) { return ctx.full({rows, 1}, DType::F64, value); };
  const auto compare = [&](Comparison kind, const Tensor& a, const Tensor& b) {
    const Tensor result = ctx.empty({rows, 1}, DType::Bool);
    ctx.kernels->compare(kernels, {kind, a, b, result});
    return result;
  };
  const Tensor drawn = draws(ctx, seq, layer, rows), zero = filled(0), left = filled(1);
  const Tensor positions = ctx.empty({rows, 1}, DType::F64);
  ctx.kernels->copy(kernels, {rows_from(ctx, seq.positions, 0, rows).view({rows, 1}), positions});

  Tensor mixed;
  const auto add = [&](const Tensor& state, const Tensor& share) {
    const Tensor part = ctx.empty({own, 1}, newest.dtype());
    ctx.kernels->copy(kernels, {share.slice(0, begin, begin + own), part});
    const Tensor term = ops::mul(ctx, state, part);
    mixed = mixed ? ops::add(ctx, mixed, term) : term;
  };
  for (int64_t i = 0; i < older; ++i) {
    const int64_t shift = std::min(older - i, rows);  // by how many tokens the newest is ahead of it
    const auto bound = [&](int64_t n) {
      return filled(static_cast<double>(n) / static_cast<double>(older + 1));
    };
    const Tensor ahead = ctx.full({rows, 1}, DType::F64, -1), expected = ctx.empty({rows, 1}, DType::F64);
    ctx.kernels->copy(kernels, {positions.slice(0, shift, rows), ahead.slice(0, 0, rows - shift)});
    ctx.kernels->binary(kernels, {Binary::Add, positions, filled(static_cast<double>(shift)), expected});
    const Tensor share = filled(1);
    for (const Tensor& condition :
         {compare(Comparison::LessEqual, bound(i), drawn), compare(Comparison::Less, drawn, bound(i + 1)),
          compare(Comparison::Equal, ahead, expected)})
      ctx.kernels->where(kernels, {condition, share, zero, share});
    ctx.kernels->binary(kernels, {Binary::Sub, left, share, left});
    const Tensor& state = states[static_cast<size_t>(i)];
    if (tp.splits_tokens()) {  // the tokens ahead may be another rank's
      const Tensor all = enter_tensor_parallel(ctx, state, tp);
      add(ops::slice(ctx, moved(ctx, all, shift, all), 0, begin, begin + own), share);
    } else {
      add(moved(ctx, state, shift, newest), share);
    }
  }
  add(newest, left);
  return mixed;
}

}  // namespace megatron
