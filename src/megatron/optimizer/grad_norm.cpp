#include "megatron/optimizer/grad_norm.h"

#include <algorithm>

#include "megatron/ops/reduce.h"

namespace megatron {
namespace {

// Another rank counts the same elements.
bool counted_elsewhere(const Parameter& parameter, const ParallelContext& parallel) {
  Axis tensor = parameter.expert ? Axis::etp : Axis::tp;
  return parameter.tied_copy || (parameter.replicated_over_tp() && parallel.rank(tensor) != 0);
}

// The indices of the slices that this rank counts, of dense or of expert parameters.
std::vector<size_t> counted(std::span<const ParameterSlice> slices, const ParallelContext& parallel,
                            bool expert) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < slices.size(); ++i)
    if (slices[i].parameter->expert == expert && !counted_elsewhere(*slices[i].parameter, parallel))
      indices.push_back(i);
  return indices;
}

// Replicas of different sizes have the reduced gradients in one layout: partial sums of its positions are
// added in one order everywhere, so that no replica clips by another factor than the others.
template <class Own>
Tensor sum_over_cores(RankContext& ctx, std::span<const ParameterSlice> slices,
                      const ParallelContext& parallel, const UnequalReplicas& unequal, bool sharded,
                      Own own) {
  Tensor sum = ctx.zeros({1}, DType::F64);
  if (unequal.core) {
    std::vector<size_t> indices;
    for (size_t i = 0; i < slices.size(); ++i)
      if (!slices[i].parameter->tied_copy) indices.push_back(i);
    own(indices, sum);
    const ProcessGroup& cores = sharded ? unequal.all_cores : unequal.model_core;
    Tensor all = ctx.empty({cores.size()}, DType::F64);
    cores.all_gather(sum, all).wait();
    sum = ops::sum(ctx, all, 0, true);
  }
  parallel.group(Axis::tp).broadcast(sum, 0).wait();
  return sum;
}

// Adds `own(indices, out)` up over the ranks.
template <class Own>
Tensor sum_over_model(RankContext& ctx, std::span<const ParameterSlice> slices,
                      const ParallelContext& parallel, bool sharded, Own own) {
  if (const UnequalReplicas* unequal = parallel.unequal())
    return sum_over_cores(ctx, slices, parallel, *unequal, sharded, own);
  Tensor sum = ctx.zeros({1}, DType::F64), expert = ctx.zeros({1}, DType::F64);
  own(counted(slices, parallel, false), sum);
  own(counted(slices, parallel, true), expert);
  // One instance of a sharded model has every element once. Without shards, one copy of the dense part lies
  // on a tensor × pipeline group, one of the experts on their own.
  if (!sharded) {
    parallel.group(Axis::mp).all_reduce(sum).wait();
    parallel.group(Axis::etp_ep_pp).all_reduce(expert).wait();
  }
  ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, sum, expert, sum});
  if (sharded) parallel.group(Axis::dist_opt).all_reduce(sum).wait();
  return sum;
}

template <class TensorOf>
Tensor norm_over_model(RankContext& ctx, std::span<const ParameterSlice> slices,
                       const ParallelContext& parallel, bool sharded, const char* what, TensorOf tensor_of) {
  Tensor sum = sum_over_model(ctx, slices, parallel, sharded,
                              [&](const std::vector<size_t>& indices, const Tensor& out) {
                                std::vector<Tensor> tensors;
                                for (size_t i : indices) tensors.push_back(tensor_of(i));
                                ctx.kernels->sum_squares(ctx.kernel_context(), {tensors, out});
                                double elements = 0, bytes = 0;
                                for (const Tensor& tensor : tensors) {
                                  elements += static_cast<double>(tensor.numel());
                                  bytes += static_cast<double>(tensor.bytes());
                                }
                                if (bytes > 0) ctx.trace(what, Phase::Other, 2 * elements, bytes);
                              });
  Tensor norm = ctx.empty({1}, DType::F64);
  ctx.kernels->unary(ctx.kernel_context(), {.kind = Unary::Sqrt, .x = sum, .y = norm});
  return norm;
}

// Elements of a slice that belong to no block of its shard. They stand behind all others.
int64_t padding_of(const ParameterSlice& slice) {
  int64_t real = 0;
  for (const ShardBlock& block : slice.parameter->shard.blocks) real += block.extent.numel();
  const int64_t end = slice.begin + slice.gradient.numel();
  return std::max<int64_t>(0, end - std::max(slice.begin, real));
}

}  // namespace

Tensor gradient_norm(RankContext& ctx, std::span<const ParameterSlice> slices,
                     const ParallelContext& parallel, bool sharded) {
  return norm_over_model(ctx, slices, parallel, sharded, "grad_norm",
                         [&](size_t i) { return slices[i].gradient; });
}

Tensor parameter_norm(RankContext& ctx, std::span<const ParameterSlice> slices,
                      const ParallelContext& parallel, bool sharded) {
  return norm_over_model(ctx, slices, parallel, sharded, "params_norm",
                         [&](size_t i) { return slices[i].value; });
}

Tensor gradient_zeros(RankContext& ctx, std::span<const ParameterSlice> slices,
                      const ParallelContext& parallel, bool sharded) {
  return sum_over_model(ctx, slices, parallel, sharded,
                        [&](const std::vector<size_t>& indices, const Tensor& out) {
                          std::vector<Tensor> tensors;
                          int64_t padding = 0;
                          for (size_t i : indices) {
                            tensors.push_back(slices[i].gradient);
                            padding += padding_of(slices[i]);
                          }
                          ctx.kernels->count_zeros(ctx.kernel_context(), {tensors, out});
                          if (padding == 0) return;
                          Tensor none = ctx.full({1}, DType::F64, static_cast<double>(padding));
                          ctx.kernels->binary(ctx.kernel_context(), {Binary::Sub, out, none, out});
                        });
}

Tensor clip_coefficient(RankContext& ctx, const Tensor& norm, double limit) {
  auto kernels = ctx.kernel_context();
  Tensor guard = ctx.full({1}, DType::F64, 1e-6), most = ctx.full({1}, DType::F64, 1.0);
  Tensor coefficient = ctx.full({1}, DType::F64, limit);
  ctx.kernels->binary(kernels, {Binary::Add, norm, guard, guard});
  ctx.kernels->binary(kernels, {Binary::Div, coefficient, guard, coefficient});
  ctx.kernels->binary(kernels, {Binary::Min, coefficient, most, coefficient});
  return coefficient;
}

}  // namespace megatron
