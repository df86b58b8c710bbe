#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "support/test_device.h"

namespace megatron::testing {

// Values in [-1, 1), the same for the same seed.
inline Tensor random_tensor(RankContext& ctx, Shape shape, uint64_t seed, DType dtype = DType::F64,
                            double scale = 1) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    auto words = Philox::at({seed, 0}, i);
    values[i] = scale * (2.0 * (words.word[0] * 0x1p-32 + words.word[1] * 0x1p-64) - 1.0);
  }
  Tensor wide = ctx.from_vector(values, shape);
  if (dtype == DType::F64) return wide;
  Tensor result = ctx.empty(shape, dtype);
  ctx.kernels->copy(ctx.kernel_context(), {wide, result});
  return result;
}

// A trainable weight with its gradient place, for tests.
struct TestWeight {
  TestWeight(RankContext& ctx, Tensor value) : value(std::move(value)) {
    accumulator.main_grad =
        ctx.zeros(this->value.shape(), accumulation_dtype(this->value.dtype()), MemoryTag::Gradient);
  }
  Weight get() { return {value, &accumulator}; }
  Tensor value;
  GradAccumulator accumulator;
};

// Compares analytic gradients with fp64 central differences of loss = Σ output · fixed random direction, over
// every element of every input and weight. f must be a pure function of them.
using CheckedOp =
    std::function<std::vector<Tensor>(RankContext&, const std::vector<Tensor>&, const std::vector<Weight>&)>;

inline void gradcheck(RankContext& ctx, const CheckedOp& f, const std::vector<Tensor>& inputs,
                      const std::vector<Tensor>& weights = {}, double tolerance = 1e-7, double step = 1e-5) {
  std::vector<Tensor> directions;
  auto loss_of = [&](const std::vector<Tensor>& outputs) {
    double sum = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (directions.size() <= i) directions.push_back(random_tensor(ctx, outputs[i].shape(), 1000 + i));
      auto y = ctx.to_vector<double>(outputs[i]), d = ctx.to_vector<double>(directions[i]);
      for (size_t j = 0; j < y.size(); ++j) sum += y[j] * d[j];
    }
    return sum;
  };

  std::vector<std::unique_ptr<TestWeight>> held;
  std::vector<Weight> trainable, frozen;
  for (const Tensor& w : weights) {
    held.push_back(std::make_unique<TestWeight>(ctx, w));
    trainable.push_back(held.back()->get());
    frozen.push_back({w, nullptr});
  }
  Tape tape(ctx);
  std::vector<Tensor> watched, outputs;
  for (const Tensor& x : inputs) watched.push_back(is_floating(x.dtype()) ? tape.watch(x) : x);
  {
    TapeScope scope(ctx, &tape);
    outputs = f(ctx, watched, trainable);
  }
  loss_of(outputs);
  tape.backward_data(ctx, outputs, directions);
  tape.backward_weight(ctx);

  auto compare = [&](const Tensor& x, const Tensor& analytic, const std::string& what) {
    std::vector<double> base = ctx.to_vector<double>(x), grads(base.size(), 0.0);
    if (analytic) grads = ctx.to_vector<double>(analytic);
    const Tensor elements = x.view({x.numel()});
    auto put = [&](size_t i, double value) {
      const auto place = static_cast<int64_t>(i);
      ctx.kernels->fill(ctx.kernel_context(), {elements.slice(0, place, place + 1), value});
    };
    for (size_t i = 0; i < base.size(); ++i) {
      put(i, base[i] + step);
      double above = loss_of(f(ctx, inputs, frozen));
      put(i, base[i] - step);
      double below = loss_of(f(ctx, inputs, frozen));
      put(i, base[i]);
      double numeric = (above - below) / (2 * step);
      ASSERT_NEAR(grads[i], numeric, tolerance * std::max(1.0, std::abs(numeric)))
          << what << " element " << i;
    }
  };
  NoGrad no_grad(ctx);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (is_floating(inputs[i].dtype()))
      compare(inputs[i], tape.grad(watched[i]), "input " + std::to_string(i));
  for (size_t i = 0; i < weights.size(); ++i)
    compare(weights[i], held[i]->accumulator.main_grad, "weight " + std::to_string(i));
}

}  // namespace megatron::testing
