#include <cmath>

#include "parity/cases.h"
#include "parity/settings.h"

// Multi-latent attention on every kind of layout against one rank.
namespace megatron {
namespace {

using namespace testing;

Config latent_gpt() {
  Config config = small_gpt();
  ModelConfig& model = config.model;
  model.multi_latent_attention = true;
  model.group_query_attention = false;
  model.num_query_groups = 4;
  model.q_lora_rank = 12;
  model.kv_lora_rank = 10;
  model.qk_head_dim = 6;
  model.qk_pos_emb_head_dim = 4;
  model.v_head_dim = 5;
  model.rope_type = RopeType::rope;
  model.layernorm_epsilon = 1e-5;
  model.latent_norm_epsilon = 1e-6;
  return config;
}

Config without_query_latent() {
  Config config = latent_gpt();
  config.model.q_lora_rank.reset();
  config.model.rope_type = RopeType::yarn;
  config.model.rotary_scaling_factor = 4;
  config.model.original_max_position_embeddings = 4;
  config.model.mscale_all_dim = 1;
  config.model.attention_dropout = 0.2;
  return config;
}

// As DeepSeek-V3: a dense layer, then experts chosen by groups, shared ones beside them.
Config latent_mixture() {
  Config config = latent_gpt();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_layer_freq = Json::parse("[0, 1, 1, 1]");
  model.moe_ffn_hidden_size = 16;
  model.moe_router_topk = 2;
  model.moe_router_score_function = RouterScore::sigmoid;
  model.moe_router_enable_expert_bias = true;
  model.moe_router_num_groups = 2;
  model.moe_router_group_topk = 1;
  model.moe_router_group_score_topk = 2;
  model.moe_router_topk_scaling_factor = 2.5;
  model.moe_shared_expert_intermediate_size = 24;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_router_load_balancing_type = {"seq_aux_loss"};
  model.moe_aux_loss_coeff = {1e-2};
  return config;
}

void recompute_core(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"core_attn", "layernorm"};
}

// Latent vectors are kept, and what comes of them is made again.
void recompute_up(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"mla_up_proj"};
}
void recompute_up_and_core(Config& config) {
  recompute_core(config);
  config.execution.recompute_modules.push_back("mla_up_proj");
}
void recompute_up_deferred(Config& config) {
  recompute_up(config);
  config.execution.recompute_modules.push_back("layernorm");
  config.parallel.pipeline_schedule = PipelineSchedule::zb_h1;
}
void recompute_up_sharded(Config& config) {
  recompute_up(config);
  config.ddp.use_distributed_optimizer = config.ddp.use_megatron_fsdp = true;
  config.ddp.data_parallel_sharding_strategy = ShardingStrategy::optim_grads_params;
}

void recompute_up_and_offload(Config& config) {
  recompute_up(config);
  config.execution.fine_grained_activation_offloading = true;
  config.execution.offload_modules = {"attn_norm", "qkv_linear", "core_attn", "attn_proj"};
  config.execution.min_offloaded_tensor_size = 0;
}

const std::vector<Layout> kDense = {
    {.name = "tp2 sp, up made again, the rest on the host",
     .tp = 2,
     .sp = true,
     .change = recompute_up_and_offload},
    {.name = "up made again", .change = recompute_up},
    {.name = "tp2 sp, up and core made again", .tp = 2, .sp = true, .change = recompute_up_and_core},
    {.name = "tp2 pp2 zb-h1, up made again", .tp = 2, .pp = 2, .change = recompute_up_deferred},
    {.name = "dp2 zero 3, up made again", .dp = 2, .change = recompute_up_sharded},
    {.name = "cp2 a2a, up made again", .cp = 2, .change = recompute_up, .cp_kinds = {"a2a"}},
    {.name = "cp2, up made again", .cp = 2, .change = recompute_up},
    {.name = "tp2", .tp = 2},
    {.name = "tp2 sp", .tp = 2, .sp = true},
    {.name = "tp4 sp, core recomputed", .tp = 4, .sp = true, .change = recompute_core},
    {.name = "pp2", .pp = 2},
    {.name = "pp2 vpp2", .pp = 2, .vpp = 2},
    {.name = "cp2", .cp = 2},
    {.name = "cp2 all_gather", .cp = 2, .cp_kinds = {"all_gather"}},
    {.name = "cp2 a2a", .cp = 2, .cp_kinds = {"a2a"}},
    {.name = "tp2 sp cp2", .tp = 2, .cp = 2, .sp = true},
    {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2, .sp = true}};

TEST(LatentParity, EveryLayoutTrainsLikeOneRank) { check_layouts(latent_gpt(), kDense); }

TEST(LatentParity, WithoutALatentForQueries) { check_layouts(without_query_latent(), kDense); }

TEST(LatentParity, WithExperts) {
  const std::vector<Layout> layouts = {{.name = "ep2", .dp = 2, .ep = 2},
                                       {.name = "tp2 sp ep2", .tp = 2, .ep = 2, .etp = 1, .sp = true},
                                       {.name = "tp2 pp2 ep2", .tp = 2, .pp = 2, .ep = 2, .etp = 1},
                                       {.name = "cp2 ep2", .cp = 2, .ep = 2},
                                       {.name = "pp2 dp2 ep2", .pp = 2, .dp = 2, .ep = 2}};
  check_layouts(latent_mixture(), layouts);
}

// DeepSeek's sparse attention: three of eight keys, and the loss of its indexer.
Config sparse_gpt() {
  Config config = latent_gpt();
  ModelConfig& model = config.model;
  model.experimental_attention_variant = AttentionVariant::dsa;
  model.dsa_indexer_n_heads = 3;
  model.dsa_indexer_head_dim = 6;
  model.dsa_indexer_topk = 3;
  model.dsa_indexer_loss_coeff = 0.5;
  return config;
}

TEST(LatentParity, SparseAttention) {
  const auto whole_layers = [](Config& config) {
    config.execution.recompute_granularity = RecomputeGranularity::full;
    config.execution.recompute_method = RecomputeMethod::uniform;
    config.execution.recompute_num_layers = 1;
  };
  const auto chosen_alone = [](Config& config) { config.model.dsa_indexer_use_sparse_loss = true; };
  const std::vector<Layout> layouts = {
      {.name = "layers made again", .change = whole_layers},
      {.name = "tp2", .tp = 2},
      {.name = "tp2 sp", .tp = 2, .sp = true},
      {.name = "dp2 zero 3", .dp = 2, .change = [](Config& config) { shard<3>(config, 1000); }},
      {.name = "tp2 sp pp2", .tp = 2, .pp = 2, .sp = true}};
  check_layouts(sparse_gpt(), layouts);
  Config other = sparse_gpt();
  chosen_alone(other);
  const std::vector<Layout> one = {{.name = "tp2 sp", .tp = 2, .sp = true}};
  check_layouts(other, one);
}

template <int64_t Layers>
void recompute_regions(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::full;
  config.execution.recompute_method = RecomputeMethod::uniform;
  config.execution.recompute_num_layers = Layers;
}

// The first of every two layers chooses keys for both.
TEST(LatentParity, SparseAttentionToKeysThatAnotherLayerChose) {
  Config config = sparse_gpt();
  config.model.dsa_indexer_topk_freq = 2;
  const std::vector<Layout> layouts = {{.name = "layers made again", .change = recompute_regions<1>},
                                       {.name = "pairs made again", .change = recompute_regions<2>},
                                       {.name = "tp2 sp", .tp = 2, .sp = true},
                                       {.name = "tp2 pp2", .tp = 2, .pp = 2}};
  check_layouts(config, layouts);
  const auto batches = batches_for(config, 2);
  const Trained shared = train(config, {}, batches), own = train(sparse_gpt(), {}, batches);
  EXPECT_GT(std::abs(shared.losses[0] - own.losses[0]), 1e-6);
  EXPECT_LT(shared.parameters.size(), own.parameters.size());  // half of the indexers
}

// With as many keys as there are, it is latent attention, whatever the indexer learns; with fewer it is not.
TEST(LatentParity, SparseAttentionToAllKeysIsDense) {
  Config all = sparse_gpt();
  all.model.dsa_indexer_topk = 100;
  const auto batches = batches_for(all, 3);
  const Trained dense = train(latent_gpt(), {}, batches), sparse = train(sparse_gpt(), {}, batches),
                whole = train(all, {}, batches);
  for (size_t i = 0; i < batches.size(); ++i)
    EXPECT_NEAR(whole.losses[i], dense.losses[i], 1e-12) << "step " << i;
  EXPECT_GT(std::abs(sparse.losses[2] - dense.losses[2]), 1e-6);
  // The loss that the indexer learns by is reported.
  const auto indexer_loss = [](const Trained& trained, size_t step) {
    for (const LossTerm& term : trained.reports[step].terms)
      if (term.name == "indexer loss") return term.value;
    return std::nan("");
  };
  EXPECT_GT(indexer_loss(sparse, 0), 0);
  EXPECT_TRUE(std::isnan(indexer_loss(dense, 0)));
}

// The norm of all heads at once needs the squares of every rank.
TEST(WideNormParity, EveryLayoutTrainsLikeOneRank) {
  Config config = small_gpt();
  config.model.qk_layernorm = config.model.qk_layernorm_full_width = true;
  const std::vector<Layout> layouts = {{.name = "tp2", .tp = 2},
                                       {.name = "tp2 sp", .tp = 2, .sp = true},
                                       {.name = "tp2 pp2", .tp = 2, .pp = 2},
                                       {.name = "cp2", .cp = 2}};
  check_layouts(config, layouts);
}

}  // namespace
}  // namespace megatron
