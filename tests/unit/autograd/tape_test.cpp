#include "megatron/autograd/tape.h"

#include <gtest/gtest.h>

#include "megatron/autograd/recompute.h"
#include "megatron/ops/linear.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::random_tensor;
using testing::TestWeight;

class TapeTest : public ::testing::Test {
 protected:
  RankContext ctx;
  TestWeight w1{ctx, random_tensor(ctx, {4, 3}, 1)}, w2{ctx, random_tensor(ctx, {2, 4}, 2)};
  Tensor x = random_tensor(ctx, {5, 3}, 3), seed = random_tensor(ctx, {5, 2}, 4);

  Tensor two_layers(const Tensor& input) {
    return ops::linear(ctx, ops::linear(ctx, input, w1.get()), w2.get());
  }
  std::vector<double> values(const Tensor& t) { return ctx.to_vector<double>(t); }

  // dx, dw1 and dw2 of the two layers.
  struct Grads {
    std::vector<double> x, w1, w2;
    bool operator==(const Grads&) const = default;
  };
  Grads grads_of(const std::function<Tensor(const Tensor&)>& f, bool deferred = false) {
    w1.accumulator.start_step();
    w2.accumulator.start_step();
    Tape tape(ctx);
    Tensor input = tape.watch(x), y;
    {
      TapeScope scope(ctx, &tape);
      y = f(input);
    }
    ctx.defer_weight_grads = deferred;
    tape.backward(ctx, y, seed);
    if (deferred) {
      EXPECT_FALSE(w1.accumulator.has_value()) << "W must wait";
    }
    ctx.defer_weight_grads = false;
    tape.backward_weight(ctx);
    return {values(tape.grad(input)), values(w1.accumulator.main_grad), values(w2.accumulator.main_grad)};
  }

  template <class F>
  static std::string error(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
};

TEST_F(TapeTest, WeightGradientsAccumulateOverTapes) {
  Grads once = grads_of([&](const Tensor& t) { return two_layers(t); });
  Tape a(ctx), b(ctx);  // two micro-batches in flight at once
  Tensor ya, yb;
  {
    TapeScope scope(ctx, &a);
    ya = two_layers(a.watch(x));
  }
  {
    TapeScope scope(ctx, &b);
    yb = two_layers(b.watch(x));
  }
  w1.accumulator.start_step();
  w2.accumulator.start_step();
  a.backward(ctx, ya, seed);
  b.backward(ctx, yb, seed);
  auto twice = values(w1.accumulator.main_grad);
  for (size_t i = 0; i < twice.size(); ++i) EXPECT_DOUBLE_EQ(twice[i], 2 * once.w1[i]);
}

TEST_F(TapeTest, DeferredWeightStepGivesTheSame) {
  auto f = [&](const Tensor& t) { return two_layers(t); };
  EXPECT_EQ(grads_of(f), grads_of(f, true));
}

TEST_F(TapeTest, RecomputeGivesTheSame) {
  auto plain = [&](const Tensor& t) { return two_layers(t); };
  auto again = [&](const Tensor& t) {
    return recompute(ctx, {&t, 1}, [&](RankContext&, std::span<const Tensor> in) {
      return std::vector<Tensor>{two_layers(in[0])};
    })[0];
  };
  EXPECT_EQ(grads_of(plain), grads_of(again));
  EXPECT_EQ(grads_of(plain), grads_of(again, true));
}

TEST_F(TapeTest, RecomputeKeepsOnlyTheInput) {
  Tape tape(ctx);
  Tensor input = tape.watch(x);
  auto before = ctx.allocator->statistics().total.current;
  Tensor y;
  {
    TapeScope scope(ctx, &tape);
    y = recompute(ctx, {&input, 1}, [&](RankContext&, std::span<const Tensor> in) {
      return std::vector<Tensor>{two_layers(in[0])};
    })[0];
  }
  EXPECT_EQ(ctx.allocator->statistics().total.current - before, Allocator::rounded(y.bytes()));
}

// The first layer's result is made again, once, for the second, which is computed once.
TEST_F(TapeTest, RecomputeForAConsumerThatKeepsNothing) {
  int first = 0, second = 0;
  auto plain = [&](const Tensor& t) { return two_layers(t); };
  auto again = [&](const Tensor& t) {
    return recompute_for(
        ctx, {&t, 1},
        [&](RankContext&, std::span<const Tensor> in) {
          ++first;
          return std::vector<Tensor>{ops::linear(ctx, in[0], w1.get())};
        },
        [&](std::span<const Tensor> results) {
          ++second;
          return ops::linear(ctx, results[0], w2.get());
        });
  };
  EXPECT_EQ(grads_of(plain), grads_of(again));
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(grads_of(plain), grads_of(again, true));

  Tape tape(ctx);
  Tensor input = tape.watch(x);
  auto before = ctx.allocator->statistics().total.current;
  Tensor y;
  {
    TapeScope scope(ctx, &tape);
    y = again(input);
  }
  EXPECT_EQ(ctx.allocator->statistics().total.current - before, Allocator::rounded(y.bytes()));
}

TEST_F(TapeTest, OnReadyFiresWhenAllUsesContributed) {
  int ready = 0;
  w1.accumulator.on_ready = [&](RankContext&) { ++ready; };
  Tape tape(ctx);
  Tensor input = tape.watch(x), a, b;
  {
    TapeScope scope(ctx, &tape);
    a = ops::linear(ctx, input, w1.get());
    b = ops::linear(ctx, input, w1.get());
  }
  Tensor outputs[] = {a, b},
         grads[] = {ctx.full(a.shape(), DType::F64, 1), ctx.full(b.shape(), DType::F64, 1)};
  tape.backward_data(ctx, outputs, grads);
  EXPECT_EQ(ready, 1);
}

TEST_F(TapeTest, SharedInputSumsItsGradients) {
  Tape tape(ctx);
  Tensor input = tape.watch(x), a, b;
  {
    TapeScope scope(ctx, &tape);
    a = ops::linear(ctx, input, w1.get());
    b = ops::linear(ctx, input, w1.get());
  }
  Tensor g = random_tensor(ctx, a.shape(), 9);
  Tensor outputs[] = {a, b}, grads[] = {g, g};
  tape.backward_data(ctx, outputs, grads);
  auto both = values(tape.grad(input));
  Tape single(ctx);
  input = single.watch(x);
  {
    TapeScope scope(ctx, &single);
    a = ops::linear(ctx, input, w1.get());
  }
  single.backward(ctx, a, g);
  auto one = values(single.grad(input));
  for (size_t i = 0; i < one.size(); ++i) EXPECT_DOUBLE_EQ(both[i], 2 * one[i]);
}

TEST_F(TapeTest, HooksSeeAndReplaceGradients) {
  Tape tape(ctx);
  Tensor input = tape.watch(x), hidden, y;
  {
    TapeScope scope(ctx, &tape);
    hidden = ops::linear(ctx, input, w1.get());
    y = ops::linear(ctx, hidden, w2.get());
  }
  int calls = 0;
  tape.on_grad(hidden, [&](RankContext& c, const Tensor& grad) {
    ++calls;
    return c.zeros(grad.shape(), grad.dtype());
  });
  tape.backward(ctx, y, seed);
  EXPECT_EQ(calls, 1);
  for (double g : values(tape.grad(input))) EXPECT_EQ(g, 0);
}

TEST_F(TapeTest, FrozenWeightsKeepNothingAndStopTheWalk) {
  Tape tape(ctx);
  TapeScope scope(ctx, &tape);
  Tensor y = ops::linear(ctx, x, {w1.value, nullptr});
  EXPECT_EQ(tape.size(), 0u);
  EXPECT_FALSE(tape.tracks(y));
}

TEST_F(TapeTest, NoGradRecordsNothing) {
  Tape tape(ctx);
  TapeScope scope(ctx, &tape);
  {
    NoGrad no_grad(ctx);
    two_layers(x);
  }
  EXPECT_EQ(tape.size(), 0u);
}

class ToHost final : public SavedTensorPacker {
 public:
  std::unique_ptr<PackedTensor> pack(RankContext& ctx, const Tensor& tensor) override {
    struct Copy final : PackedTensor {
      std::vector<double> data;
      Shape shape;
      Tensor unpack(RankContext& c) override { return c.from_vector(data, shape); }
    };
    auto copy = std::make_unique<Copy>();
    copy->data = ctx.to_vector<double>(tensor);
    copy->shape = tensor.shape();
    ++packed;
    return copy;
  }
  int packed = 0;
};

TEST_F(TapeTest, SavedTensorsGoThroughThePacker) {
  auto f = [&](const Tensor& t) { return two_layers(t); };
  Grads plain = grads_of(f);
  ToHost packer;
  ctx.packer = &packer;
  EXPECT_EQ(grads_of(f), plain);
  EXPECT_EQ(packer.packed, 2);
}

TEST_F(TapeTest, BadUseIsNamed) {
  Tape tape(ctx), other(ctx);
  Tensor input = tape.watch(x), y;
  EXPECT_NE(error([&] { input.slice(0, 0, 1); }).find("on a tape"), std::string::npos);
  {
    TapeScope scope(ctx, &other);
    EXPECT_NE(error([&] { two_layers(input); }).find("belongs to another tape"), std::string::npos);
  }
  {
    TapeScope scope(ctx, &tape);
    y = two_layers(input);
  }
  EXPECT_NE(error([&] { tape.backward(ctx, y); }).find("must be given"), std::string::npos);
  EXPECT_NE(error([&] { tape.backward(ctx, y, x); }).find("does not fit"), std::string::npos);
}

TEST_F(TapeTest, BackwardTwiceIsAnError) {
  Tape tape(ctx);
  Tensor y;
  {
    TapeScope scope(ctx, &tape);
    y = two_layers(tape.watch(x));
  }
  tape.backward(ctx, y, seed);
  EXPECT_NE(error([&] { tape.backward(ctx, y, seed); }).find("ran backward already"), std::string::npos);
}

TEST_F(TapeTest, MetaDeviceCountsMemoryWithoutData) {
  RankContext meta(kMeta);
  Tensor big = meta.empty({1 << 20, 1 << 14}, DType::BF16);
  Weight w{meta.empty({1 << 14, 1 << 14}, DType::BF16), nullptr};
  Tensor y = ops::linear(meta, big, w);
  EXPECT_EQ(y.shape(), (Shape{1 << 20, 1 << 14}));
  EXPECT_GT(meta.allocator->statistics().total.peak, size_t{60} << 30);
}

}  // namespace
}  // namespace megatron
