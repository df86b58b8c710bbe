#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/qkv.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "support/gradcheck.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

// One layer of a decoder with its embedding and loss, forward and backward, on any device.
struct Layer {
  static constexpr int64_t batch = 2, length = 24, hidden = 64, heads = 4, groups = 2, channels = 16,
                           width = 96, vocab = 50, tokens = batch * length;
  RankContext& ctx;
  DType dtype;
  std::vector<std::unique_ptr<TestWeight>> weights;

  TestWeight& weight(Shape shape, double scale) {
    uint64_t seed = 100 + weights.size();
    weights.push_back(std::make_unique<TestWeight>(ctx, random_tensor(ctx, shape, seed, dtype, scale)));
    return *weights.back();
  }

  // The losses, then the gradient of every weight.
  std::vector<Tensor> run() {
    std::vector<int64_t> ids(tokens), labels(tokens), positions(tokens);
    for (int64_t i = 0; i < tokens; ++i) {
      ids[i] = i * 7 % vocab;
      labels[i] = i % 11 == 3 ? -100 : i * 5 % vocab;
      positions[i] = i % length;
    }
    Tensor id = ctx.from_vector(ids, {tokens}), label = ctx.from_vector(labels, {tokens});
    Tape tape(ctx);
    Tensor loss;
    {
      TapeScope scope(ctx, &tape);
      Tensor x = ops::embedding(ctx, weight({vocab, hidden}, 1).get(), id);
      ops::Rotation rotation = ops::rope_tables(ctx, ctx.from_vector(positions, {tokens}),
                                                ops::rope_frequencies(channels, 10000), dtype);
      Tensor y = ops::norm(ctx, x, weight({hidden}, 1).get());
      Tensor qkv = ops::linear(ctx, y, weight({(heads + 2 * groups) * channels, hidden}, 0.2).get(),
                               weight({(heads + 2 * groups) * channels}, 0.1).get());
      auto [q, k, v] = ops::split_qkv(ctx, qkv, heads, groups, channels, rotation);
      ops::AttentionOptions options;
      options.batch = batch;
      Tensor o = ops::view(ctx, ops::attention(ctx, q, k, v, options).o, {tokens, heads * channels});
      Tensor a = ops::linear(ctx, o, weight({hidden, heads * channels}, 0.2).get());
      Tensor dropped = ops::dropout(ctx, a, 0.1, {9, 2});
      auto [normed, sum] = ops::norm_with_residual(ctx, dropped, x, weight({hidden}, 1).get());
      Tensor gate = ops::linear(ctx, normed, weight({2 * width, hidden}, 0.2).get());
      Tensor mlp = ops::linear(ctx, ops::gated_activation(ctx, {}, gate), weight({hidden, width}, 0.2).get());
      Tensor z = ops::norm(ctx, ops::add(ctx, sum, mlp), weight({hidden}, 1).get());
      loss = ops::linear_cross_entropy(ctx, z, weight({vocab, hidden}, 0.3).get(), label, {}, 1, 20);
    }
    tape.backward(ctx, loss, ctx.full({tokens}, loss.dtype(), 1.0 / tokens));
    std::vector<Tensor> results{loss.detach()};
    for (auto& w : weights) results.push_back(w->accumulator.main_grad);
    return results;
  }
};

class CudaOps : public Twin {};

TEST_F(CudaOps, ALayerTrainsAsOnTheCpu) {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    auto on_cpu = Layer{cpu, dtype, {}}.run(), on_gpu = Layer{gpu(), dtype, {}}.run();
    ASSERT_EQ(on_cpu.size(), on_gpu.size());
    double tolerance = dtype == DType::F64 ? 1e-11 : dtype == DType::F32 ? 1e-5 : 2e-2;
    for (size_t i = 0; i < on_cpu.size(); ++i)
      alike({on_cpu[i], on_gpu[i]}, tolerance,
            label(dtype) + (i ? " gradient of weight " + std::to_string(i - 1) : std::string(" loss")));
  }
}

// One scale a tensor, and one a block. fp8 GEMMs keep fewer bits on the GPU.
TEST_F(CudaOps, Fp8Linear) {
  auto run = [](RankContext& ctx, bool blocks, int64_t tokens, int64_t in, int64_t out) {
    // Magnitudes that differ from block to block, so that no scale can stand for another.
    auto uneven = [&](int64_t rows, int64_t columns, uint64_t seed) {
      auto values = ctx.to_vector<float>(random_tensor(ctx, {rows, columns}, seed, DType::F32, 1));
      for (int64_t i = 0; i < rows * columns; ++i)
        values[static_cast<size_t>(i)] *= std::exp2f(
            static_cast<float>((i / columns / 128 * 5 + i % columns / 128 * 3 + i / columns % 2) % 7));
      Tensor wide = ctx.from_vector(values, {rows, columns}),
             narrow = ctx.empty({rows, columns}, DType::BF16);
      ctx.kernels->copy(ctx.kernel_context(), {wide, narrow});
      return narrow;
    };
    Tensor x = uneven(tokens, in, 1), dy = uneven(tokens, out, 2);
    TestWeight weight(ctx, uneven(out, in, 3)), bias(ctx, random_tensor(ctx, {out}, 4, DType::BF16, 1));
    ops::Fp8Weight fp8{.blocks = blocks, .matrix = {}};
    Tape tape(ctx);
    Tensor input = tape.watch(x), y;
    {
      TapeScope scope(ctx, &tape);
      y = ops::call_linear(ctx, input, weight.get(), {.bias = bias.get(), .fp8 = &fp8}).y;
    }
    tape.backward(ctx, y, dy);
    return std::vector<Tensor>{y.detach(), tape.grad(input), weight.accumulator.main_grad,
                               bias.accumulator.main_grad};
  };
  for (bool blocks : {false, true})
    for (auto [tokens, in, out] : {std::tuple<int64_t, int64_t, int64_t>{1024, 768, 2304},
                                   {256, 384, 128},
                                   {272, 144, 160},
                                   {32, 48, 64}}) {
      auto on_cpu = run(cpu, blocks, tokens, in, out), on_gpu = run(gpu(), blocks, tokens, in, out);
      const char* names[] = {"result", "gradient of x", "gradient of the weight", "gradient of the bias"};
      for (size_t i = 0; i < on_cpu.size(); ++i)
        alike({on_cpu[i], on_gpu[i]}, 1.2e-2,
              fmt::format("{} {}×{}×{}, {}", blocks ? "blocks" : "whole", tokens, in, out, names[i]));
    }
}

TEST_F(CudaOps, TrainsBitwiseTheSameTwice) {
  auto values_of = [&] {
    std::vector<std::vector<double>> all;
    for (const Tensor& x : Layer{gpu(), DType::BF16, {}}.run()) all.push_back(values(gpu(), x));
    return all;
  };
  auto first = values_of();
  for (int round = 0; round < 3; ++round) EXPECT_EQ(values_of(), first) << "round " << round;
}

}  // namespace
}  // namespace megatron::testing
