#include <gtest/gtest.h>

#include "megatron/models/decoder_shape.h"
#include "megatron/training/step/rank_trainer.h"

// What each layer adds to the peak of activation memory, with and without recompute and offload: exactly the
// tensors that it keeps.
namespace megatron {
namespace {

constexpr int64_t kTokens = 64, kHidden = 64, kFfn = 128, kHeads = 4, kGroups = 2, kChannels = 16;

Config model(int64_t layers) {
  Config config;
  config.model = llama_style({.layers = layers,
                              .hidden = kHidden,
                              .heads = kHeads,
                              .groups = kGroups,
                              .ffn = kFfn,
                              .vocab = 512,
                              .length = kTokens});
  config.train.micro_batch_size = 1;
  return config;
}

double peak(const Config& config, Device device, DType dtype = DType::F32) {
  RankContext ctx(device);
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, dtype);
  std::vector<int64_t> tokens(static_cast<size_t>(config.model.seq_length + 1), 7);
  trainer.step(ctx, tokens, 1e-3);
  return static_cast<double>(
      ctx.allocator->statistics().by_tag[static_cast<int>(MemoryTag::Activation)].peak);
}

// Elements (of four bytes) that one more layer adds.
double per_layer(void (*change)(Config&), Device device = kMeta) {
  Config small = model(4), large = model(8);
  for (Config* config : {&small, &large}) change(*config);
  return (peak(large, device) - peak(small, device)) / 4 / 4;
}

// The stream before each norm, each norm's result, q k v, the attention's result, what the gated MLP begins
// from and its activation; a number a token for each norm and a number a token and head for attention.
constexpr double kStream = kTokens * kHidden, kQkv = kTokens * (kHeads + 2 * kGroups) * kChannels,
                 kGateAndUp = 2.0 * kTokens * kFfn, kActive = kTokens * kFfn, kNormStatistics = kTokens,
                 kLse = kTokens * kHeads;
constexpr double kAll = 5 * kStream + kQkv + kGateAndUp + kActive + 2 * kNormStatistics + kLse;

void nothing(Config&) {}
void select(Config& config, std::vector<std::string> modules) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = std::move(modules);
}

TEST(ActivationMemory, OfALayerThatKeepsEverything) { EXPECT_EQ(per_layer(nothing), kAll); }

TEST(ActivationMemory, SelectiveRecompute) {
  EXPECT_EQ(per_layer([](Config& c) { select(c, {"layernorm"}); }), kAll - 2 * kStream);
  EXPECT_EQ(per_layer([](Config& c) { select(c, {"mlp"}); }), kAll - kGateAndUp - kActive);
  // A region that is computed again begins from the stream, where the norm is computed again, too.
  EXPECT_EQ(per_layer([](Config& c) {
              select(c, {"mlp", "layernorm"});
            }),
            kAll - kGateAndUp - kActive - 2 * kStream);
  EXPECT_EQ(per_layer([](Config& c) { select(c, {"mlp_act"}); }), kAll - kActive);
  EXPECT_EQ(per_layer([](Config& c) { select(c, {"core_attn"}); }), kAll - kLse);
  // Without a gate, too: what the activation is made of is kept, half of what a gate and up are.
  EXPECT_EQ(per_layer([](Config& c) {
              select(c, {"mlp_act"});
              c.model.gated_linear_unit = false;
              c.model.activation_func = Activation::gelu_tanh;
            }),
            kAll - kActive - kGateAndUp / 2);
}

TEST(ActivationMemory, FullRecompute) {
  EXPECT_EQ(per_layer([](Config& c) { c.execution.recompute_granularity = RecomputeGranularity::full; }),
            kStream);
  EXPECT_EQ(per_layer([](Config& c) {
              c.execution.recompute_granularity = RecomputeGranularity::full;
              c.execution.recompute_method = RecomputeMethod::uniform;
              c.execution.recompute_num_layers = 2;
            }),
            kStream / 2);
  // The first three layers of either model are recomputed: the others keep everything.
  EXPECT_EQ(per_layer([](Config& c) {
              c.execution.recompute_granularity = RecomputeGranularity::full;
              c.execution.recompute_method = RecomputeMethod::block;
              c.execution.recompute_num_layers = 3;
            }),
            kAll);
}

// Experts: each token goes to two of four.
constexpr int64_t kExpertFfn = 48, kSharedFfn = 32, kChoices = 2;

void experts(Config& config) {
  config.model.num_moe_experts = 4;
  config.model.moe_router_topk = kChoices;
  config.model.moe_ffn_hidden_size = kExpertFfn;
  config.model.moe_shared_expert_intermediate_size = kSharedFfn;
}

double with_experts(std::vector<std::string> modules) {
  Config small = model(4), large = model(8);
  for (Config* config : {&small, &large}) {
    experts(*config);
    if (modules.empty()) continue;
    config->execution.recompute_granularity = RecomputeGranularity::selective;
    config->execution.recompute_modules = modules;
  }
  return (peak(large, kMeta) - peak(small, kMeta)) / 4 / 4;
}

TEST(ActivationMemory, RecomputeOfExperts) {
  double all = with_experts({});
  EXPECT_EQ(with_experts({"moe"}), kAll - kGateAndUp - kActive);  // nothing but what the router begins from
  EXPECT_EQ(with_experts({"moe", "layernorm"}), kAll - kGateAndUp - kActive - 2 * kStream);
  EXPECT_EQ(with_experts({"moe_act"}), all - static_cast<double>(kTokens * kChoices * kExpertFfn));
  EXPECT_EQ(with_experts({"shared_experts"}), all - static_cast<double>(3 * kTokens * kSharedFfn));
  EXPECT_EQ(with_experts({"mlp_act"}), all - static_cast<double>(kTokens * kSharedFfn));
}

// Layers in fp8 keep the activation in one byte, those that stay in bf16 can make it again: each one more of
// these saves it.
TEST(ActivationMemory, RecomputeOfActivationsBesideFp8) {
  auto saved = [](int64_t narrow) {
    Config config = model(6);
    config.precision.fp8 = Fp8Format::hybrid;
    config.precision.fp8_recipe = Fp8Recipe::tensorwise;
    config.precision.first_last_layers_bf16 = true;
    config.precision.num_layers_at_start_in_bf16 = narrow;
    config.precision.num_layers_at_end_in_bf16 = 1;
    const double all = peak(config, kMeta, DType::BF16);
    select(config, {"mlp_act"});
    return (all - peak(config, kMeta, DType::BF16)) / 2;
  };
  EXPECT_EQ(saved(4) - saved(1), 3 * kActive);
}

TEST(ActivationMemory, Offload) {
  for (Device device : {kMeta, kCpu})
    EXPECT_EQ(per_layer(
                  [](Config& c) {
                    c.execution.cpu_offloading = true;
                    c.execution.cpu_offloading_num_layers = c.model.num_layers;
                  },
                  device),
              2 * kNormStatistics + kLse);
}

}  // namespace
}  // namespace megatron
