#include "megatron/transformer/moe/moe_layer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "megatron/transformer/layer_pattern.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::random_tensor;

ModelConfig small() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 6;
  config.ffn_hidden_size = config.moe_ffn_hidden_size = 5;
  config.gated_linear_unit = true;
  config.activation_func = Activation::silu;
  config.add_bias_linear = false;
  config.num_moe_experts = 4;
  config.init_method_std = 0.5;
  return config;
}

SeqInfo one_sequence(RankContext& ctx, int64_t tokens) {
  SeqInfo seq{.batch = 1, .length = tokens};
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < tokens; ++i) positions.push_back(i);
  seq.positions = ctx.from_vector(positions, {tokens});
  return seq;
}

void prepare(RankContext& ctx, MoeLayer& layer) {
  for (Parameter* parameter : layer.parameters()) {
    parameter->allocate(ctx, DType::F64);
    parameter->initialize(ctx, 11);
    parameter->allocate_gradient(ctx);
  }
}

// Every parameter and the input against central differences.
void check_gradients(const ModelConfig& config) {
  RankContext ctx;
  MoeLayer layer("mlp", 0, config, {});
  prepare(ctx, layer);
  int64_t tokens = 7;
  Tensor x = random_tensor(ctx, {tokens, 6}, 3), direction = random_tensor(ctx, {tokens, 6}, 4);
  SeqInfo seq = one_sequence(ctx, tokens);
  auto value = [&] {
    auto y = ctx.to_vector<double>(layer.forward(ctx, x, seq)), d = ctx.to_vector<double>(direction);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * d[i];
    return sum;
  };
  Tape tape(ctx);
  Tensor watched = tape.watch(x), y;
  {
    TapeScope scope(ctx, &tape);
    y = layer.forward(ctx, watched, seq);
  }
  tape.backward_data(ctx, std::vector{y}, std::vector{direction});
  auto compare = [&](const Tensor& at, const Tensor& gradient, const std::string& name) {
    auto found = ctx.to_vector<double>(gradient);
    double* data = at.data<double>();
    for (size_t i = 0; i < found.size(); ++i) {
      double kept = std::exchange(data[i], data[i] + 1e-5), above = value();
      data[i] = kept - 1e-5;
      double below = value(), numeric = (above - below) / 2e-5;
      data[i] = kept;
      ASSERT_NEAR(found[i], numeric, 1e-7 * std::max(1.0, std::abs(numeric))) << name << " element " << i;
    }
  };
  compare(x, tape.grad(watched), "input");
  for (Parameter* parameter : layer.parameters())
    if (parameter->trainable) compare(parameter->value, parameter->accumulator.main_grad, parameter->name);
}

TEST(MoeLayer, GradientsMatchDifferences) { check_gradients(small()); }

TEST(MoeLayer, GradientsOfSharedExpertsWithGate) {
  ModelConfig config = small();
  config.moe_router_score_function = RouterScore::sigmoid;
  config.moe_router_topk_scaling_factor = 2.5;
  config.moe_shared_expert_intermediate_size = 4;
  config.moe_shared_expert_gate = true;
  check_gradients(config);
}

TEST(MoeLayer, GradientsWithBiasesAndCapacity) {
  ModelConfig config = small();
  config.gated_linear_unit = false;
  config.activation_func = Activation::gelu;
  config.add_bias_linear = true;
  config.moe_expert_capacity_factor = 0.6;
  check_gradients(config);
}

TEST(MoeLayer, GradientsWithProbabilitiesOnTheInput) {
  ModelConfig config = small();
  config.moe_router_topk = 1;
  config.moe_router_pre_softmax = true;
  config.moe_apply_probs_on_input = true;
  check_gradients(config);
}

// The weights of the router in a model of fp32 may be used in fp64.
TEST(MoeLayer, TheRouterMayBeWider) {
  RankContext ctx;
  ModelConfig config = small();
  std::vector<float> outputs[2], gradients[2];
  for (int wide : {0, 1}) {
    config.moe_router_dtype = wide ? RouterDType::fp64 : RouterDType::none;
    MoeLayer layer("mlp", 0, config, {});
    for (Parameter* parameter : layer.parameters()) {
      parameter->allocate(ctx, DType::F32);
      parameter->initialize(ctx, 11);
      parameter->allocate_gradient(ctx);
    }
    Tape tape(ctx);
    Tensor x = random_tensor(ctx, {7, 6}, 3, DType::F32), watched = tape.watch(x), y;
    {
      TapeScope scope(ctx, &tape);
      y = layer.forward(ctx, watched, one_sequence(ctx, 7));
    }
    outputs[wide] = ctx.to_vector<float>(y);
    tape.backward_data(ctx, std::vector{y}, std::vector{ctx.full({7, 6}, DType::F32, 1)});
    gradients[wide] = ctx.to_vector<float>(layer.parameters()[0]->accumulator.main_grad);
  }
  for (size_t i = 0; i < outputs[0].size(); ++i) EXPECT_NEAR(outputs[0][i], outputs[1][i], 1e-5);
  for (size_t i = 0; i < gradients[0].size(); ++i) EXPECT_NEAR(gradients[0][i], gradients[1][i], 1e-4);
}

TEST(MoeLayer, NoTokensAreNoProblem) {
  RankContext ctx;
  ModelConfig config = small();
  config.moe_aux_loss_coeff = {1e-2};
  config.moe_z_loss_coeff = 1e-3;
  MoeLayer layer("mlp", 0, config, {});
  prepare(ctx, layer);
  Tape tape(ctx);
  Tensor x = tape.watch(ctx.empty({0, 6}, DType::F64)), y;
  {
    TapeScope scope(ctx, &tape);
    y = layer.forward(ctx, x, one_sequence(ctx, 0));
  }
  EXPECT_EQ(y.shape(), Shape({0, 6}));
}

// A step in which two experts get everything lowers their bias, and raises that of the others.
TEST(MoeLayer, TheExpertBiasMovesAgainstTheLoad) {
  RankContext ctx;
  ModelConfig config = small();
  config.moe_router_score_function = RouterScore::sigmoid;
  config.moe_router_enable_expert_bias = true;
  config.moe_router_bias_update_rate = 0.25;
  MoeLayer layer("mlp", 0, config, {});
  prepare(ctx, layer);
  Parameter* bias = nullptr;
  for (Parameter* parameter : layer.parameters())
    if (parameter->name == "mlp.router.expert_bias") bias = parameter;
  ASSERT_TRUE(bias && !bias->trainable);
  for (Parameter* parameter : layer.parameters())
    if (parameter->name == "mlp.router.weight")
      for (int64_t i = 0; i < 12; ++i) parameter->value.data<double>()[i] = i < 6 ? 8 : 6;
  Tensor x = ctx.full({5, 6}, DType::F64, 0.5);
  layer.forward(ctx, random_tensor(ctx, {5, 6}, 3), one_sequence(ctx, 5));  // without a tape: does not count
  {
    Tape tape(ctx);
    TapeScope scope(ctx, &tape);
    layer.forward(ctx, x, one_sequence(ctx, 5));
  }
  const auto gate = [&](bool open) { return ctx.full({1}, DType::Bool, open); };
  layer.finish_batch(ctx);
  layer.update_expert_bias(ctx, gate(false));
  EXPECT_EQ(ctx.to_vector<double>(bias->value), (std::vector<double>{0, 0, 0, 0})) << "a skipped update";
  layer.update_expert_bias(ctx, gate(true));
  // Experts 0 and 1 were chosen by all tokens: load 5, 5, 0, 0.
  EXPECT_EQ(ctx.to_vector<double>(bias->value), (std::vector<double>{-0.25, -0.25, 0.25, 0.25}));
  layer.finish_batch(ctx);  // a step without tokens moves nothing
  layer.update_expert_bias(ctx, gate(true));
  EXPECT_EQ(ctx.to_vector<double>(bias->value), (std::vector<double>{-0.25, -0.25, 0.25, 0.25}));
}

TEST(MoeLayer, PatternsOfLayers) {
  ModelConfig config = small();
  EXPECT_TRUE(has_experts(config, 0) && has_experts(config, 1));
  config.moe_layer_freq = Json(2);
  EXPECT_TRUE(has_experts(config, 0) && !has_experts(config, 1) && has_experts(config, 2));
  config.moe_layer_freq = Json(Json::Array{Json(0), Json(1)});
  EXPECT_TRUE(!has_experts(config, 0) && has_experts(config, 1));
  config.num_moe_experts = 0;
  EXPECT_FALSE(has_experts(config, 1));
}

}  // namespace
}  // namespace megatron
