#include "megatron/models/elastic/elastic_router.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/reduce.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/softmax.h"
#include "megatron/ops/straight_through.h"
#include "megatron/ops/weight_tensor.h"

namespace megatron {
namespace {

constexpr double kLeak = 0.1;         // slope of the router's activation below 0
constexpr double kTiny = 1e-12;       // keeps a variance of 0 from dividing by it
constexpr double kNearEnough = 0.05;  // what a budget may be missed by
constexpr double kWholeWeight = 10;   // of choosing the whole model at budget 1
constexpr const char* kNames[] = {"emb", "mlp", "mamba", "moe_expert"};

Tensor constant(RankContext& ctx, const std::vector<double>& values, Shape shape, DType dtype) {
  return ops::cast(ctx, ctx.from_vector(values, shape), dtype);
}

// [1, choices], 1 where the probability is the largest. Equal ones share it.
Tensor largest(RankContext& ctx, const Tensor& probabilities) {
  const Tensor p = probabilities.detach();
  const Tensor below = ops::compare(ctx, Comparison::Less, p, ops::max(ctx, p, 1, true));
  const Tensor one = ops::where(ctx, below, ctx.zeros({1}, p.dtype()), ctx.full({1}, p.dtype(), 1));
  return ops::div(ctx, one, ops::sum(ctx, one, 1, true));
}

}  // namespace

ElasticRouter::ElasticRouter(std::shared_ptr<const ElasticSpec> spec, const ModelParallel& parallel,
                             DType dtype)
    : spec_(std::move(spec)),
      dtype_(accumulation_dtype(dtype)),
      ranks_(parallel.tensor.size() * parallel.context.size()) {
  const ElasticConfig& config = spec_->settings;
  const auto parameter = [&](size_t axis, const char* layer, int64_t rows, int64_t columns) {
    auto made = std::make_unique<Parameter>(fmt::format("elastic_router.{}.{}.weight", kNames[axis], layer),
                                            ShardSpec::whole({rows, columns}),
                                            Initializer::normal(config.router_std));
    made->partial_over_tp = parallel.tensor.size() > 1;
    made->trainable = !config.freeze_router;
    return made;
  };
  for (size_t axis = 0; axis < kElasticAxes; ++axis) {
    if (!spec_->varies(axis)) continue;
    gates_[axis].fc1 = parameter(axis, "linear_fc1", config.router_inter_dim, std::ssize(spec_->budgets));
    gates_[axis].fc2 =
        parameter(axis, "linear_fc2", std::ssize(spec_->widths[axis]), config.router_inter_dim);
  }
}

Tensor ElasticRouter::logits(RankContext& ctx, Gate& gate, const ElasticDraw& draw) {
  const Tensor input = constant(ctx, draw.input, {1, std::ssize(draw.input)}, dtype_);
  const Tensor x =
      ops::matmul(ctx, input, ops::weight_tensor(ctx, gate.fc1->get(ctx), dtype_), {.transpose_b = true});
  const Tensor leaky = ops::axpby(ctx, 1, ops::activation(ctx, Unary::Relu, x), -kLeak,
                                  ops::activation(ctx, Unary::Relu, ops::scale(ctx, x, -1)));
  return ops::matmul(ctx, leaky, ops::weight_tensor(ctx, gate.fc2->get(ctx), dtype_), {.transpose_b = true});
}

Tensor ElasticRouter::probabilities(RankContext& ctx, size_t axis, const ElasticDraw& draw) {
  const int64_t count = std::ssize(spec_->widths[axis]), first = spec_->first_choice(axis);
  if (!spec_->varies(axis)) return ctx.full({1, 1}, dtype_, 1);
  Tensor scores = logits(ctx, gates_[axis], draw);
  if (spec_->settings.normalize_router_logits) {
    const Tensor apart = ops::sub(ctx, scores, ops::mean(ctx, scores, 1, true));
    const Tensor squares = ops::sum(ctx, ops::mul(ctx, apart, apart), 1, true);
    const Tensor variance = ops::add(ctx, ops::scale(ctx, squares, 1 / static_cast<double>(count - 1)),
                                     ctx.full({1, 1}, dtype_, kTiny));
    scores = ops::div(ctx, scores, ops::activation(ctx, Unary::Sqrt, variance));
  }
  const std::vector<double> noise(draw.noise.begin() + first, draw.noise.begin() + first + count);
  scores =
      ops::axpby(ctx, draw.factor * draw.scale, scores, draw.scale, constant(ctx, noise, {1, count}, dtype_));
  const Tensor p = ops::softmax(ctx, scores);
  return draw.mixes ? p : ops::straight_through(ctx, largest(ctx, p), p);
}

Tensor ElasticRouter::forward(RankContext& ctx, const SeqInfo& seq) {
  const ElasticConfig& config = spec_->settings;
  std::vector<Tensor> axes;
  if (!seq.training && !config.is_flex_eval) {  // the whole model, whose sizes are the first
    for (size_t axis = 0; axis < kElasticAxes; ++axis) {
      std::vector<double> whole(spec_->widths[axis].size(), 0);
      whole[0] = 1;
      axes.push_back(constant(ctx, whole, {1, std::ssize(whole)}, dtype_));
    }
  } else {
    const ElasticDraw draw = seq.training ? draw_of_step(*spec_, seq.seed, seq.step)
                                          : draw_of_budget(*spec_, config.override_selected_budget.at(0));
    for (size_t axis = 0; axis < kElasticAxes; ++axis) axes.push_back(probabilities(ctx, axis, draw));
  }
  return ops::concat(ctx, axes, 1);
}

// The axis's mean size, as a share of the whole model's, [1, 1].
Tensor ElasticRouter::share(RankContext& ctx, const Tensor& choice, size_t axis) {
  const std::vector<int64_t>& widths = spec_->widths[axis];
  const int64_t count = std::ssize(widths), first = spec_->first_choice(axis);
  std::vector<double> shares;
  for (const int64_t width : widths)
    shares.push_back(static_cast<double>(width) / static_cast<double>(widths.front()));
  return ops::matmul(ctx, ops::contiguous(ctx, ops::slice(ctx, choice, 1, first, first + count)),
                     constant(ctx, shares, {count, 1}, dtype_));
}

// |size / budget − 1|, and at budget 1 also how far the choice is from the whole model.
Tensor ElasticRouter::budget_loss(RankContext& ctx, const Tensor& choice, double budget) {
  std::array<Tensor, kElasticAxes> shares;
  for (size_t axis = 0; axis < kElasticAxes; ++axis)
    if (spec_->varies(axis)) shares[axis] = share(ctx, choice, axis);
  double fixed = -1;
  Tensor size;
  for (size_t set = 0; set < spec_->terms.size(); ++set) {
    const double term = spec_->terms[set] / budget;
    if (set == 0) fixed += term;
    if (set == 0 || term == 0) continue;
    Tensor product;
    for (size_t axis = 0; axis < kElasticAxes; ++axis)
      if ((set >> axis & 1) != 0) product = product ? ops::mul(ctx, product, shares[axis]) : shares[axis];
    product = ops::scale(ctx, product, term);
    size = size ? ops::add(ctx, size, product) : product;
  }
  if (!size) return {};
  Tensor loss = ops::activation(ctx, Unary::Abs, ops::add(ctx, size, ctx.full({1, 1}, dtype_, fixed)));
  if (budget != 1) {
    const Tensor near =
        ops::compare(ctx, Comparison::Less, loss.detach(), ctx.full({1, 1}, dtype_, kNearEnough));
    return ops::where(ctx, near, ctx.zeros({1, 1}, dtype_), loss);
  }
  for (size_t axis = 0; axis < kElasticAxes; ++axis) {
    if (!spec_->varies(axis)) continue;
    const int64_t count = std::ssize(spec_->widths[axis]), first = spec_->first_choice(axis);
    std::vector<double> whole(static_cast<size_t>(count), 0);
    whole[0] = 1;
    const Tensor apart = ops::sub(ctx, ops::contiguous(ctx, ops::slice(ctx, choice, 1, first, first + count)),
                                  constant(ctx, whole, {1, count}, dtype_));
    const Tensor mean = ops::mean(ctx, ops::mul(ctx, apart, apart), 1, true);
    loss = ops::axpby(ctx, 1, loss, kWholeWeight, mean);
  }
  return loss;
}

Tensor ElasticRouter::with_budget_loss(RankContext& ctx, const Tensor& x, const Tensor& choice,
                                       const SeqInfo& seq) {
  const ElasticConfig& config = spec_->settings;
  if (!seq.training || !ctx.tape || config.disable_budget || config.freeze_router) return x;
  const Tensor whole = budget_loss(ctx, choice, draw_of_step(*spec_, seq.seed, seq.step).budget);
  if (!whole) return x;
  // Parts of all ranks that make it add up to the loss.
  const Tensor loss = ops::view(ctx, ops::scale(ctx, whole, config.loss_alpha / ranks_), {1});
  const Tensor value = ctx.empty({1}, DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {loss.detach(), value});
  if (logged_.empty())
    logged_.push_back({"budget_loss", 0, value});
  else
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, logged_[0].sum, value, logged_[0].sum});
  return attach_aux_loss(ctx, x, loss, seq.aux_loss_weight);
}

void ElasticRouter::visit(const ParameterVisitor& visitor) {
  for (Gate& gate : gates_) {
    if (!gate.fc1) continue;
    visitor(*gate.fc1);
    visitor(*gate.fc2);
  }
}

}  // namespace megatron
