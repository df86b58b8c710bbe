#include "megatron/optimizer/muon.h"

#include <numeric>

#include "megatron/optimizer/muon_matrix.h"

namespace megatron {
Muon::Muon(RankContext& ctx, std::vector<ParameterSlice> slices, const MuonOptions& options)
    : Optimizer(ctx, std::move(slices), options.groups), options_(options), momenta_(zeros(ctx)) {
  for (const ParameterSlice& slice : slices_) {
    const int rank = slice.parameter->shard.local_shape.rank();
    require(rank == 2 || rank == 3, "Muon: {} is no matrix: {}", slice.parameter->name,
            slice.parameter->shard.local_shape);
  }
  if (options_.second) moments_ = zeros(ctx);
}

void Muon::step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale, const Tensor& gate) {
  const auto kernels = ctx.kernel_context();
  const double keep = options_.momentum;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ParameterSlice& slice = slices_[i];
    const Tensor& target = masters_[i] ? masters_[i] : slice.value;
    const Tensor gradient = scaled_gradient(ctx, i, gradient_scale);
    Tensor direction = ctx.empty(target.shape(), target.dtype(), MemoryTag::Workspace);
    ctx.kernels->axpby(kernels,
                       {.alpha = 1 - keep, .a = gradient, .beta = keep, .b = momenta_[i], .out = direction});
    store(ctx, direction, momenta_[i], gate);
    if (options_.nesterov)
      ctx.kernels->axpby(kernels,
                         {.alpha = 1 - keep, .a = gradient, .beta = keep, .b = direction, .out = direction});
    Tensor update = update_of(ctx, slice, direction);
    if (options_.second) update = adapted(ctx, i, update, gate);
    const double lr = lr_of(slice, rates), decay = decay_of(slice, rates, options_.weight_decay);
    ctx.kernels->axpby(kernels,
                       {.alpha = -lr, .a = update, .beta = 1 - lr * decay, .b = target, .out = update});
    store(ctx, update, target, gate);
    if (masters_[i]) ctx.kernels->copy(kernels, {masters_[i], slice.value});
  }
  ++steps_;
}

Tensor Muon::update_of(RankContext& ctx, const ParameterSlice& slice, const Tensor& direction) const {
  const Parameter& parameter = *slice.parameter;
  const ShardSpec& shard = parameter.shard;
  const auto& [tensor, shards] = parameter.expert ? options_.expert : options_.dense;
  const int rank = shard.local_shape.rank(), split = tensor.size() > 1 ? split_dimension(parameter) : -1;
  const int64_t count = rank == 3 ? shard.local_shape[0] : 1;
  const auto batched = [&](const Tensor& x) { return x.view({count, x.size(rank - 2), x.size(rank - 1)}); };
  Tensor own = own_matrix(ctx, slice, shards, direction);
  // A query group that several ranks share has no parts on any of them.
  const bool cut = has_parts(parameter) && own.size(rank - 2) % group_rows() != 0;
  const bool gathers = split >= 0 && (options_.tp_mode == MuonTpMode::duplicated ||
                                      (options_.tp_mode == MuonTpMode::distributed && cut));
  if (gathers) {
    Tensor whole = whole_matrix(ctx, parameter, tensor, own);
    whole = scaled_parts(ctx, parameter, batched(whole), nullptr).view(whole.shape());
    take_blocks(ctx, parameter, whole, own);
  } else if (split >= 0 && options_.tp_mode == MuonTpMode::distributed) {
    const ShardedMatrix parts{tensor, split};
    own = scaled_parts(ctx, parameter, batched(own), &parts).view(shard.local_shape);
  } else {
    own = scaled_parts(ctx, parameter, batched(own), nullptr).view(shard.local_shape);
  }
  return part_of(slice, own);
}

bool Muon::has_parts(const Parameter& parameter) const {
  return !options_.qkv_rows.empty() && parameter.name.ends_with(".linear_qkv.weight");
}

int64_t Muon::group_rows() const {
  return std::accumulate(options_.qkv_rows.begin(), options_.qkv_rows.end(), int64_t{0});
}

Tensor Muon::scaled(RankContext& ctx, const Tensor& matrices, int64_t rows, int64_t columns,
                    const ShardedMatrix* split) const {
  Tensor result = orthogonalize(ctx, matrices, options_.steps, split);
  if (options_.second) return result;  // it is scaled behind the second moment
  const double scale = options_.extra_scale * muon_scale(options_.scale, rows, columns);
  ctx.kernels->axpby(ctx.kernel_context(), {.alpha = scale, .a = result, .out = result});
  return result;
}

// Scales go by the global shape, of each part of a fused projection its own.
Tensor Muon::scaled_parts(RankContext& ctx, const Parameter& parameter, const Tensor& matrices,
                          const ShardedMatrix* split) const {
  const Shape& global = parameter.shard.global_shape;
  const int64_t rows = global[global.rank() - 2], columns = global[global.rank() - 1];
  const int64_t own_rows = matrices.size(1), own_columns = matrices.size(2), group = group_rows();
  if (!has_parts(parameter) || own_rows % group != 0) return scaled(ctx, matrices, rows, columns, split);
  const auto kernels = ctx.kernel_context();
  Tensor result = ctx.empty(matrices.shape(), matrices.dtype(), MemoryTag::Workspace);
  const Shape by_group = {own_rows / group, group, own_columns};
  int64_t at = 0;
  for (const int64_t part : options_.qkv_rows) {
    const Shape shape = {by_group[0], part, own_columns};
    Tensor one = ctx.empty(shape, matrices.dtype(), MemoryTag::Workspace);
    ctx.kernels->copy(kernels, {matrices.view(by_group).slice(1, at, at + part), one});
    one = scaled(ctx, one.view({1, by_group[0] * part, own_columns}), rows / group * part, columns, split);
    ctx.kernels->copy(kernels, {one.view(shape), result.view(by_group).slice(1, at, at + part)});
    at += part;
  }
  return result;
}

std::vector<OptimizerTensor> Muon::state() const {
  std::vector<OptimizerTensor> list;
  append_masters(list);
  append(list, "momentum_buffer", momenta_);
  append(list, "moment2_buffer", moments_);
  return list;
}

}  // namespace megatron
