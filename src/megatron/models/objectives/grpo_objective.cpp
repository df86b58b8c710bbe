#include "megatron/models/objectives/grpo_objective.h"

#include "megatron/ops/check.h"

namespace megatron {
namespace {

// Arithmetic on the values of tokens, without gradients: every result is new.
class TokenMath {
 public:
  TokenMath(RankContext& ctx, DType dtype, int64_t tokens) : ctx_(ctx), dtype_(dtype), shape_{tokens} {}

  Tensor constant(double value) const { return ctx_.full({1}, dtype_, value).expand(shape_); }
  Tensor mul(const Tensor& a, const Tensor& b) const { return binary(Binary::Mul, a, b); }
  Tensor sub(const Tensor& a, const Tensor& b) const { return binary(Binary::Sub, a, b); }
  Tensor min(const Tensor& a, const Tensor& b) const { return binary(Binary::Min, a, b); }
  Tensor max(const Tensor& a, const Tensor& b) const { return binary(Binary::Max, a, b); }
  Tensor exp(const Tensor& x) const {
    const Tensor y = empty();
    ctx_.kernels->unary(ctx_.kernel_context(), {.kind = Unary::Exp, .x = x, .bias = {}, .y = y});
    return y;
  }
  // alpha · a + beta · b
  Tensor combine(double alpha, const Tensor& a, double beta, const Tensor& b) const {
    const Tensor y = empty();
    ctx_.kernels->axpby(ctx_.kernel_context(), {.alpha = alpha, .a = a, .beta = beta, .b = b, .out = y});
    return y;
  }
  Tensor scale(double alpha, const Tensor& a) const {
    const Tensor y = empty();
    ctx_.kernels->axpby(ctx_.kernel_context(), {.alpha = alpha, .a = a, .b = {}, .out = y});
    return y;
  }
  // a < b ? yes : no
  Tensor where_less(const Tensor& a, const Tensor& b, const Tensor& yes, const Tensor& no) const {
    const Tensor less = ctx_.empty(shape_, DType::Bool), y = empty();
    ctx_.kernels->compare(ctx_.kernel_context(), {Comparison::Less, a, b, less});
    ctx_.kernels->where(ctx_.kernel_context(), {less, yes, no, y});
    return y;
  }
  // Σ a · b, [1]
  Tensor dot(const Tensor& a, const Tensor& b) const {
    const Tensor y = ctx_.empty({1}, dtype_);
    ctx_.kernels->reduce(
        ctx_.kernel_context(),
        {.kind = Reduction::Sum, .x = mul(a, b), .out = y, .outer = 1, .n = shape_[0], .inner = 1});
    return y;
  }

 private:
  Tensor empty() const { return ctx_.empty(shape_, dtype_); }
  Tensor binary(Binary kind, const Tensor& a, const Tensor& b) const {
    const Tensor y = empty();
    ctx_.kernels->binary(ctx_.kernel_context(), {kind, a, b, y});
    return y;
  }

  RankContext& ctx_;
  DType dtype_;
  Shape shape_;
};

// What a token's loss is, and its slope by the log-probability.
struct TokenTerm {
  Tensor value, slope;
};

// A clamped ratio has no slope where the clamp makes the loss larger.
TokenTerm policy_term(const TokenMath& math, const Tensor& ratio, const Tensor& advantage,
                      const GrpoOptions& options) {
  const Tensor lowest = math.constant(1 - options.clamp_lower),
               highest = math.constant(1 + options.clamp_upper);
  const Tensor plain = math.mul(ratio, advantage),
               clamped = math.mul(math.min(math.max(ratio, lowest), highest), advantage);
  return {math.scale(-1, math.min(plain, clamped)),
          math.where_less(clamped, plain, math.constant(0), math.scale(-1, plain))};
}

TokenTerm kl_term(const TokenMath& math, const Tensor& log_prob, const Tensor& reference) {
  const Tensor apart = math.combine(1, reference, -1, log_prob), ratio = math.exp(apart);
  const Tensor above = math.sub(ratio, math.constant(1));
  return {math.combine(1, above, -1, apart), math.scale(-1, above)};
}

// −p · ln p
TokenTerm entropy_term(const TokenMath& math, const Tensor& log_prob) {
  const Tensor p = math.exp(log_prob), weighted = math.mul(p, log_prob);
  return {math.scale(-1, weighted), math.combine(-1, weighted, -1, p)};
}

// Σ weights · losses of tokens, whose slopes by the token losses are known.
class GrpoNode final : public Node {
 public:
  GrpoNode(const Tensor& token_losses, Tensor slopes)
      : slot_(token_losses.grad_slot()), slopes_(std::move(slopes)) {}
  const char* name() const override { return "grpo_loss"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    const Tensor grad = tape.take_grad(output());
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, slopes_, grad.expand(slopes_.shape()), slopes_});
    tape.add_grad(ctx, slot_, std::exchange(slopes_, {}));
  }

 private:
  GradSlot slot_;
  Tensor slopes_;
};

}  // namespace

Tensor grpo_loss(RankContext& ctx, const Tensor& token_losses, const Tensor& labels, const Tensor& values,
                 const Tensor& weights, const GrpoOptions& options, std::span<Tensor> terms) {
  const int64_t tokens = token_losses.size(0);
  require(values && values.shape() == Shape{GrpoValues::count, tokens},
          "grpo_loss: {} tokens have no advantages and log-probabilities; their batch must bring them",
          tokens);
  const TokenMath math(ctx, token_losses.dtype(), tokens);
  const auto row = [&](GrpoValues::Row which) { return values.slice(0, which, which + 1).view({tokens}); };
  const Tensor log_prob = math.scale(-1, token_losses.detach());
  const Tensor ratio = math.exp(math.combine(1, log_prob, -1, row(GrpoValues::old_log_prob)));
  const TokenTerm policy = policy_term(
      math, ratio, math.mul(row(GrpoValues::advantage), row(GrpoValues::sampling_weight)), options);
  const TokenTerm entropy = entropy_term(math, log_prob);
  Tensor value = math.combine(1, policy.value, -options.entropy_weight, entropy.value);
  Tensor slope = math.combine(1, policy.slope, -options.entropy_weight, entropy.slope);
  TokenTerm kl;
  if (options.kl_beta > 0) {
    kl = kl_term(math, log_prob, row(GrpoValues::reference_log_prob));
    value = math.combine(1, value, options.kl_beta, kl.value);
    slope = math.combine(1, slope, options.kl_beta, kl.slope);
  }
  // What is not predicted counts nothing, also where all tokens have one weight.
  const Tensor none = ctx.full({1}, DType::I64, 0).expand(labels.shape());
  const Tensor counted = math.where_less(labels, none, math.constant(0), weights);

  size_t next = 0;
  const auto report = [&](const Tensor& what) {
    if (terms.empty()) return;
    const Tensor sum = ctx.empty({1}, DType::F64), &term = terms[next++];
    ctx.kernels->copy(ctx.kernel_context(), {math.dot(counted, what), sum});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, term, sum, term});
  };
  const auto clamped = [&](const Tensor& less, const Tensor& more) {
    return math.where_less(less, more, math.constant(1), math.constant(0));
  };
  if (kl.value) report(kl.value);
  report(ratio);
  report(entropy.value);
  report(clamped(math.constant(1 + options.clamp_upper), ratio));
  report(clamped(ratio, math.constant(1 - options.clamp_lower)));

  Tensor loss = math.dot(counted, value);
  if (ops::needs_grad(ctx, {&token_losses}))
    record(ctx, std::make_unique<GrpoNode>(token_losses, math.scale(-1, math.mul(counted, slope))), loss);
  return loss;
}

std::vector<std::string> GrpoObjective::terms() const {
  std::vector<std::string> names;
  if (options_.kl_beta > 0) names.emplace_back("rl/kl_term");
  for (const char* name :
       {"rl/pi_over_pi_old", "rl/entropy_term", "rl/truncated_from_above", "rl/truncated_from_below"})
    names.emplace_back(name);
  return names;
}

Tensor GrpoObjective::loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
                           std::span<Tensor> terms) {
  return grpo_loss(ctx, head.token_losses(ctx, states[0], micro.labels), micro.labels, micro.values,
                   micro.weights, options_, terms);
}

}  // namespace megatron
