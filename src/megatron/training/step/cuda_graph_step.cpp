#include "megatron/training/step/cuda_graph_step.h"

#include <algorithm>

namespace megatron {

CudaGraphStep::Kind CudaGraphStep::kind_of(const MicroBatches& batch) {
  Kind kind;
  for (int64_t i = 0; i < batch.count(); ++i) {
    kind.rows.push_back(batch.rows(i));
    kind.counted_labels.push_back(batch.counted_labels(i));
  }
  return kind;
}

// Told through the host, which waits for nothing else at that time.
bool CudaGraphStep::all_can(bool own) const {
  if (world_.size() == 1) return own;
  int64_t value = own ? 1 : 0;
  world_.all_reduce(Tensor::wrap(&value, {1}, DType::I64), ReduceOp::Min).wait();
  return value == 1;
}

bool CudaGraphStep::run(RankContext& ctx, const MicroBatches& batch, int64_t step, const Passes& passes) {
  Kind kind = kind_of(batch);
  const bool alike = std::count(kind.rows.begin(), kind.rows.end(), kind.rows[0]) == batch.count();
  const bool again = kind == kind_;
  if (!graph_) kind_ = std::move(kind);
  if (steps_before_ > 0) {
    --steps_before_;
    return false;
  }
  if (!all_can(alike && again)) return false;
  StepTokens now;
  for (int64_t i = 0; i < batch.count(); ++i) {
    now.ids.push_back(batch.inputs(ctx, i));
    now.labels.push_back(batch.labels(ctx, i));
  }
  now.step_offset = ctx.from_vector<int64_t>({static_cast<int64_t>(dropout_stream(step, 0, 0))}, {1});
  if (!graph_) {
    tokens_ = std::move(now);
    auto ops = world_.begin_capture();
    CudaGraph made(ctx.runtime, ctx.stream, *ctx.allocator, [&] { passes(tokens_); });
    ops->end();
    ops_ = std::move(ops);  // whole, or not there: passes may throw
    graph_.emplace(std::move(made));
  } else {
    for (size_t i = 0; i < now.ids.size(); ++i) {
      ctx.kernels->copy(ctx.kernel_context(), {now.ids[i], tokens_.ids[i]});
      ctx.kernels->copy(ctx.kernel_context(), {now.labels[i], tokens_.labels[i]});
    }
    ctx.kernels->copy(ctx.kernel_context(), {now.step_offset, tokens_.step_offset});
  }
  ops_->replay([&] { graph_->run(ctx.stream); });
  return true;
}

}  // namespace megatron
