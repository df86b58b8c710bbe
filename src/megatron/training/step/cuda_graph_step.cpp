#include "megatron/training/step/cuda_graph_step.h"

#include <algorithm>

#include "megatron/training/step/replayed_experts.h"

namespace megatron {
namespace {

// Equal weights are one number.
Tensor base_of(const Tensor& tensor) {
  return tensor && tensor.rank() == 1 && tensor.stride(0) == 0 ? tensor.slice(0, 0, 1) : tensor;
}

void copy_to(RankContext& ctx, const Tensor& from, const Tensor& to) {
  if (from) ctx.kernels->copy(ctx.kernel_context(), {base_of(from), base_of(to)});
}

// Everything that differs between steps of one shape.
void copy_to(RankContext& ctx, const MicroBatch& from, const MicroBatch& to) {
  copy_to(ctx, from.ids, to.ids);
  copy_to(ctx, from.labels, to.labels);
  copy_to(ctx, from.weights, to.weights);
  copy_to(ctx, from.seq.aux_loss_weight, to.seq.aux_loss_weight);
  copy_to(ctx, from.seq.step_offset, to.seq.step_offset);
  copy_to(ctx, from.seq.replayed_experts, to.seq.replayed_experts);
  for (size_t i = 0; i < from.mtp.size(); ++i) {
    copy_to(ctx, from.mtp[i].ids, to.mtp[i].ids);
    copy_to(ctx, from.mtp[i].labels, to.mtp[i].labels);
    copy_to(ctx, from.mtp[i].weights, to.mtp[i].weights);
    copy_to(ctx, from.mtp[i].weight, to.mtp[i].weight);
    copy_to(ctx, from.mtp[i].share, to.mtp[i].share);
  }
  for (const auto& [name, tensor] : from.extra) copy_to(ctx, tensor, to.extra.at(name));
  copy_to(ctx, from.mean_weight, to.mean_weight);
  copy_to(ctx, from.share, to.share);
}

}  // namespace

// Told through the host, which waits for nothing else at that time.
bool CudaGraphStep::all_can(bool own) const {
  if (world_.size() == 1) return own;
  int64_t value = own ? 1 : 0;
  world_.all_reduce(Tensor::wrap(&value, {1}, DType::I64), ReduceOp::Min).wait();
  return value == 1;
}

bool CudaGraphStep::run(RankContext& ctx, std::span<const Batch> batches, const Upload& upload,
                        const Passes& passes) {
  std::vector<Kind> kinds;
  for (const Batch& batch : batches)
    kinds.push_back(
        {rows_of(batch), !batch.weights.empty(), batch.extra.contains(kRoutedExperts), batch.first});
  const bool same = kinds == kinds_;
  if (!graph_) kinds_ = std::move(kinds);
  if (steps_before_ > 0) {
    --steps_before_;
    return false;
  }
  if (!all_can(same)) return false;
  std::vector<MicroBatch> now = upload();
  if (!graph_) {
    inputs_ = std::move(now);
    const TraceRange range(ctx.tracer, "capture");
    auto ops = world_.begin_capture();
    CudaGraph made(ctx.runtime, ctx.stream, *ctx.allocator, [&] { passes(inputs_); });
    ops->end();
    ops_ = std::move(ops);  // whole, or not there: passes may throw
    graph_.emplace(std::move(made));
  } else {
    for (size_t i = 0; i < now.size(); ++i) copy_to(ctx, now[i], inputs_[i]);
  }
  ops_->replay([&] { graph_->run(ctx.stream); });
  return true;
}

}  // namespace megatron
