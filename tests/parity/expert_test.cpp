#include <gtest/gtest.h>

#include "parity/cases.h"

// Mixtures of experts: however experts and tokens are spread, training is that of one rank.
namespace megatron::testing {
namespace {

Config mixture() {
  Config config = small_gpt();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 24;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_layer_freq = Json(Json::Array{Json(1), Json(0), Json(1), Json(1)});
  return config;
}

Config top2_with_losses() {
  Config config = mixture();
  config.model.moe_aux_loss_coeff = {1e-2};
  config.model.moe_z_loss_coeff = 1e-3;
  return config;
}

Config sigmoid_with_shared_expert() {
  Config config = mixture();
  ModelConfig& model = config.model;
  model.moe_router_score_function = RouterScore::sigmoid;
  model.moe_router_enable_expert_bias = true;
  model.moe_router_bias_update_rate = 0.05;  // large enough to change choices within the test
  model.moe_router_topk_scaling_factor = 2.5;
  model.moe_router_num_groups = 2;
  model.moe_router_group_topk = 1;
  model.moe_router_load_balancing_type = {"seq_aux_loss"};
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_shared_expert_intermediate_size = 16;
  model.moe_shared_expert_gate = true;
  return config;
}

Config with_capacity() {
  Config config = mixture();
  config.model.moe_expert_capacity_factor = 0.75;
  config.model.moe_aux_loss_coeff = {1e-2};
  return config;
}

Config with_capacity_by_position() {
  Config config = with_capacity();
  config.model.moe_token_drop_policy = TokenDropPolicy::position;
  config.model.moe_router_pre_softmax = true;
  config.model.moe_router_topk = 1;
  config.model.moe_apply_probs_on_input = true;
  return config;
}

Config with_sinkhorn() {
  Config config = mixture();
  config.model.moe_router_load_balancing_type = {"sinkhorn"};
  return config;
}

Config with_biases() {
  Config config = with_biases_and_layernorm();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_router_score_function = RouterScore::sqrtsoftplus;
  model.moe_input_jitter_eps = 0.1;
  return config;
}

void by_all_gather(Config& config) { config.model.moe_token_dispatcher_type = TokenDispatcher::allgather; }
void overlapped(Config& config) { config.model.moe_shared_expert_overlap = true; }

const Layout kLayouts[] = {
    {.name = "ep2", .dp = 2, .ep = 2},
    {.name = "ep4", .dp = 4, .ep = 4},
    {.name = "ep4 gathered", .dp = 4, .ep = 4, .change = by_all_gather},
    {.name = "tp2", .tp = 2},
    {.name = "tp2 gathered", .tp = 2, .change = by_all_gather},
    {.name = "tp2 sp", .tp = 2, .sp = true},
    {.name = "tp2 etp1", .tp = 2, .etp = 1},
    {.name = "tp2 ep2 etp1", .tp = 2, .ep = 2, .etp = 1},
    {.name = "tp2 ep2 etp1 sp gathered", .tp = 2, .ep = 2, .etp = 1, .sp = true, .change = by_all_gather},
    {.name = "tp2 ep2 etp2", .tp = 2, .dp = 2, .ep = 2, .etp = 2},
    {.name = "tp2 ep2 etp2 sp gathered",
     .tp = 2,
     .dp = 2,
     .ep = 2,
     .etp = 2,
     .sp = true,
     .change = by_all_gather},
    {.name = "etp2 folded over dp", .dp = 2, .etp = 2},
    {.name = "ep2 pp2", .pp = 2, .dp = 2, .ep = 2},
    {.name = "ep2 dp2", .dp = 4, .ep = 2},
    {.name = "ep2 pp2 vpp2 tp2 sp", .tp = 2, .pp = 2, .dp = 2, .vpp = 2, .ep = 2, .sp = true},
    {.name = "ep4 pp2 dp4 tp2 etp1 sp", .tp = 2, .pp = 2, .dp = 4, .ep = 4, .etp = 1, .sp = true},
};

TEST(ExpertParity, Top2WithAuxAndZLoss) { check_layouts(top2_with_losses(), kLayouts); }
TEST(ExpertParity, SigmoidGroupsExpertBiasSharedExpert) {
  check_layouts(sigmoid_with_shared_expert(), kLayouts);
}
TEST(ExpertParity, Capacity) { check_layouts(with_capacity(), kLayouts); }
TEST(ExpertParity, CapacityByPosition) { check_layouts(with_capacity_by_position(), kLayouts); }
TEST(ExpertParity, Sinkhorn) { check_layouts(with_sinkhorn(), kLayouts); }
TEST(ExpertParity, Biases) { check_layouts(with_biases(), kLayouts); }

}  // namespace
}  // namespace megatron::testing
