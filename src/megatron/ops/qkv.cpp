#include "megatron/ops/qkv.h"

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

void trace_split(RankContext& ctx, Phase phase, const Tensor& qkv, const Rotation& rotation) {
  ctx.trace("split_qkv", phase, rotation.cos ? 3.0 * qkv.numel() : 0.0, 2.0 * qkv.bytes());
}

class SplitQkvNode final : public Node {
 public:
  SplitQkvNode(const Tensor& qkv, const QkvHeads& heads, const Rotation& rotation)
      : slot_(qkv.grad_slot()), shape_(qkv.shape()), dtype_(qkv.dtype()), rotation_(rotation) {
    shapes_[0] = heads.q.shape();
    shapes_[1] = heads.k.shape();
    shapes_[2] = heads.v.shape();
  }
  const char* name() const override { return "split_qkv"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor grads[3];
    for (int i = 0; i < 3; ++i) {
      grads[i] = tape.take_grad(output(i));
      if (!grads[i]) grads[i] = ctx.zeros(shapes_[i], dtype_);
    }
    Tensor dqkv = ctx.empty(shape_, dtype_);
    ctx.kernels->qkv_split(ctx.kernel_context(), {.qkv = dqkv,
                                                  .q = grads[0],
                                                  .k = grads[1],
                                                  .v = grads[2],
                                                  .cos = rotation_.cos,
                                                  .sin = rotation_.sin,
                                                  .interleaved = rotation_.interleaved,
                                                  .merge = true});
    trace_split(ctx, Phase::BackwardData, dqkv, rotation_);
    tape.add_grad(ctx, slot_, std::move(dqkv));
  }

 private:
  GradSlot slot_;
  Shape shape_, shapes_[3];
  DType dtype_;
  Rotation rotation_;
};

}  // namespace

QkvHeads split_qkv(RankContext& ctx, const Tensor& qkv, int64_t heads, int64_t groups, int64_t channels,
                   const Rotation& rotation) {
  check_input(ctx, "split_qkv", "qkv", qkv);
  require(groups > 0 && heads % groups == 0, "split_qkv: {} query heads cannot share {} key heads", heads,
          groups);
  require(qkv.rank() == 2, "split_qkv: qkv is {}, but it must be [tokens, projections]", qkv);
  int64_t tokens = qkv.size(0);
  check_shape("split_qkv", "qkv", qkv, {tokens, (heads + 2 * groups) * channels});
  require(qkv.is_contiguous(), "split_qkv: qkv {} must be contiguous", qkv);
  if (rotation.cos) {
    check_input(ctx, "split_qkv", "cos", rotation.cos);
    check_input(ctx, "split_qkv", "sin", rotation.sin);
    check_dtype("split_qkv", "cos", rotation.cos, accumulation_dtype(qkv.dtype()));
    check_dtype("split_qkv", "sin", rotation.sin, rotation.cos.dtype());
    check_shape("split_qkv", "sin", rotation.sin, rotation.cos.shape());
    require(rotation.cos.size(0) == tokens && 2 * rotation.cos.size(1) <= channels,
            "split_qkv: angles {} do not fit {} tokens with heads of {} channels", rotation.cos, tokens,
            channels);
  }
  QkvHeads result{ctx.empty({tokens, heads, channels}, qkv.dtype()),
                  ctx.empty({tokens, groups, channels}, qkv.dtype()),
                  ctx.empty({tokens, groups, channels}, qkv.dtype())};
  ctx.kernels->qkv_split(ctx.kernel_context(), {.qkv = qkv.detach(),
                                                .q = result.q,
                                                .k = result.k,
                                                .v = result.v,
                                                .cos = rotation.cos,
                                                .sin = rotation.sin,
                                                .interleaved = rotation.interleaved});
  trace_split(ctx, Phase::Forward, qkv, rotation);
  if (recording(ctx, {&qkv}))
    record(ctx, std::make_unique<SplitQkvNode>(qkv, result, rotation), result.q, result.k, result.v);
  return result;
}

}  // namespace megatron::ops
