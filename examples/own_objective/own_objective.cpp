// A program with parts of its own: a layer in place of attention, an objective and a callback.
//
//   own_objective     learns sequences that repeat with a short period, on two pipeline stages
#include "megatron/base/error.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/training/run/run.h"

using namespace megatron;

namespace {

// Every channel sees its last four values: a gated short convolution, without any attention.
class ShortConvolution final : public TokenMixer {
 public:
  ShortConvolution(const std::string& name, int64_t hidden)
      : weight_(name + ".weight", ShardSpec::whole({hidden, 1, 4}), Initializer::uniform(0.5)) {}
  Tensor forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq, const RecomputeFn&,
                 HostOffload*) override {
    return ops::causal_conv(ctx, x, weight_.get(ctx), {}, sequence_rows(seq));
  }
  void visit(const ParameterVisitor& visitor) override { visitor(weight_); }

 private:
  Parameter weight_;
};

// The usual loss, with the mean loss of the batch reported once more in bits.
class LossInBits final : public Objective {
 public:
  std::vector<std::string> terms() const override { return {"bits"}; }
  Tensor loss(RankContext& ctx, Head& head, const StageTensors& states, const MicroBatch& micro,
              std::span<Tensor> terms) override {
    Tensor loss = ops::weighted_sum(ctx, head.token_losses(ctx, states[0], micro.labels), micro.weights);
    Tensor bits = ctx.empty({1}, DType::F64), nats = ctx.full({1}, DType::F64, 0.6931471805599453);
    ctx.kernels->copy(ctx.kernel_context(), {loss.detach().view({1}), bits});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Div, bits, nats, bits});
    ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, terms[0], bits, terms[0]});
    return loss;
  }
};

// Ends the run as soon as it has learned enough.
class GoodEnough final : public Callback {
 public:
  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::step_end && view.report->terms.at(0).value < 0.5) view.stop();
  }
};

// Rows that repeat four random tokens.
std::shared_ptr<const BatchSource> repeating(int64_t length) {
  return token_source(length, -1, [=](int64_t, int64_t consumed, int64_t index) {
    const auto random = Philox::at({7, 0}, static_cast<uint64_t>(consumed + index));
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i <= length; ++i) tokens.push_back(random.word[i % 4] % 16);
    return tokens;
  });
}

}  // namespace

int main() try {
  RunSpec spec = run_spec(
      "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
      "--max-position-embeddings 32 --vocab-size 16 --make-vocab-size-divisible-by 1 "
      "--micro-batch-size 8 --global-batch-size 16 --train-iters 500 --lr 1e-2 "
      "--lr-decay-style constant --ranks 2 --pipeline-model-parallel-size 2 --device cpu "
      "--log-interval 25 ");
  spec.data = [](const Config& config) { return RunData{.train = repeating(config.model.seq_length)}; };
  spec.trainer.prepare = [](Model& model) {
    for (auto& chunk : model.chunks())
      chunk->replace_mixers([&](int64_t layer) {
        return std::make_unique<ShortConvolution>(fmt::format("decoder.layers.{}.convolution", layer),
                                                  model.config().hidden_size);
      });
  };
  spec.trainer.objective = [](const Config&) { return std::make_unique<LossInBits>(); };
  spec.callbacks = {std::make_shared<GoodEnough>()};
  const RunEnd end = run(spec);
  fmt::print("{} after {} iterations\n", end.reason == RunEnd::Reason::requested ? "learned" : "not learned",
             end.state.iteration);
  return end.reason == RunEnd::Reason::requested ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "own_objective: {}\n", error.what());
  return error.exit_code();
}
