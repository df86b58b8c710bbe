#include <cmath>

#include "megatron/optimizer/muon.h"
#include "megatron/optimizer/muon_matrix.h"

namespace megatron {

// v ← β₂v + (1 − β₂)·u² of each element; u / (√v + ε).
Tensor Muon::by_elements(RankContext& ctx, size_t i, const Tensor& direction, const Tensor& gate) {
  const auto kernels = ctx.kernel_context();
  const auto [method, beta2, epsilon] = *options_.second;
  Tensor moment = ctx.empty(direction.shape(), direction.dtype(), MemoryTag::Workspace),
         result = ctx.empty(direction.shape(), direction.dtype(), MemoryTag::Workspace);
  ctx.kernels->binary(kernels, {Binary::Mul, direction, direction, moment});
  ctx.kernels->axpby(kernels,
                     {.alpha = 1 - beta2, .a = moment, .beta = beta2, .b = moments_[i], .out = moment});
  store(ctx, moment, moments_[i], gate);
  ctx.kernels->unary(kernels, {.kind = Unary::Sqrt, .x = moment, .y = moment});
  const Tensor little = ctx.full({1}, direction.dtype(), epsilon, MemoryTag::Workspace);
  ctx.kernels->binary(kernels, {Binary::Add, moment, little.expand(moment.shape()), moment});
  ctx.kernels->binary(kernels, {Binary::Div, direction, moment, result});
  return result;
}

// v ← β₂v + (1 − β₂)·mean(u²) of each row, or of each column where a matrix has more columns than rows; u /
// √v, with the norm of u. Means and norms are those of whole matrices, whichever ranks have parts of them.
Tensor Muon::by_rows(RankContext& ctx, size_t i, const Tensor& direction, const Tensor& gate) {
  const auto kernels = ctx.kernel_context();
  const auto [method, beta2, epsilon] = *options_.second;
  const ParameterSlice& slice = slices_[i];
  const Parameter& parameter = *slice.parameter;
  const Shape &global = parameter.shard.global_shape, &local = parameter.shard.local_shape;
  const int rank = local.rank();
  const int64_t count = rank == 3 ? local[0] : 1, rows = local[rank - 2], columns = local[rank - 1];
  const Shape whole = {count, rows, columns};
  const auto& [tensor, shard] = parameter.expert ? options_.expert : options_.dense;
  const int split =
      tensor.size() > 1 && options_.tp_mode != MuonTpMode::blockwise ? split_dimension(parameter) : -1;
  const bool by_row = global[rank - 2] >= global[rank - 1];
  const auto empty = [&](const Shape& shape) {
    return ctx.empty(shape, direction.dtype(), MemoryTag::Workspace);
  };
  const auto cut = [&](const Tensor& matrices) {
    return matrices.view({matrices.numel()}).slice(0, slice.begin, slice.begin + direction.numel());
  };

  const Tensor u = own_matrix(ctx, slice, shard, direction).view(whole), squares = empty(whole);
  ctx.kernels->binary(kernels, {Binary::Mul, u, u, squares});
  const Tensor ones = ctx.full(by_row ? Shape{count, columns, 1} : Shape{count, 1, rows}, direction.dtype(),
                               1, MemoryTag::Workspace);
  const Tensor means = empty(by_row ? Shape{count, rows, 1} : Shape{count, 1, columns});
  ctx.kernels->gemm(kernels, {.a = by_row ? squares : ones, .b = by_row ? ones : squares, .c = means});
  if (split == (by_row ? 1 : 0)) tensor.all_reduce(means).wait();
  const auto terms = static_cast<double>(split >= 0 ? global[by_row ? rank - 1 : rank - 2]
                                         : by_row   ? columns
                                                    : rows);
  ctx.kernels->axpby(kernels, {.alpha = 1 / terms, .a = means, .out = means});
  ctx.kernels->copy(kernels, {means.expand(whole), squares});

  Tensor moment = empty(direction.shape());
  ctx.kernels->copy(kernels, {cut(squares).view(direction.shape()), moment});
  ctx.kernels->axpby(kernels,
                     {.alpha = 1 - beta2, .a = moment, .beta = beta2, .b = moments_[i], .out = moment});
  store(ctx, moment, moments_[i], gate);

  const Tensor roots = empty(whole), update = empty(whole);
  ctx.kernels->copy(kernels, {own_matrix(ctx, slice, shard, moment).view(whole), roots});
  const Tensor little = ctx.full({1}, direction.dtype(), epsilon, MemoryTag::Workspace);
  ctx.kernels->binary(kernels, {Binary::Max, roots, little.expand(whole), roots});
  ctx.kernels->unary(kernels, {.kind = Unary::Sqrt, .x = roots, .y = roots});
  ctx.kernels->binary(kernels, {Binary::Div, u, roots, update});
  const Tensor before = matrix_norms(ctx, u, split >= 0 ? &tensor : nullptr),
               after = matrix_norms(ctx, update, split >= 0 ? &tensor : nullptr);
  const Tensor least = ctx.full({count}, DType::F64, epsilon);
  ctx.kernels->binary(kernels, {Binary::Max, after, least, after});
  ctx.kernels->binary(kernels, {Binary::Div, before, after, before});
  const Tensor ratio = empty({count, 1, 1});
  ctx.kernels->copy(kernels, {before.view({count, 1, 1}), ratio});
  ctx.kernels->binary(kernels, {Binary::Mul, update, ratio.expand(whole), update});
  return cut(update).view(direction.shape());
}

Tensor Muon::adapted(RankContext& ctx, size_t i, const Tensor& direction, const Tensor& gate) {
  Tensor update = options_.second->method == SecondMoment::adamuon ? by_elements(ctx, i, direction, gate)
                                                                   : by_rows(ctx, i, direction, gate);
  const Shape& global = slices_[i].parameter->shard.global_shape;
  const double scale =
      options_.extra_scale * muon_scale(options_.scale, global[global.rank() - 2], global[global.rank() - 1]);
  ctx.kernels->axpby(ctx.kernel_context(), {.alpha = scale, .a = update, .out = update});
  return update;
}

}  // namespace megatron
