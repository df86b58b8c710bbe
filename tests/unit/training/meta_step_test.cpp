#include <gtest/gtest.h>

#include <map>

#include "megatron/models/decoder_shape.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/step/rank_trainer.h"

// A step on the meta device runs the real executor, ops and allocator without data: what it tells of costs
// and memory must be what a real step needs.
namespace megatron {
namespace {

Config small() {
  Config config;
  config.model = llama_style(
      {.layers = 3, .hidden = 64, .heads = 4, .groups = 2, .ffn = 160, .vocab = 256, .length = 32});
  config.train.micro_batch_size = 2;
  return config;
}

Config mixture() {
  Config config = small();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 48;
  model.moe_layer_freq = Json(2);
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_z_loss_coeff = 1e-3;
  model.moe_expert_capacity_factor = 1;
  model.moe_shared_expert_intermediate_size = 32;
  return config;
}

class CountCosts final : public Tracer {
 public:
  void op(const char* name, Phase, const Cost& cost) override {
    flops[name] += cost.flops;
    EXPECT_GT(cost.bytes, 0) << name;
  }
  std::map<std::string, double> flops;
};

struct Step {
  MemoryStatistics memory;
  std::map<std::string, double> flops;
};

Step run_step(const Config& config, Device device, DType dtype) {
  RankContext ctx(device);
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, dtype);
  std::vector<int64_t> tokens(
      static_cast<size_t>(2 * config.train.micro_batch_size * (config.model.seq_length + 1)), 7);
  CountCosts costs;
  ctx.tracer = &costs;
  trainer.step(ctx, tokens, 1e-3);
  return {ctx.allocator->statistics(), costs.flops};
}

void expect_memory_as_planned(const Config& config, DType dtype) {
  Step planned = run_step(config, kMeta, dtype), real = run_step(config, kCpu, dtype);
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    // Kernels take their scratch memory while they run: that alone is not planned.
    if (static_cast<MemoryTag>(tag) == MemoryTag::Workspace) continue;
    EXPECT_EQ(planned.memory.by_tag[tag].peak, real.memory.by_tag[tag].peak)
        << name_of(static_cast<MemoryTag>(tag));
    EXPECT_EQ(planned.memory.by_tag[tag].current, real.memory.by_tag[tag].current);
  }
}

TEST(MetaStep, PredictsTheMemoryOfARealStep) {
  for (DType dtype : {DType::F32, DType::BF16}) {
    expect_memory_as_planned(small(), dtype);
    expect_memory_as_planned(mixture(), dtype);
  }
}

TEST(MetaStep, CostsAreThoseOfARealStep) {
  for (const Config& config : {small(), mixture()})
    EXPECT_EQ(run_step(config, kMeta, DType::F32).flops, run_step(config, kCpu, DType::F32).flops);
}

TEST(MetaStep, GemmsAddUpToTheModelsFlops) {
  Config config = small();
  Step step = run_step(config, kMeta, DType::BF16);
  double tokens = static_cast<double>(2 * config.train.micro_batch_size * config.model.seq_length);
  double attention = 3 * 2 *
                     static_cast<double>(config.model.num_layers * config.model.num_attention_heads *
                                         config.model.kv_channels * config.model.seq_length);
  EXPECT_NEAR((step.flops["linear"] + step.flops["head"]) / tokens,
              model_flops_per_token(config.model, config.model.seq_length) - attention, 1.0);
}

// Two of the three layers have experts: each token passes two of four, the shared one, and the router.
TEST(MetaStep, ExpertsAddUpToTheModelsFlops) {
  Config config = mixture();
  const ModelConfig& model = config.model;
  Step step = run_step(config, kMeta, DType::BF16);
  double tokens = static_cast<double>(2 * config.train.micro_batch_size * model.seq_length);
  double attention = 3 * 2 *
                     static_cast<double>(model.num_layers * model.num_attention_heads * model.kv_channels *
                                         model.seq_length);
  double routers = 3.0 * 2 * 2 * static_cast<double>(model.hidden_size * model.num_moe_experts);
  EXPECT_NEAR((step.flops["linear"] + step.flops["grouped_linear"] + step.flops["head"]) / tokens,
              model_flops_per_token(model, model.seq_length) - attention + routers, 1.0);
  int64_t h = model.hidden_size, expert = 3 * h * model.moe_ffn_hidden_size,
          dense = 3 * h * model.ffn_hidden_size;
  Config plain = small();
  EXPECT_EQ(parameter_count(model) - parameter_count(plain.model),
            2 * (4 * expert + 4 * h + 3 * h * model.moe_shared_expert_intermediate_size - dense));
}

// CLIP's tower of two layers on four patches and the class token, and the two layers behind it.
TEST(MetaStep, TowersCountByTheirImages) {
  ModelConfig model = small().model;
  model.vision_tower = VisionTowerKind::clip;
  model.vision_num_layers = 2;
  model.vision_hidden_size = 16;
  model.vision_num_attention_heads = 2;
  model.vision_ffn_hidden_size = 64;
  model.vision_image_size = 28;
  model.vision_projector_size = 24;
  model.vision_output_size = 32;
  const double tower = 4 * (3 * 14 * 14) * 16 + 5 * 2 * (4 * 16 * 16 + 2 * 16 * 64) + 2 * 2 * (5 * 5 * 16),
               behind = 5 * 24 * (16 + 32);
  const PatchGrid image{1, 2, 2};
  const PatchGrid images[] = {image, image};
  EXPECT_EQ(tower_flops(model, {&image, 1}), 6 * (tower + behind));
  EXPECT_EQ(tower_flops(model, images), 2 * 6 * (tower + behind));
  model.freeze_vision_model = true;
  EXPECT_EQ(tower_flops(model, {&image, 1}), 2 * tower + 6 * behind);
  EXPECT_EQ(tower_flops(model, {}), 0);
}

TEST(MetaStep, AnEightBillionModelFitsIntoNoMemoryAtAll) {
  Config config = small();
  config.model = llama_style({.layers = 32,
                              .hidden = 4096,
                              .heads = 32,
                              .groups = 8,
                              .ffn = 14336,
                              .vocab = 128256,
                              .length = 4096});
  config.model.share_embeddings_and_output_weights = false;
  config.train.micro_batch_size = 1;
  Step step = run_step(config, kMeta, DType::BF16);
  double parameters = 8.03e9, gib = 1 << 30;
  EXPECT_NEAR(step.memory.by_tag[static_cast<int>(MemoryTag::Parameter)].peak / gib, 2 * parameters / gib,
              1.5);
  EXPECT_NEAR(step.memory.by_tag[static_cast<int>(MemoryTag::Optimizer)].peak / gib, 12 * parameters / gib,
              8);
}

}  // namespace
}  // namespace megatron
