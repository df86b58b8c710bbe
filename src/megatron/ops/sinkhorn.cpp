#include "megatron/ops/sinkhorn.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

double sinkhorn_flops(const Tensor& logits, int64_t iterations) {
  return 4.0 * static_cast<double>(iterations) * static_cast<double>(logits.numel());
}

class SinkhornNode final : public Node {
 public:
  SinkhornNode(RankContext& ctx, const Tensor& logits, const Tensor& kept, int64_t iterations)
      : logits_(ctx, kept), slot_(logits.grad_slot()), iterations_(iterations) {}
  const char* name() const override { return "sinkhorn"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    const Tensor logits = logits_.get(ctx);
    const Tensor dy = detach_contiguous(ctx, tape.take_grad(output()));
    const Tensor dlogits = ctx.empty(logits.shape(), logits.dtype());
    ctx.kernels->sinkhorn_backward(
        ctx.kernel_context(), {.iterations = iterations_, .logits = logits, .dy = dy, .dlogits = dlogits});
    trace(ctx, "sinkhorn", Phase::BackwardData, 2 * sinkhorn_flops(logits, iterations_),
          {&logits, &dy, &dlogits});
    tape.add_grad(ctx, slot_, dlogits);
    logits_.reset();
  }

 private:
  Saved logits_;
  GradSlot slot_;
  int64_t iterations_;
};

}  // namespace

Tensor sinkhorn(RankContext& ctx, const Tensor& logits, int64_t iterations) {
  check_input(ctx, "sinkhorn", "logits", logits);
  check_floating("sinkhorn", "logits", logits);
  check_dtype("sinkhorn", "logits", logits, accumulation_dtype(logits.dtype()));
  require(logits.rank() == 3, "sinkhorn: logits have {} dimensions, not 3", logits.rank());
  check_shape("sinkhorn", "logits", logits, {logits.size(0), logits.size(1), logits.size(1)});
  const Tensor x = detach_contiguous(ctx, logits);
  Tensor y = ctx.empty(logits.shape(), logits.dtype());
  ctx.kernels->sinkhorn(ctx.kernel_context(), {.iterations = iterations, .logits = x, .y = y});
  trace(ctx, "sinkhorn", Phase::Forward, sinkhorn_flops(x, iterations), {&logits, &y});
  if (needs_grad(ctx, {&logits})) record(ctx, std::make_unique<SinkhornNode>(ctx, logits, x, iterations), y);
  return y;
}

}  // namespace megatron::ops
