#include "megatron/cli/bench/moe_styles.h"

namespace megatron {
namespace {

ModelConfig with_experts(const DecoderShape& shape, int64_t experts, int64_t topk, int64_t width) {
  ModelConfig model = llama_style(shape);
  model.num_moe_experts = experts;
  model.moe_router_topk = topk;
  model.moe_ffn_hidden_size = width;
  model.moe_router_load_balancing_type = {"aux_loss"};
  model.moe_aux_loss_coeff = {1e-3};
  model.moe_router_dtype = RouterDType::fp32;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  return model;
}

}  // namespace

ModelConfig qwen3_moe_style(const DecoderShape& shape) {
  ModelConfig model = with_experts(shape, 128, 8, 768);
  model.kv_channels = 128;
  model.qk_layernorm = true;
  model.layernorm_epsilon = 1e-6;
  model.rotary_base = 1e6;
  return model;
}

ModelConfig mixtral_style(const DecoderShape& shape) {
  ModelConfig model = with_experts(shape, 8, 2, shape.ffn);
  model.rotary_base = 1e6;
  return model;
}

ModelConfig deepseek_v3_style(const DecoderShape& shape) {
  ModelConfig model = with_experts(shape, 16, 8, 2048);
  model.multi_latent_attention = true;
  model.q_lora_rank = 1536;
  model.kv_lora_rank = 512;
  model.qk_head_dim = model.v_head_dim = 128;
  model.qk_pos_emb_head_dim = 64;
  model.rope_type = RopeType::rope;
  model.qk_layernorm = true;
  model.layernorm_epsilon = 1e-6;
  Json first_dense = Json::array();
  for (int64_t i = 0; i < shape.layers; ++i) first_dense.push_back(i == 0 ? 0 : 1);
  model.moe_layer_freq = first_dense;
  model.moe_shared_expert_intermediate_size = 2048;
  model.moe_router_score_function = RouterScore::sigmoid;
  model.moe_router_enable_expert_bias = true;
  model.moe_router_topk_scaling_factor = 2.5;
  model.moe_router_load_balancing_type = {"seq_aux_loss"};
  model.moe_aux_loss_coeff = {1e-4};
  model.mtp_num_layers = 1;
  return model;
}

}  // namespace megatron
