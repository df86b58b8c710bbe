#include <cmath>

#include "megatron/transformer/mup.h"
#include "parity/cases.h"

// Maximal update parametrisation: what it scales, and that no layout changes it.
namespace megatron::testing {
namespace {

constexpr double kWidth = 2;

Config twice_as_wide() {
  Config config = small_gpt();
  config.model.use_mup = true;
  config.model.mup_base_hidden_size = config.model.hidden_size / static_cast<int64_t>(kWidth);
  config.model.mup_embedding_mult = 3;
  config.model.mup_base_head_dim = 4;
  config.model.share_embeddings_and_output_weights = false;
  return config;
}

TEST(Mup, ScalesOfTheModel) {
  const ModelConfig plain = twice_as_wide().model, scaled = with_mup(plain);
  EXPECT_DOUBLE_EQ(scaled.init_method_std, plain.init_method_std / std::sqrt(kWidth));
  EXPECT_DOUBLE_EQ(*scaled.embedding_init_method_std, plain.init_method_std);
  EXPECT_DOUBLE_EQ(*scaled.softmax_scale, 2.0 / static_cast<double>(plain.kv_channels));
  EXPECT_DOUBLE_EQ(*scaled.embedding_multiplier, 3);
  EXPECT_DOUBLE_EQ(*scaled.output_multiplier, 1 / kWidth);
}

TEST(MupParity, EveryLayout) {
  const std::vector<Layout> layouts = {{.name = "tp2 sp", .tp = 2, .sp = true},
                                       {.name = "pp2", .pp = 2},
                                       {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2}};
  check_layouts(twice_as_wide(), layouts);
}

// Logits of MTP layers are scaled as the model's: with a factor of nearly nothing little is learned.
TEST(MupParity, MtpLayers) {
  Config config = twice_as_wide();
  config.model.mtp_num_layers = 2;
  config.model.mtp_loss_scaling_factor = 1;
  config.model.position_embedding_type = PositionEmbedding::rope;
  const std::vector<Layout> layouts = {{.name = "tp2 sp", .tp = 2, .sp = true},
                                       {.name = "pp2 dp2", .pp = 2, .dp = 2}};
  check_layouts(config, layouts);
  config.model.mup_output_mult = 1e-12;
  double largest = 0;
  for (const auto& [name, gradient] : train(config, {}, batches_for(config, 1)).gradients)
    if (name.starts_with("mtp."))
      for (double value : gradient.values) largest = std::max(largest, std::abs(value));
  EXPECT_GT(largest, 0);
  EXPECT_LT(largest, 1e-10);
}

// The first step of Adam moves an element by the learning rate, whatever its gradient.
TEST(Mup, StepsOfMatricesAreSmaller) {
  Config config = twice_as_wide();
  config.optimizer.weight_decay = 0;
  const auto batches = batches_for(config, 1);
  const WholeTensors before = train_layout(config, {.lr = 0}, batches).parameters,
                     moved = train_layout(config, {.lr = 1e-3}, batches).parameters;
  for (const auto& [name, after] : moved) {
    double most = 0;
    for (size_t i = 0; i < after.values.size(); ++i)
      most = std::max(most, std::abs(after.values[i] - before.at(name).values[i]));
    const bool matrix = name.starts_with("decoder.layers.") && name.find("norm") == std::string::npos;
    EXPECT_NEAR(most, matrix ? 1e-3 / kWidth : 1e-3, 2e-5) << name;
  }
}

}  // namespace
}  // namespace megatron::testing
