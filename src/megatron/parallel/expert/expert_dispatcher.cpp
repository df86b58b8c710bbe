#include "megatron/parallel/expert/expert_dispatcher.h"

#include "megatron/ops/moe.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/expert/row_collectives.h"

namespace megatron {
namespace {

// Row by row, the expert that a copy went to; −1 where the order has no copy.
Tensor experts_in_order(RankContext& ctx, const Tensor& experts, const ops::ExpertOrder& order) {
  auto kernels = ctx.kernel_context();
  Tensor ids = experts.view({experts.numel(), 1});
  Tensor raised = ctx.empty(ids.shape(), DType::F64), one = ctx.full({1}, DType::F64, 1);
  ctx.kernels->copy(kernels, {ids, raised});
  ctx.kernels->binary(kernels, {Binary::Add, raised, one.expand(raised.shape()), raised});
  int64_t rows = order.copy_of_row.size(0);
  Tensor ordered = ctx.empty({rows, 1}, DType::F64), result = ctx.empty({rows}, DType::I64);
  ctx.kernels->gather_rows(kernels, {raised, order.copy_of_row, ordered});  // 0 where there is no copy
  ctx.kernels->binary(kernels, {Binary::Sub, ordered, one.expand(ordered.shape()), ordered});
  ctx.kernels->copy(kernels, {ordered.view({rows}), result});
  return result;
}

// Each probability as often as there are parts of an expert.
Tensor repeated(RankContext& ctx, const Tensor& probs, int64_t parts) {
  if (!probs || parts == 1) return probs;
  int64_t tokens = probs.size(0), k = probs.size(1);
  Tensor wide = ops::expand(ctx, ops::view(ctx, probs, {tokens, k, 1}), {tokens, k, parts});
  return ops::view(ctx, ops::contiguous(ctx, wide), {tokens, k * parts});
}

}  // namespace

ExpertDispatcher::ExpertDispatcher(int64_t experts, const ExpertParallel& parallel,
                                   const DispatchOptions& options)
    : experts_(experts), local_(experts / parallel.size()), parallel_(parallel), options_(options) {
  require(experts % parallel.size() == 0,
          "experts: {} experts cannot be spread over {} ranks; choose an expert-parallel size that divides",
          experts, parallel.size());
}

Dispatched ExpertDispatcher::dispatch(RankContext& ctx, const Tensor& x, const Routing& routing,
                                      int64_t share, const std::function<void()>& meanwhile) {
  if (parallel_.all.size() > 1 && options_.all_to_all) return exchange(ctx, x, routing, meanwhile);
  if (meanwhile) meanwhile();
  if (parallel_.all.size() == 1) return order(ctx, x, routing.experts, routing.probs);
  return gather(ctx, x, routing, share);
}

// All tokens are here: they are ordered by expert.
Dispatched ExpertDispatcher::order(RankContext& ctx, const Tensor& x, const Tensor& experts,
                                   const Tensor& probs) const {
  ops::ExpertOrder order = ops::expert_sort(ctx, experts, local_, options_.alignment);
  Dispatched result{.tokens = ops::permute(ctx, x, order), .offsets = order.offsets};
  if (options_.expert_of_row) result.expert_of_row = experts_in_order(ctx, experts, order);
  result.combine = [order, probs](RankContext& ctx, const Tensor& results) {
    return ops::unpermute(ctx, results, order, probs);
  };
  return result;
}

// places[expert · parts + part] for each expert of [tokens, k], as int64 [tokens, k · parts]; −1 stays.
Tensor ExpertDispatcher::look_up(RankContext& ctx, const std::vector<double>& places, const Tensor& experts) {
  int64_t parts = static_cast<int64_t>(places.size()) / experts_;
  if (!table_) {
    std::vector<double> raised = places;  // so that 0, which a lookup beyond the table gives, means none
    for (double& place : raised) place += 1;
    table_ = ctx.from_vector(raised, {experts_, parts});
  }
  auto kernels = ctx.kernel_context();
  Shape shape{experts.size(0), experts.size(1) * parts};
  Tensor found = ctx.empty({experts.numel(), parts}, DType::F64), one = ctx.full({1}, DType::F64, 1);
  ctx.kernels->gather_rows(kernels, {table_, experts.view({experts.numel()}), found});
  ctx.kernels->binary(kernels, {Binary::Sub, found, one.expand(found.shape()), found});
  Tensor result = ctx.empty(shape, DType::I64);
  ctx.kernels->copy(kernels, {found.view(shape), result});
  return result;
}

// Every rank sends each copy of a token to all ranks that hold a part of its expert, and sums their results.
Dispatched ExpertDispatcher::exchange(RankContext& ctx, const Tensor& x, const Routing& routing,
                                      const std::function<void()>& meanwhile) {
  const ProcessGroup& all = parallel_.all;
  const int64_t ranks = all.size(), parts = parallel_.tensor.size(), slots = ranks * local_;
  // A slot is an expert of a rank; slots are ordered by rank.
  std::vector<double> places;
  for (int64_t e = 0; e < experts_; ++e)
    for (int64_t part = 0; part < parts; ++part)
      places.push_back(static_cast<double>(
          parallel_.places[static_cast<size_t>(e / local_ * parts + part)] * local_ + e % local_));
  ops::ExpertOrder order = ops::expert_sort(ctx, look_up(ctx, places, routing.experts), slots);

  // The one place where the host waits for the device: how many rows go where.
  Tensor ends = ctx.empty({ranks, slots + 1}, DType::I32);
  std::vector<int64_t> send, recv, experts;
  if (ctx.device.is_meta()) {  // as if every rank got the same number of rows
    int64_t copies = routing.experts.numel() * parts;
    send.assign(static_cast<size_t>(ranks), (copies + ranks - 1) / ranks);
    send.back() = copies - (ranks - 1) * send.front();
    recv = send;
    experts.assign(static_cast<size_t>(copies), 0);
  } else {
    all.all_gather(order.offsets.view({1, slots + 1}), ends).wait();
    std::vector<int32_t> end = ctx.to_vector<int32_t>(ends);
    all.require_running();
    auto begin_of = [&](int64_t rank, int64_t slot) {
      return end[static_cast<size_t>(rank * (slots + 1) + slot)];
    };
    for (int64_t rank = 0; rank < ranks; ++rank) {
      send.push_back(begin_of(all.rank(), (rank + 1) * local_) - begin_of(all.rank(), rank * local_));
      int64_t first = all.rank() * local_;
      recv.push_back(begin_of(rank, first + local_) - begin_of(rank, first));
      for (int64_t e = 0; e < local_; ++e)
        experts.insert(experts.end(),
                       static_cast<size_t>(begin_of(rank, first + e + 1) - begin_of(rank, first + e)), e);
    }
  }
  Tensor arrived = all_to_all_rows(ctx, ops::permute(ctx, x, order), send, recv, all, meanwhile, -1,
                                   options_.fill_backward);
  Tensor ids = ctx.from_vector(experts, {static_cast<int64_t>(experts.size()), 1});
  Dispatched result = this->order(ctx, arrived, ids, {});
  result.combine = [=, fill = options_.fill_backward, probs = repeated(ctx, routing.probs, parts),
                    back = std::move(result.combine)](RankContext& ctx, const Tensor& results) {
    Tensor returned =
        all_to_all_rows(ctx, back(ctx, results), recv, send, all, {}, order.copy_of_row.size(0), fill);
    return ops::unpermute(ctx, returned, order, probs);
  };
  return result;
}

// Every rank gets all tokens, and works on those that chose its experts.
Dispatched ExpertDispatcher::gather(RankContext& ctx, const Tensor& x, const Routing& routing,
                                    int64_t share) {
  const ProcessGroup& all = parallel_.all;
  std::vector<double> places;
  for (int64_t e = 0; e < experts_; ++e)
    places.push_back(e / local_ == parallel_.rank() ? static_cast<double>(e % local_) : -1.0);
  Tensor experts = all_gather_rows(ctx, routing.experts, share, all, -1);
  Tensor probs = routing.probs ? all_gather_rows(ctx, routing.probs, share, all) : Tensor{};
  Dispatched result = order(ctx, all_gather_rows(ctx, x, share, all), look_up(ctx, places, experts), probs);
  result.combine = [all, rows = x.size(0), back = std::move(result.combine)](RankContext& ctx,
                                                                             const Tensor& results) {
    return reduce_scatter_rows(ctx, back(ctx, results), rows, all);
  };
  return result;
}

}  // namespace megatron
