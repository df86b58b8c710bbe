#include <gtest/gtest.h>

#include "parity/cases.h"
#include "parity/settings.h"

// Sizes that are no powers of two, and experts that nobody chooses.
namespace megatron::testing {
namespace {

Config odd_gpt() {
  Config config;
  config.model =
      llama_style({.layers = 6, .hidden = 36, .heads = 6, .groups = 3, .ffn = 54, .vocab = 47, .length = 12});
  config.model.make_vocab_size_divisible_by = 1;
  config.model.attention_dropout = 0.2;
  config.model.hidden_dropout = 0.1;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 12;
  config.optimizer.weight_decay = 0.1;
  return config;
}

Config odd_mixture() {
  Config config = odd_gpt();
  ModelConfig& model = config.model;
  model.num_moe_experts = 6;
  model.moe_ffn_hidden_size = 18;
  model.moe_router_topk = 3;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_layer_freq = Json(Json::Array{Json(0), Json(1), Json(1), Json(0), Json(1), Json(1)});
  model.moe_aux_loss_coeff = {1e-2};
  return config;
}

template <int level>
void zero(Config& config) {
  shard<level>(config, 1001);
}

void by_all_gather(Config& config) { config.model.moe_token_dispatcher_type = TokenDispatcher::allgather; }

const Layout kLayouts[] = {
    {.name = "tp3", .tp = 3, .micro_batch = 1},
    {.name = "tp3 sp", .tp = 3, .sp = true, .micro_batch = 1},
    {.name = "tp6: two ranks to a key head", .tp = 6, .sp = true, .micro_batch = 1},
    {.name = "pp3", .pp = 3, .micro_batch = 1},
    {.name = "pp3 vpp2", .pp = 3, .vpp = 2, .micro_batch = 1},
    {.name = "pp3 zb-v", .pp = 3, .vpp = 2, .micro_batch = 1, .change = use<PipelineSchedule::zb_v>},
    {.name = "pp6 zb-h1 dp2", .pp = 6, .dp = 2, .micro_batch = 1, .change = use<PipelineSchedule::zb_h1>},
    {.name = "pp5 by layout", .pp = 5, .stages = "Et|tt|t|t|tL", .micro_batch = 1},
    {.name = "dp3", .dp = 3, .micro_batch = 1},
    {.name = "dp6 zero 2", .dp = 6, .micro_batch = 1, .change = zero<2>},
    {.name = "dp3 zero 3", .dp = 3, .micro_batch = 1, .change = zero<3>},
    {.name = "dp6 as 2 x 3 zero 1", .dp = 6, .micro_batch = 1, .instances = 2, .change = zero<1>},
    {.name = "cp3", .cp = 3, .micro_batch = 1},
    {.name = "cp3 all_gather", .cp = 3, .micro_batch = 1, .cp_kinds = {"all_gather"}},
    {.name = "cp3 a2a", .cp = 3, .micro_batch = 1, .cp_kinds = {"a2a"}},
    {.name = "cp6 mix", .cp = 6, .micro_batch = 1, .cp_kinds = {"a2a+p2p"}, .cp_levels = {3, 2}},
    {.name = "tp3 cp2 sp", .tp = 3, .cp = 2, .sp = true, .micro_batch = 1},
    {.name = "tp3 pp2 dp2 zero 3", .tp = 3, .pp = 2, .dp = 2, .micro_batch = 1, .change = zero<3>},
};

const Layout kExperts[] = {
    {.name = "ep3", .dp = 3, .ep = 3, .micro_batch = 1},
    {.name = "ep6", .dp = 6, .ep = 6, .micro_batch = 1},
    {.name = "ep3 of dp6 zero 3", .dp = 6, .ep = 3, .micro_batch = 1, .change = zero<3>},
    {.name = "tp3 etp3", .tp = 3, .micro_batch = 1},
    {.name = "tp3 ep3 etp1 sp", .tp = 3, .ep = 3, .etp = 1, .sp = true, .micro_batch = 1},
    {.name = "tp3 ep3 etp1 gathered", .tp = 3, .ep = 3, .etp = 1, .micro_batch = 1, .change = by_all_gather},
    {.name = "tp3 cp2 ep2 etp3", .tp = 3, .cp = 2, .ep = 2, .etp = 3, .micro_batch = 1},
    {.name = "ep2 pp3 dp2", .pp = 3, .dp = 2, .ep = 2, .micro_batch = 1},
};

TEST(OddParity, Dense) { check_layouts(odd_gpt(), kLayouts); }
TEST(OddParity, Experts) { check_layouts(odd_mixture(), kExperts); }

// Four tokens choose one of twelve experts each: most experts, and with them whole ranks, have nothing to do.
TEST(OddParity, ExpertsWithoutTokens) {
  Config config = odd_mixture();
  config.model.seq_length = config.model.max_position_embeddings = 4;
  config.model.num_moe_experts = 12;
  config.model.moe_router_topk = 1;
  config.model.moe_router_pre_softmax = true;
  const Layout layouts[] = {
      {.name = "ep6", .dp = 6, .ep = 6, .micro_batch = 1},
      {.name = "ep6 gathered", .dp = 6, .ep = 6, .micro_batch = 1, .change = by_all_gather},
      {.name = "ep12 zero 3", .dp = 12, .ep = 12, .micro_batch = 1, .change = zero<3>},
      {.name = "tp3 ep6 etp1", .tp = 3, .dp = 2, .ep = 6, .etp = 1, .micro_batch = 1},
      {.name = "tp3 ep2 etp3 pp2", .tp = 3, .pp = 2, .dp = 2, .ep = 2, .etp = 3, .micro_batch = 1},
  };
  check_layouts(config, layouts);
}

}  // namespace
}  // namespace megatron::testing
