#include <gtest/gtest.h>

#include "megatron/optimizer/adam.h"
#include "megatron/optimizer/lion.h"
#include "megatron/optimizer/sgd.h"

// What a step's rates mean for parameters of different groups, and that a closed gate changes nothing.
namespace megatron {
namespace {

class RatesTest : public ::testing::Test {
 protected:
  RatesTest() {
    for (const char* name : {"embedding.word_embeddings.weight", "decoder.w"})
      for (const int64_t rows : {1, 2}) {
        parameters.push_back(std::make_unique<Parameter>(
            name, rows == 1 ? ShardSpec::whole({3}) : ShardSpec::whole({2, 3}), Initializer::constant(0)));
        const Shape shape = parameters.back()->shard.local_shape;
        slices.push_back(
            {parameters.back().get(), 0, ctx.full(shape, DType::F64, 1.0), ctx.full(shape, DType::F64, 0.5)});
      }
    groups.decoupled = [](const Parameter& p) { return p.name.starts_with("embedding."); };
  }
  std::vector<double> firsts() {
    std::vector<double> values;
    for (const ParameterSlice& slice : slices) values.push_back(ctx.to_vector<double>(slice.value)[0]);
    return values;
  }

  RankContext ctx;
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<ParameterSlice> slices;  // embedding [3], [2, 3], decoder [3], [2, 3]
  ParameterGroups groups;
};

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << i;
}

// 1 − lr · (gradient + decay): SGD without momentum.
TEST_F(RatesTest, Sgd) {
  Sgd sgd(ctx, slices, {.momentum = 0, .weight_decay = 0.1, .groups = groups});
  sgd.step(ctx, {0.1, 0.2, std::nullopt});
  expect_near(firsts(), {1 - 0.2 * 0.5, 1 - 0.2 * 0.6, 1 - 0.1 * 0.5, 1 - 0.1 * 0.6});
}

TEST_F(RatesTest, WeightDecayOfTheStep) {
  groups.decayed = [](const Parameter&) { return true; };
  Sgd sgd(ctx, slices, {.momentum = 0, .weight_decay = 0.1, .groups = groups});
  sgd.step(ctx, {0.1, std::nullopt, 0.3});
  expect_near(firsts(), std::vector<double>(4, 1 - 0.1 * 0.8));
}

// Its first step moves every element by the learning rate.
TEST_F(RatesTest, Adam) {
  Adam adam(ctx, slices, {.epsilon = 1e-300, .weight_decay = 0.5, .groups = groups});
  adam.step(ctx, {0.1, 0.2, 0.0});
  expect_near(firsts(), {0.8, 0.8, 0.9, 0.9});
}

TEST_F(RatesTest, Lion) {
  Lion lion(ctx, slices, {.weight_decay = 0.5, .groups = groups});
  lion.step(ctx, {0.1, 0.2, std::nullopt});
  expect_near(firsts(), {0.8, 0.9 - 0.2, 0.9, 0.95 - 0.1});
}

TEST_F(RatesTest, AClosedGateChangesNothing) {
  Lion lion(ctx, slices, {});
  const Tensor gate = ctx.zeros({1}, DType::Bool);
  lion.step(ctx, 0.1, {}, gate);
  expect_near(firsts(), {1, 1, 1, 1});
  for (const OptimizerTensor& state : lion.state())
    EXPECT_EQ(ctx.to_vector<double>(state.tensor)[0], 0) << state.kind;
}

}  // namespace
}  // namespace megatron
