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

void check_projection(const RankContext& ctx, const char* op, const Tensor& qkv, const QkvShape& shape,
                      const Rotation& rotation) {
  check_input(ctx, op, "qkv", qkv);
  require(shape.groups > 0 && shape.heads % shape.groups == 0, "{}: {} query heads cannot share {} KV heads",
          op, shape.heads, shape.groups);
  require(qkv.rank() == 2, "{}: qkv is {}, but it must be [tokens, projections]", op, qkv);
  int64_t tokens = qkv.size(0);
  check_shape(op, "qkv", qkv, {tokens, shape.columns()});
  require(qkv.is_contiguous(), "{}: qkv {} must be contiguous", op, qkv);
  if (!rotation.cos) return;
  check_input(ctx, op, "cos", rotation.cos);
  check_input(ctx, op, "sin", rotation.sin);
  check_dtype(op, "cos", rotation.cos, accumulation_dtype(qkv.dtype()));
  check_dtype(op, "sin", rotation.sin, rotation.cos.dtype());
  check_shape(op, "sin", rotation.sin, rotation.cos.shape());
  require(rotation.cos.size(0) == tokens && 2 * rotation.cos.size(1) <= shape.head_dim,
          "{}: angles {} do not fit {} tokens with head_dim {}", op, rotation.cos, tokens, shape.head_dim);
}

QkvHeads views_of(const Tensor& qkv, const QkvShape& shape) {
  const int64_t queries = shape.heads / shape.groups;
  const Tensor groups = qkv.view({qkv.size(0), shape.groups, queries + 2, shape.head_dim});
  return {shape.groups == 1 ? groups.select(1, 0).slice(1, 0, queries) : groups.select(2, 0),
          groups.select(2, queries), groups.select(2, queries + 1)};
}

void turn_projection(RankContext& ctx, Tensor& qkv, const QkvShape& shape, const Rotation& rotation,
                     bool inverse) {
  if (!rotation.cos) return;
  const int64_t turning = shape.heads / shape.groups + 1;  // of each group; its value does not
  auto groups = [&](const Tensor& x) {
    return x.view({x.size(0), shape.groups, turning + 1, shape.head_dim});
  };
  Tensor rotated = qkv.storage().unique() ? qkv : ctx.empty_like(qkv);
  Tensor from = groups(qkv), to = groups(rotated), heads = to.slice(2, 0, turning);
  ctx.kernels->rope(ctx.kernel_context(), {.x = from.slice(2, 0, turning),
                                           .y = heads,
                                           .cos = rotation.cos,
                                           .sin = rotation.sin,
                                           .interleaved = rotation.interleaved,
                                           .inverse = inverse});
  if (!rotated.storage().same(qkv.storage()))
    ctx.kernels->copy(ctx.kernel_context(), {from.select(2, turning), to.select(2, turning)});
  trace(ctx, "rope", inverse ? Phase::BackwardData : Phase::Forward, 3.0 * static_cast<double>(heads.numel()),
        {&heads, &heads, &rotation.cos, &rotation.sin});
  qkv = std::move(rotated);
}

QkvHeads split_qkv(RankContext& ctx, const Tensor& qkv, int64_t heads, int64_t groups, int64_t head_dim,
                   const Rotation& rotation) {
  check_projection(ctx, "split_qkv", qkv, {heads, groups, head_dim}, rotation);
  int64_t tokens = qkv.size(0);
  QkvHeads result{ctx.empty({tokens, heads, head_dim}, qkv.dtype()),
                  ctx.empty({tokens, groups, head_dim}, qkv.dtype()),
                  ctx.empty({tokens, groups, head_dim}, qkv.dtype())};
  ctx.kernels->qkv_split(ctx.kernel_context(), {.qkv = qkv.detach(),
                                                .q = result.q,
                                                .k = result.k,
                                                .v = result.v,
                                                .cos = rotation.cos,
                                                .sin = rotation.sin,
                                                .interleaved = rotation.interleaved});
  trace_split(ctx, Phase::Forward, qkv, rotation);
  if (needs_grad(ctx, {&qkv}))
    record(ctx, std::make_unique<SplitQkvNode>(qkv, result, rotation), result.q, result.k, result.v);
  return result;
}

}  // namespace megatron::ops
