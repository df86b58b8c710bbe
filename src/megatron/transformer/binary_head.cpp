#include "megatron/transformer/binary_head.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/linear.h"
#include "megatron/transformer/initializers.h"

namespace megatron {
namespace {

// Where the first token of each row lies among this rank's tokens; -1: another rank has it.
std::vector<int64_t> first_token_rows(int64_t tokens, const SeqInfo& seq, const TensorParallel& tp) {
  const int64_t begin = tp.splits_tokens() ? tokens * tp.rank() : 0;
  std::vector<int64_t> places;
  for (int64_t row = 0; row < seq.batch; ++row) {
    const int64_t place = row * seq.length - begin;
    places.push_back(place >= 0 && place < tokens ? place : -1);
  }
  return places;
}

class FirstTokensNode final : public Node {
 public:
  FirstTokensNode(const Tensor& x, std::vector<int64_t> places)
      : slot_(x.grad_slot()), shape_(x.shape()), dtype_(x.dtype()), places_(std::move(places)) {}
  const char* name() const override { return "first_tokens"; }
  // Ranks compute the same from the rows, so each has the whole gradient of its own.
  void backward_data(RankContext& ctx, Tape& tape) override {
    const Tensor dy = tape.take_grad(output());
    Tensor dx = ctx.zeros(shape_, dtype_);
    for (size_t row = 0; row < places_.size(); ++row) {
      const auto from = static_cast<int64_t>(row);
      if (const int64_t at = places_[row]; at >= 0)
        ctx.kernels->copy(ctx.kernel_context(), {dy.slice(0, from, from + 1), dx.slice(0, at, at + 1)});
    }
    tape.add_grad(ctx, slot_, std::move(dx));
  }

 private:
  GradSlot slot_;
  Shape shape_;
  DType dtype_;
  std::vector<int64_t> places_;
};

// The first token of each row, [rows, hidden], on every tensor-parallel rank.
Tensor first_tokens(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const TensorParallel& tp) {
  std::vector<int64_t> places = first_token_rows(x.size(0), seq, tp);
  Tensor y = ctx.zeros({seq.batch, x.size(1)}, x.dtype());
  for (size_t row = 0; row < places.size(); ++row) {
    const auto to = static_cast<int64_t>(row);
    if (const int64_t at = places[row]; at >= 0)
      ctx.kernels->copy(ctx.kernel_context(), {x.detach().slice(0, at, at + 1), y.slice(0, to, to + 1)});
  }
  if (tp.splits_tokens()) tp.group.all_reduce(y).wait();
  if (ctx.tracks(x)) record(ctx, std::make_unique<FirstTokensNode>(x, std::move(places)), y);
  return y;
}

}  // namespace

BinaryHead::BinaryHead(const ModelConfig& config, const TensorParallel& tp)
    : tp_(tp),
      pooler_("pooler.dense.weight", ShardSpec::whole({config.hidden_size, config.hidden_size}),
              input_initializer(config)),
      pooler_bias_("pooler.dense.bias", ShardSpec::whole({config.hidden_size}), Initializer::constant(0)),
      weight_("binary_head.weight", ShardSpec::whole({2, config.hidden_size}), input_initializer(config)),
      bias_("binary_head.bias", ShardSpec::whole({2}), Initializer::constant(0)) {}

Tensor BinaryHead::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq) {
  const Tensor first = first_tokens(ctx, x, seq, tp_);
  const Tensor pooled =
      ops::activation(ctx, Unary::Tanh, ops::linear(ctx, first, pooler_.get(ctx)), pooler_bias_.get(ctx));
  return ops::linear(ctx, pooled, weight_.get(ctx), bias_.get(ctx));
}

void BinaryHead::visit(const ParameterVisitor& visitor) {
  visitor(pooler_);
  visitor(pooler_bias_);
  visitor(weight_);
  visitor(bias_);
}

}  // namespace megatron
