#include <set>

#include "parity/cases.h"

// Layers with states along the sequence, alone and among others, on every kind of layout against one rank.
namespace megatron {
namespace {

using namespace testing;

void shard_everything(Config& config) {
  config.ddp.use_megatron_fsdp = true;
  config.ddp.data_parallel_sharding_strategy = ShardingStrategy::optim_grads_params;
}

void recompute_layers(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::full;
  config.execution.recompute_method = RecomputeMethod::uniform;
  config.execution.recompute_num_layers = 1;
}

void recompute_norms(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"layernorm", "core_attn", "mlp", "gdn_norm_out"};
}

const std::vector<Layout> kLayouts = {
    {.name = "tp2", .tp = 2},
    {.name = "tp4 sp", .tp = 4, .sp = true},
    {.name = "tp2 sp, norms made again", .tp = 2, .sp = true, .change = recompute_norms},
    {.name = "pp2", .pp = 2},
    {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2, .sp = true},
    {.name = "dp2, all sharded", .dp = 2, .change = shard_everything},
    {.name = "layers made again", .change = recompute_layers}};

const std::vector<Layout> kContextLayouts = {
    {.name = "cp2", .cp = 2},
    {.name = "cp4", .cp = 4, .cp_kinds = {"all_gather"}},
    {.name = "tp2 sp cp2 pp2", .tp = 2, .pp = 2, .cp = 2, .sp = true},
    {.name = "cp2 dp2, all sharded", .dp = 2, .cp = 2, .change = shard_everything},
    {.name = "cp2, layers made again", .cp = 2, .change = recompute_layers}};

void check_every_layout(const Config& config) {
  check_layouts(config, kLayouts);
  check_layouts(config, kContextLayouts);
}

TEST(HybridParity, MambaAttentionAndMlp) { check_every_layout(small_hybrid("M-M*")); }

TEST(HybridParity, MambaNormedAsAWhole) {
  Config config = small_hybrid("MM");
  config.model.mamba_norm_full_width = true;
  config.model.share_embeddings_and_output_weights = false;
  check_every_layout(config);
}

TEST(HybridParity, DeltaNets) { check_every_layout(small_hybrid("G-*-")); }

// Gated DeltaNet-2: a decay and gates for each channel.
TEST(HybridParity, DeltaNetsThatGateChannels) {
  Config config = small_hybrid("G-*-");
  config.model.experimental_attention_variant = AttentionVariant::gdn2;
  check_every_layout(config);
  const auto batches = batches_for(config, 1);
  EXPECT_NE(train(config, {}, batches).losses, train(small_hybrid("G-*-"), {}, batches).losses);
}

void make_again(Config& config, std::vector<std::string> modules) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = std::move(modules);
}

// Each token of an M layer corrects the state twice.
TEST(HybridParity, GatedDeltaProducts) {
  Config config = small_hybrid("M-M*");
  config.model.gated_delta_product = true;
  config.model.gdp_num_householder = 2;
  check_every_layout(config);
  const std::vector<Layout> layouts = {
      {.name = "projections made again", .change = [](Config& c) { make_again(c, {"gdp_in_proj"}); }},
      {.name = "tp2 sp, convolutions made again",
       .tp = 2,
       .sp = true,
       .change = [](Config& c) { make_again(c, {"gdp_qkv"}); }},
      {.name = "cp2, both", .cp = 2, .change = [](Config& c) {
         make_again(c, {"gdp_in_proj", "gdp_qkv", "layernorm"});
       }}};
  check_layouts(config, layouts);
}

// One correction of a token is the delta rule: a product of one is a delta net but for its norm, so that
// further ones show in the loss.
TEST(HybridParity, FurtherCorrectionsCount) {
  Config config = small_hybrid("M-M*");
  config.model.gated_delta_product = true;
  const auto batches = batches_for(config, 1);
  std::set<double> losses;
  for (int64_t times : {1, 2, 3}) {
    config.model.gdp_num_householder = times;
    losses.insert(train(config, {}, batches).losses[0]);
  }
  EXPECT_EQ(losses.size(), 3u);
}

TEST(HybridParity, Experts) {
  Config config = small_hybrid("MEGE");
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 16;
  model.moe_shared_expert_intermediate_size = 24;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  const std::vector<Layout> layouts = {{.name = "ep2", .dp = 2, .ep = 2},
                                       {.name = "tp2 sp ep2", .tp = 2, .ep = 2, .etp = 1, .sp = true},
                                       {.name = "tp2 pp2", .tp = 2, .pp = 2},
                                       {.name = "cp2 ep2", .cp = 2, .ep = 2}};
  check_layouts(config, layouts);
}

// MTP layers of their own pattern behind the model's.
TEST(HybridParity, MtpLayers) {
  Config config = small_hybrid("M-M*");
  ModelConfig& model = config.model;
  model.hybrid_layer_pattern = "M-M*/*E/*E";
  model.mtp_num_layers = 2;
  model.mtp_loss_scaling_factor = 0.3;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 16;
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  const std::vector<Layout> layouts = {{.name = "tp2 sp ep2", .tp = 2, .ep = 2, .etp = 1, .sp = true},
                                       {.name = "pp2", .pp = 2},
                                       {.name = "cp2 ep2", .cp = 2, .ep = 2},
                                       {.name = "dp2, all sharded", .dp = 2, .change = shard_everything}};
  check_layouts(config, layouts);
}

// Sparse attention in some layers, multi-latent attention to all keys in another.
TEST(HybridParity, SparseAttention) {
  Config config = small_hybrid("MD-+");
  ModelConfig& model = config.model;
  model.multi_latent_attention = true;
  model.position_embedding_type = PositionEmbedding::rope;
  model.add_bias_linear = false;
  model.q_lora_rank = 12;
  model.kv_lora_rank = 10;
  model.qk_head_dim = 6;
  model.qk_pos_emb_head_dim = 4;
  model.v_head_dim = 5;
  model.dsa_indexer_n_heads = 3;
  model.dsa_indexer_head_dim = 6;
  model.dsa_indexer_topk = 3;
  model.dsa_indexer_loss_coeff = 0.5;
  const std::vector<Layout> layouts = {{.name = "tp2 sp", .tp = 2, .sp = true},
                                       {.name = "pp2", .pp = 2},
                                       {.name = "dp2, all sharded", .dp = 2, .change = shard_everything}};
  check_layouts(config, layouts);
  Config dense = config;
  dense.model.hybrid_layer_pattern = "M+-+";
  const auto batches = batches_for(config, 3);
  EXPECT_GT(std::abs(train(config, {}, batches).losses[2] - train(dense, {}, batches).losses[2]), 1e-6);
}

// The same on a GPU, alone and on ranks that share it.
TEST(CudaParity, LayersWithStates) {
  for (const char* pattern : {"M-M*", "G-*-"}) {
    SCOPED_TRACE(pattern);
    check_on_gpu(small_hybrid(pattern), kLayouts);
    check_narrow_on_gpu(small_hybrid(pattern));
  }
}

TEST(CudaParity, DeltaNetsThatGateChannels) {
  Config config = small_hybrid("G-*-");
  config.model.experimental_attention_variant = AttentionVariant::gdn2;
  check_on_gpu(config, kLayouts);
  check_narrow_on_gpu(config);
}

TEST(CudaParity, GatedDeltaProducts) {
  Config config = small_hybrid("M-M*");
  config.model.gated_delta_product = true;
  check_on_gpu(config, kLayouts);
  check_narrow_on_gpu(config);
}

// As in Qwen3-Next: every layer has a mixer and an MLP, and attention a gate.
TEST(HybridParity, LinearAndGatedAttention) {
  Config config = small_hybrid("****");
  ModelConfig& model = config.model;
  model.is_hybrid_model = false;
  model.hybrid_layer_pattern.clear();
  model.position_embedding_type = PositionEmbedding::rope;
  model.rotary_percent = 0.5;
  model.experimental_attention_variant = AttentionVariant::gated_delta_net;
  model.linear_attention_freq = Json(2);
  model.attention_output_gate = true;
  model.qk_layernorm = true;
  check_every_layout(config);
}

void check_packed_documents(const Config& config) {
  const auto batches = batches_for(config, 2);
  const Trained whole = train(config, {}, batches);
  struct Case {
    Layout layout;
    std::vector<int64_t> row;  // lengths of the documents
  };
  for (const Case& c : {Case{{.name = "tp2", .tp = 2}, {3, 5}}, Case{{.name = "cp2", .cp = 2}, {4, 4}}}) {
    SCOPED_TRACE(c.layout.name);
    const std::vector<std::vector<int64_t>> documents(static_cast<size_t>(config.train.global_batch_size),
                                                      c.row);
    const Trained packed = train(config, {}, batches, DType::F64, {}, kCpu, documents);
    const Trained same =
        train(apply(config, c.layout), sizes_of(c.layout), batches, DType::F64, {}, kCpu, documents);
    std::string where;
    EXPECT_LT(difference(packed.parameters, same.parameters, &where), 1e-9) << where;
    EXPECT_GT(difference(packed.parameters, whole.parameters, &where), 1e-6);
  }
}

// Rows that hold several documents: states begin anew with each.
TEST(HybridParity, PackedDocuments) {
  Config config = small_hybrid("M-G*");
  for (bool products : {false, true}) {
    config.model.gated_delta_product = products;
    check_packed_documents(config);
  }
}

// Groups that share B and C, and key heads that value heads share, may be fewer than the ranks.
TEST(HybridParity, MoreRanksThanSharedHeads) {
  Config config = small_hybrid("M-G*");
  config.model.mamba_num_groups = 1;
  config.model.linear_num_key_heads = 2;
  const std::vector<Layout> layouts = {{.name = "cp4", .cp = 4}, {.name = "cp2", .cp = 2}};
  check_layouts(config, layouts);
  config.model.experimental_attention_variant = AttentionVariant::gdn2;
  check_layouts(config, layouts);
}

// BERT's layers, without its data: norms of sums, no causal mask, a further layer before the logits.
Config bidirectional() {
  Config config = with_biases_and_layernorm();
  ModelConfig& model = config.model;
  model.layernorm_after_residual = true;
  model.embedding_layernorm = true;
  model.bidirectional_attention = true;
  model.masked_lm_head = true;
  model.output_multiplier = 0.5;
  model.share_embeddings_and_output_weights = true;
  return config;
}
TEST(HybridParity, NormsOfSumsAndBidirectionalAttention) { check_layouts(bidirectional(), kLayouts); }
TEST(CudaParity, NormsOfSumsAndBidirectionalAttention) {
  check_on_gpu(bidirectional(), kLayouts);
  check_narrow_on_gpu(bidirectional());
}

}  // namespace
}  // namespace megatron
