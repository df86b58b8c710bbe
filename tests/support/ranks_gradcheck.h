#pragma once

#include "megatron/comm/run_ranks.h"
#include "support/gradcheck.h"

namespace megatron::testing {

// One rank's part of an op over several ranks: its inputs and weights, and the op on them.
struct RankOp {
  std::vector<Tensor> inputs, weights;
  bool same_inputs = false;  // every rank holds the same ones
  std::function<Tensor(const std::vector<Tensor>&, const std::vector<Weight>&)> run;
};

// Compares the gradients that each rank finds with fp64 central differences of the sum, over all ranks, of
// output · fixed random direction.
inline void ranks_gradcheck(int ranks, const std::function<RankOp(RankContext&, const ProcessGroup&)>& make,
                            bool defer_weights = false, double tolerance = 1e-8, double step = 1e-5) {
  run_ranks(ranks, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    RankOp op = make(ctx, world);
    std::vector<std::unique_ptr<TestWeight>> held;
    std::vector<Weight> trainable, frozen;
    for (const Tensor& w : op.weights) {
      held.push_back(std::make_unique<TestWeight>(ctx, w));
      trainable.push_back(held.back()->get());
      frozen.push_back({w, nullptr});
    }
    auto seed = static_cast<uint64_t>(500 + world.rank());
    auto loss = [&] {
      auto y = ctx.to_vector<double>(op.run(op.inputs, frozen));
      auto d = ctx.to_vector<double>(random_tensor(ctx, {static_cast<int64_t>(y.size())}, seed));
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += y[i] * d[i];
      Tensor total = ctx.from_vector(std::vector<double>{sum}, {1});
      world.all_reduce(total).wait();
      return ctx.item(total);
    };
    Tape tape(ctx);
    std::vector<Tensor> watched;
    for (const Tensor& x : op.inputs) watched.push_back(tape.watch(x));
    ctx.defer_weight_grads = defer_weights;
    {
      TapeScope scope(ctx, &tape);
      Tensor y = op.run(watched, trainable);
      tape.backward(ctx, y, random_tensor(ctx, {y.numel()}, seed).view(y.shape()));
    }
    tape.backward_weight(ctx);

    auto compare = [&](const Tensor& x, const Tensor& analytic, int owner, const std::string& what) {
      bool moves = owner < 0 || owner == world.rank();
      auto grads = ctx.to_vector<double>(analytic);
      double* data = x.data<double>();
      for (size_t i = 0; i < grads.size(); ++i) {
        double before = data[i];
        if (moves) data[i] = before + step;
        double above = loss();
        if (moves) data[i] = before - step;
        double below = loss();
        data[i] = before;
        if (!moves) continue;
        EXPECT_NEAR(grads[i], (above - below) / (2 * step), tolerance)
            << what << " element " << i << " of rank " << world.rank();
      }
    };
    for (size_t i = 0; i < op.inputs.size(); ++i)
      for (int owner = 0; owner < (op.same_inputs ? 1 : ranks); ++owner)
        compare(op.inputs[i], tape.grad(watched[i]), op.same_inputs ? -1 : owner,
                "input " + std::to_string(i));
    for (size_t i = 0; i < op.weights.size(); ++i)
      for (int owner = 0; owner < ranks; ++owner)
        compare(op.weights[i], held[i]->accumulator.main_grad, owner, "weight " + std::to_string(i));
  });
}

}  // namespace megatron::testing
