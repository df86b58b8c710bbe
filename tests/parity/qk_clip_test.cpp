#include <cmath>

#include "parity/cases.h"
#include "parity/settings.h"

// Weights of queries and keys that are scaled down where scores are too large: every layout finds the same
// scores and scales alike.
namespace megatron::testing {
namespace {

// So low a threshold that scores of small random models are above it.
Config with_clip(Config config, double threshold = 0.01, double alpha = 0.3) {
  config.model.qk_clip = true;
  config.model.qk_clip_threshold = threshold;
  config.model.qk_clip_alpha = alpha;
  return config;
}

Config latent() {
  Config config = small_gpt();
  ModelConfig& model = config.model;
  model.multi_latent_attention = true;
  model.group_query_attention = false;
  model.rope_type = RopeType::rope;
  model.num_query_groups = 4;
  model.q_lora_rank = 12;
  model.kv_lora_rank = 8;
  model.qk_head_dim = 8;
  model.qk_pos_emb_head_dim = 4;
  model.v_head_dim = 8;
  return config;
}

double apart(const WholeTensors& a, const WholeTensors& b, const char* name) {
  return tensor_difference(a.at(name), b.at(name));
}

TEST(QkClipParity, GroupedQueries) {
  const std::vector<Layout> layouts = {
      {.name = "tp2 sp", .tp = 2, .sp = true},
      {.name = "tp4, groups shared", .tp = 4},
      {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2},
      {.name = "pp2 in four chunks", .pp = 2, .vpp = 2},
      {.name = "cp2 ring", .cp = 2},
      {.name = "cp2 all-gather", .cp = 2, .cp_kinds = {"all_gather"}},
      {.name = "cp2 Ulysses, dp2", .dp = 2, .cp = 2, .cp_kinds = {"a2a"}},
      {.name = "dp4 zero 3", .dp = 4, .change = [](Config& config) { shard<3>(config, 0); }},
      {.name = "dp2 zero 1, recomputed",
       .dp = 2,
       .change =
           [](Config& config) {
             shard<1>(config, 3000);
             config.execution.recompute_granularity = RecomputeGranularity::full;
             config.execution.recompute_method = RecomputeMethod::uniform;
             config.execution.recompute_num_layers = 1;
           }},
      {.name = "tp2, updated by the host",
       .tp = 2,
       .change = [](Config& config) { config.optimizer.optimizer_cpu_offload = true; }},
  };
  check_layouts(with_clip(small_gpt()), layouts);
}

TEST(QkClipParity, LatentAttentionUnderMuon) {
  Config config = with_clip(latent());
  config.optimizer.optimizer = OptimizerKind::muon;
  const std::vector<Layout> layouts = {
      {.name = "tp2 dp2", .tp = 2, .dp = 2},
      {.name = "pp2 cp2", .pp = 2, .cp = 2},
      {.name = "dp2 zero 1", .dp = 2, .change = [](Config& config) { shard<1>(config, 3000); }}};
  check_layouts(config, layouts);
}

// With one rate of zero nothing moves but by the clip, which brings the largest score to the threshold. A
// second step, of the same batch, finds it there and leaves weights alone.
TEST(QkClip, BringsScoresToTheThreshold) {
  for (const Config& plain : {small_gpt(), latent()}) {
    SCOPED_TRACE(plain.model.multi_latent_attention ? "latent" : "grouped");
    Config config = with_clip(plain, 1e-3);
    config.optimizer.weight_decay = 0;
    config.model.num_layers = 1;
    std::vector<std::vector<int64_t>> batches = batches_for(config, 1);
    batches.push_back(batches[0]);
    batches.push_back(batches[0]);
    ParityRun run{.lr = 0.0, .keep_history = true};
    const auto history = train_layout(config, run, batches).history;
    config.model.qk_clip = false;
    const auto start = train_layout(config, run, {batches[0]}).history;
    const char* weight = config.model.multi_latent_attention
                             ? "decoder.layers.0.self_attention.linear_q_up_proj.weight"
                             : "decoder.layers.0.self_attention.linear_qkv.weight";
    EXPECT_GT(apart(start[0].parameters, history[0].parameters, weight), 1e-2);
    EXPECT_LE(apart(history[0].parameters, history[1].parameters, weight), 1e-12);
    EXPECT_LE(apart(history[1].parameters, history[2].parameters, weight), 1e-12);
    EXPECT_EQ(apart(start[0].parameters, history[2].parameters, "decoder.layers.0.mlp.linear_fc1.weight"), 0);
  }
}

// Factors of rows: queries η^α, keys η^(1 − α), values and the MLP 1, with one η for a query group.
TEST(QkClip, ScalesQueriesAndKeys) {
  Config config = with_clip(small_gpt(), 1e-3, 0.25);
  config.optimizer.weight_decay = 0;
  const auto batches = batches_for(config, 1);
  const ParityRun run{.lr = 0.0, .keep_history = true};
  const auto clipped = train_layout(config, run, batches).history[0].parameters;
  config.model.qk_clip = false;
  const auto plain = train_layout(config, run, batches).history[0].parameters;
  const char* name = "decoder.layers.2.self_attention.linear_qkv.weight";
  const WholeTensor &a = plain.at(name), &b = clipped.at(name);
  const int64_t hidden = 32, head = 8, group = 4 * head;  // two heads of queries, a key, a value
  auto ratio = [&](int64_t row) {
    const auto at = static_cast<size_t>(row * hidden + 5);
    return b.values[at] / a.values[at];
  };
  for (int64_t g = 0; g < 2; ++g) {
    const double query = ratio(g * group), key = ratio(g * group + 2 * head);
    EXPECT_LT(query, 0.9);
    EXPECT_NEAR(std::pow(query, 3), key, 1e-9);  // (1 − α) / α
    for (int64_t row = 0; row < group; ++row)
      EXPECT_NEAR(ratio(g * group + row), row < 2 * head ? query : row < 3 * head ? key : 1, 1e-9) << row;
  }
}

}  // namespace
}  // namespace megatron::testing
