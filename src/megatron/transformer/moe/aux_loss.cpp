#include "megatron/transformer/moe/aux_loss.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/index.h"
#include "megatron/ops/reduce.h"

namespace megatron {
namespace {

class AttachLossNode final : public Node {
 public:
  AttachLossNode(const Tensor& y, const Tensor& loss, const Tensor& weight)
      : y_slot_(y.grad_slot()), loss_slot_(loss.grad_slot()), dtype_(loss.dtype()), weight_(weight) {}
  const char* name() const override { return "attach_aux_loss"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    tape.add_grad(ctx, y_slot_, tape.take_grad(output()));
    Tensor grad = weight_ ? ctx.empty({1}, dtype_) : ctx.full({1}, dtype_, 1);
    if (weight_) ctx.kernels->copy(ctx.kernel_context(), {weight_, grad});
    tape.add_grad(ctx, loss_slot_, std::move(grad));
  }

 private:
  GradSlot y_slot_, loss_slot_;
  DType dtype_;
  Tensor weight_;
};

// [units, experts]: the rows of each unit summed. Those of one alone need not be sorted.
Tensor sum_of_units(RankContext& ctx, const Tensor& x, const AuxLossUnits& units) {
  if (units.count == 1 && x.size(0) > 0) return ops::sum(ctx, x, 0, true);
  return ops::scatter_add_rows(ctx, x, units.ids, units.count);
}

}  // namespace

Tensor expert_load(RankContext& ctx, const Tensor& routing_map, const AuxLossUnits& units,
                   const ProcessGroup& group) {
  Tensor load = sum_of_units(ctx, routing_map, units);
  group.all_reduce(load).wait();
  return load;
}

Tensor load_balancing_loss(RankContext& ctx, const Tensor& scores, const Tensor& load,
                           const AuxLossUnits& units, double coefficient, int64_t k) {
  Tensor sums = sum_of_units(ctx, scores, units);
  auto n = static_cast<double>(units.tokens);
  double factor =
      coefficient * static_cast<double>(scores.size(1)) / (static_cast<double>(k * units.count) * n * n);
  return ops::scale(ctx, ops::sum(ctx, ops::mul(ctx, sums, load)), factor);
}

Tensor z_loss(RankContext& ctx, const Tensor& logits, double coefficient, int64_t tokens) {
  Tensor largest = ops::max(ctx, logits.detach(), 1, true);
  Tensor sums = ops::sum(ctx, ops::activation(ctx, Unary::Exp, ops::sub(ctx, logits, largest)), 1, true);
  Tensor log_sums = ops::add(ctx, ops::activation(ctx, Unary::Log, sums), largest);
  return ops::scale(ctx, ops::sum(ctx, ops::activation(ctx, Unary::Square, log_sums)),
                    coefficient / static_cast<double>(tokens));
}

Tensor attach_aux_loss(RankContext& ctx, const Tensor& y, const Tensor& loss, const Tensor& weight) {
  if (!ctx.tape || !ctx.tracks(loss)) return y;
  Tensor result = y.detach();
  record(ctx, std::make_unique<AttachLossNode>(y, loss, weight), result);
  return result;
}

}  // namespace megatron
