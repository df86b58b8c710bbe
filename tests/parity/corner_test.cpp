#include <gtest/gtest.h>

#include "parity/cases.h"
#include "parity/settings.h"

// Layouts that no covering design holds: many settings at their ends at once.
namespace megatron::testing {
namespace {

void recompute(Config& config, std::vector<std::string> modules) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = std::move(modules);
}

void recompute_layers(Config& config, RecomputeMethod method, int64_t layers) {
  config.execution.recompute_granularity = RecomputeGranularity::full;
  config.execution.recompute_method = method;
  config.execution.recompute_num_layers = layers;
}

template <int level>
void zero(Config& config) {
  shard<level>(config, 777);
}

template <int level>
void zero_with_recomputed_layers(Config& config) {
  zero<level>(config);
  recompute_layers(config, RecomputeMethod::uniform, 2);
}

Config clipped(Config config) {
  config.optimizer.clip_grad = 1e-3;  // every step is clipped
  return config;
}

// Seven layers: no pipeline divides them.
Config seven_layers() {
  Config config;
  config.model =
      llama_style({.layers = 7, .hidden = 24, .heads = 6, .groups = 2, .ffn = 36, .vocab = 31, .length = 12});
  config.model.make_vocab_size_divisible_by = 1;
  config.model.hidden_dropout = 0.1;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 12;
  config.optimizer.weight_decay = 0.1;
  return config;
}

TEST(CornerParity, UnevenStages) {
  const Layout layouts[] = {
      {.name = "pp3 vpp2 uneven", .pp = 3, .vpp = 2, .stages = "E|tt|t||ttt|tL", .micro_batch = 1},
      {.name = "pp2 vpp3 with empty chunks", .pp = 2, .vpp = 3, .stages = "Ettt|||tt|t|tL", .micro_batch = 1},
      {.name = "pp2 vpp4 tp2 sp dp2 zero 2",
       .tp = 2,
       .pp = 2,
       .dp = 2,
       .vpp = 4,
       .sp = true,
       .stages = "E|t|t|t|t|t|tt|L",
       .micro_batch = 1,
       .change = zero<2>},
      {.name = "zb-v uneven, tied ends on one rank, zero 3",
       .pp = 3,
       .dp = 2,
       .vpp = 2,
       .stages = "Et|ttt|t||t|tL",
       .micro_batch = 1,
       .change =
           [](Config& config) {
             zero_with_recomputed_layers<3>(config);
             use<PipelineSchedule::zb_v>(config);
           }},
      {.name = "pp4 zb-h1 first and last stage by number",
       .pp = 4,
       .micro_batch = 1,
       .change =
           [](Config& config) {
             config.parallel.num_layers_in_first_pipeline_stage = 1;
             config.parallel.num_layers_in_last_pipeline_stage = 2;
             use<PipelineSchedule::zb_h1>(config);
           }},
      {.name = "pp3 both ends count as layers",
       .pp = 3,
       .micro_batch = 1,
       .change =
           [](Config& config) {
             config.parallel.account_for_embedding_in_pipeline_split = true;
             config.parallel.account_for_loss_in_pipeline_split = true;
           }},
      {.name = "groups of five micro-batches",
       .pp = 2,
       .vpp = 2,
       .stages = "Ett|tt|tt|tL",
       .micro_batch = 1,
       .change = [](Config& config) { config.parallel.microbatch_group_size_per_vp_stage = 5; }},
  };
  check_layouts(clipped(seven_layers()), layouts);
}

TEST(CornerParity, ZeroWithTiedEmbeddingsAndRecompute) {
  const Layout layouts[] = {
      {.name = "zero 3", .dp = 3, .micro_batch = 1, .change = zero_with_recomputed_layers<3>},
      {.name = "zero 3 in two copies",
       .dp = 4,
       .micro_batch = 1,
       .instances = 2,
       .change = zero_with_recomputed_layers<3>},
      {.name = "zero 3, gpipe",
       .pp = 2,
       .dp = 2,
       .stages = "Ettt|ttttL",
       .micro_batch = 1,
       .change =
           [](Config& config) {
             zero_with_recomputed_layers<3>(config);
             use<PipelineSchedule::gpipe>(config);
           }},
      {.name = "zero 2, cp2 tp2 sp",
       .tp = 2,
       .dp = 2,
       .cp = 2,
       .sp = true,
       .micro_batch = 1,
       .change = zero_with_recomputed_layers<2>},
      {.name = "zero 3 in two copies of cp3",
       .dp = 2,
       .cp = 3,
       .micro_batch = 1,
       .instances = 2,
       .change = zero<3>},
      {.name = "dp12, buckets smaller than ranks",
       .dp = 12,
       .micro_batch = 1,
       .change =
           [](Config& config) {
             zero<3>(config);
             config.ddp.bucket_size = 5;
           }},
  };
  check_layouts(clipped(seven_layers()), layouts);
}

// One key head, and six query heads, over tensor and context ranks.
TEST(CornerParity, FewKeyHeads) {
  Config config = seven_layers();
  config.model.num_query_groups = 1;
  config.model.kv_channels = 6;
  config.model.qk_layernorm = config.model.add_qkv_bias = true;
  config.model.attention_dropout = 0.2;
  const Layout layouts[] = {
      {.name = "tp6 sp cp2", .tp = 6, .cp = 2, .sp = true, .micro_batch = 1},
      {.name = "tp6 sp cp2 gathered",
       .tp = 6,
       .cp = 2,
       .sp = true,
       .micro_batch = 1,
       .cp_kinds = {"all_gather"}},
      {.name = "tp3 sp, overlapped, zero 3",
       .tp = 3,
       .dp = 2,
       .sp = true,
       .micro_batch = 1,
       .change =
           [](Config& c) {
             zero<3>(c);
             c.parallel.tp_comm_overlap = true;
             recompute(c, {"core_attn", "layernorm", "mlp"});
           }},
      {.name = "tp2 pp2 cp3",
       .tp = 2,
       .pp = 2,
       .cp = 3,
       .stages = "Ettt|ttttL",
       .micro_batch = 1,
       .change = use<PipelineSchedule::zb_h1>},
  };
  check_layouts(config, layouts);
}

// Fewer words than ranks: some ranks hold nothing but padding.
TEST(CornerParity, VocabularySmallerThanRanks) {
  Config config = seven_layers();
  config.model.vocab_size = 3;
  config.model.kv_channels = 6;
  const Layout layouts[] = {
      {.name = "tp6", .tp = 6, .micro_batch = 1},
      {.name = "tp6 sp zero 3", .tp = 6, .dp = 2, .sp = true, .micro_batch = 1, .change = zero<3>},
  };
  check_layouts(config, layouts);
  config.model.share_embeddings_and_output_weights = false;
  check_layouts(config, layouts);
}

Config corner_mixture() {
  Config config = seven_layers();
  ModelConfig& model = config.model;
  model.num_layers = 4;
  model.seq_length = model.max_position_embeddings = 16;
  model.vocab_size = 499;  // a token that follows itself is as likely as before, to rounding: a tie
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 20;
  model.moe_layer_freq = Json(Json::Array{Json(1), Json(0), Json(1), Json(1)});
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_expert_capacity_factor = 0.6;
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_z_loss_coeff = 1e-3;
  model.moe_shared_expert_intermediate_size = 12;
  config.train.micro_batch_size = 3;
  return config;
}

void gathered(Config& config) { config.model.moe_token_dispatcher_type = TokenDispatcher::allgather; }

const Layout kMixed[] = {
    {.name = "ep2 etp2 over tp2 cp2", .tp = 2, .cp = 2, .ep = 2, .etp = 2, .micro_batch = 3},
    {.name = "ep2 etp2 over tp2 cp2, sp", .tp = 2, .cp = 2, .ep = 2, .etp = 2, .sp = true, .micro_batch = 3},
    {.name = "ep2 etp2 over cp4", .cp = 4, .ep = 2, .etp = 2, .micro_batch = 3, .change = gathered},
    {.name = "etp4 over tp2 cp2, pp2",
     .tp = 2,
     .pp = 2,
     .cp = 2,
     .etp = 4,
     .micro_batch = 3,
     .change = use<PipelineSchedule::zb_h1>},
    {.name = "ep2 etp2 pp2 vpp2 cp2 tp2 zero 3",
     .tp = 2,
     .pp = 2,
     .dp = 1,
     .vpp = 2,
     .cp = 2,
     .ep = 2,
     .etp = 1,
     .sp = true,
     .micro_batch = 3,
     .change =
         [](Config& c) {
           zero<3>(c);
           recompute(c, {"moe", "layernorm", "core_attn"});
         }},
    {.name = "ep4 over dp2 cp2, experts in two copies none",
     .tp = 2,
     .dp = 2,
     .cp = 2,
     .ep = 4,
     .etp = 1,
     .micro_batch = 3,
     .instances = 2,
     .change =
         [](Config& c) {
           zero<1>(c);
           recompute(c, {"moe_act", "shared_experts"});
         }},
    {.name = "ep2 of dp4 in two copies, zero 3",
     .dp = 4,
     .ep = 2,
     .micro_batch = 3,
     .instances = 2,
     .change = zero<3>},
};

TEST(CornerParity, CapacityAndFolding) { check_layouts(clipped(corner_mixture()), kMixed); }

TEST(CornerParity, SinkhornAndFolding) {
  Config config = corner_mixture();
  config.model.moe_expert_capacity_factor.reset();
  config.model.moe_router_load_balancing_type = {"sinkhorn"};
  config.model.moe_aux_loss_coeff = {0.0};
  check_layouts(config, kMixed);
}

TEST(CornerParity, ExpertBiasByPosition) {
  Config config = corner_mixture();
  config.model.moe_token_drop_policy = TokenDropPolicy::position;
  config.model.moe_router_score_function = RouterScore::sigmoid;
  config.model.moe_router_enable_expert_bias = true;
  config.model.moe_router_bias_update_rate = 0.05;
  config.model.moe_router_load_balancing_type = {"seq_aux_loss", "global_aux_loss"};
  config.model.moe_aux_loss_coeff = {1e-2, 2e-2};
  config.train.micro_batch_size = 3;
  const Layout layouts[] = {kMixed[0], kMixed[1], kMixed[3], kMixed[4]};
  check_layouts(config, layouts);
}

// Ranks in other orders than the usual one.
TEST(CornerParity, OrdersOfAxes) {
  const Config config = clipped(corner_mixture());
  auto batches = batches_for(config, 3);
  Trained one = train(config, {}, batches);
  for (const char* order : {"tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp", "dp-pp-tp-cp-ep", "cp-tp-ep-dp-pp"})
    for (const Layout& layout : {Layout{.name = "ep2 of tp2 pp2 dp2",
                                .tp = 2,
                                .pp = 2,
                                .dp = 2,
                                .ep = 2,
                                .etp = 1,
                                .micro_batch = 3,
                                .change = zero<1>},
                                 Layout{.name = "tp2 cp2 pp2 dp2",
                                 .tp = 2,
                                 .pp = 2,
                                 .dp = 2,
                                 .cp = 2,
                                 .ep = 2,
                                 .etp = 2,
                                 .sp = true,
                                 .micro_batch = 3,
                                 .change = zero<3>}}) {
      SCOPED_TRACE(fmt::format("{} {}", order, layout.name));
      ParallelSizes sizes = sizes_of(layout);
      sizes.order = order;
      try {
        expect_equal(one, train(apply(config, layout), sizes, batches), kTolerance);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
}

// Some labels do not count, and there are balancing losses.
TEST(CornerParity, LossPerTokenOfExperts) {
  Config config = corner_mixture();
  config.model.moe_expert_capacity_factor.reset();
  config.model.calculate_per_token_loss = true;
  auto batches = batches_for(config, kSteps);
  leave_out_labels(batches);
  Trained one = train(config, {}, batches);
  for (const Layout& layout : kMixed) {
    SCOPED_TRACE(layout.name);
    expect_equal(one, train(apply(config, layout), sizes_of(layout), batches), kTolerance);
  }
}

TEST(CornerParity, VariableLengthsOfExperts) {
  Config config = corner_mixture();
  config.parallel.variable_seq_lengths = true;
  config.train.global_batch_size = 12;
  const std::vector<int64_t> lengths = {16, 4, 8, 12};
  auto batches = random_batches(config, 3, lengths);
  ParityRun run{.lengths = lengths};
  Trained one = train_layout(config, run, batches);
  for (const Layout& layout :
       {Layout{
            .name = "pp2 ep2 etp1 tp2 sp", .tp = 2, .pp = 2, .ep = 2, .etp = 1, .sp = true, .micro_batch = 3},
        Layout{.name = "pp2 cp2 tp2",
        .tp = 2,
        .pp = 2,
        .cp = 2,
        .micro_batch = 3,
        .change = use<PipelineSchedule::zb_h1>},
        Layout{.name = "pp2 vpp2 cp2", .pp = 2, .vpp = 2, .cp = 2, .ep = 2, .micro_batch = 3},
        Layout{.name = "zb-v",
        .pp = 2,
        .vpp = 2,
        .cp = 2,
        .micro_batch = 3,
        .change = use<PipelineSchedule::zb_v>}}) {
    SCOPED_TRACE(layout.name);
    run.sizes = sizes_of(layout);
    try {
      expect_equal(one, train_layout(apply(config, layout), run, batches), kTolerance);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

// Windows, sinks, bounded logits, norms of heads under every kind of context parallelism.
TEST(CornerParity, EveryKindOfAttentionInContext) {
  Config config = seven_layers();
  ModelConfig& model = config.model;
  model.num_layers = 4;
  model.seq_length = model.max_position_embeddings = 16;
  model.num_attention_heads = model.num_query_groups = 4;
  model.kv_channels = 6;
  use_every_kind_of_attention(model);
  model.attention_dropout = 0.2;
  const Layout layouts[] = {
      {.name = "cp2", .cp = 2, .micro_batch = 1},
      {.name = "cp4", .cp = 4, .micro_batch = 1},
      {.name = "cp2 gathered", .cp = 2, .micro_batch = 1, .cp_kinds = {"all_gather"}},
      {.name = "cp2 a2a", .cp = 2, .micro_batch = 1, .cp_kinds = {"a2a"}},
      {.name = "cp4 mixed tp2",
       .tp = 2,
       .cp = 4,
       .sp = true,
       .micro_batch = 1,
       .cp_kinds = {"a2a+p2p"},
       .cp_levels = {2, 2}},
      {.name = "a kind for each layer, made again",
       .pp = 2,
       .cp = 2,
       .micro_batch = 1,
       .change =
           [](Config& c) {
             recompute(c, {"core_attn", "layernorm"});
           },
       .cp_kinds = {"p2p", "all_gather", "a2a", "p2p"}},
  };
  check_layouts(config, layouts);
}

}  // namespace
}  // namespace megatron::testing
