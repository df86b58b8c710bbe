#pragma once

#include "megatron/base/json.h"
#include "megatron/config/config.h"

namespace megatron::testing {

// The settings that Megatron-LM's arguments of a golden case stand for. The vocabulary is padded already.
inline Config config_of(const Json& arguments) {
  const auto integer = [&](const char* name) {
    const Json& value = arguments.at(name);
    return value.is_null() ? 0 : value.as_int();
  };
  const auto set = [&](const char* name) { return arguments.at(name).as_bool(); };
  Config config;
  ModelConfig& model = config.model;
  model.hidden_size = integer("hidden_size");
  model.num_layers = integer("num_layers");
  model.seq_length = integer("seq_length");
  model.kv_channels = integer("kv_channels");
  model.num_attention_heads = integer("num_attention_heads");
  model.num_query_groups =
      set("group_query_attention") ? integer("num_query_groups") : model.num_attention_heads;
  model.ffn_hidden_size = integer("ffn_hidden_size");
  model.gated_linear_unit = set("swiglu");
  model.vocab_size = integer("padded_vocab_size");
  model.make_vocab_size_divisible_by = 1;
  model.share_embeddings_and_output_weights = !set("untie_embeddings_and_output_weights");
  model.add_bias_linear = set("add_bias_linear");
  model.attention_output_gate = set("attention_output_gate");
  if (arguments.at("normalization").as_string() == "RMSNorm") model.normalization = Normalization::rms_norm;

  model.num_moe_experts = integer("num_experts");
  model.moe_layer_freq = arguments.at("moe_layer_freq");
  model.moe_router_topk = integer("moe_router_topk");
  model.moe_ffn_hidden_size = integer("moe_ffn_hidden_size");
  model.moe_latent_size = integer("moe_latent_size");
  model.moe_shared_expert_intermediate_size = integer("moe_shared_expert_intermediate_size");
  model.moe_shared_expert_gate = set("moe_shared_expert_gate");
  model.mtp_num_layers = integer("mtp_num_layers");

  model.multi_latent_attention = set("multi_latent_attention");
  if (integer("q_lora_rank")) model.q_lora_rank = integer("q_lora_rank");
  model.kv_lora_rank = integer("kv_lora_rank");
  model.qk_head_dim = integer("qk_head_dim");
  model.qk_pos_emb_head_dim = integer("qk_pos_emb_head_dim");
  model.v_head_dim = integer("v_head_dim");

  if (!arguments.at("experimental_attention_variant").is_null())
    model.experimental_attention_variant = AttentionVariant::gated_delta_net;
  model.linear_attention_freq = arguments.at("linear_attention_freq");
  model.linear_key_head_dim = integer("linear_key_head_dim");
  model.linear_value_head_dim = integer("linear_value_head_dim");
  model.linear_num_key_heads = integer("linear_num_key_heads");
  model.linear_num_value_heads = integer("linear_num_value_heads");
  model.linear_conv_kernel_dim = integer("linear_conv_kernel_dim");

  if (const Json& pattern = arguments.at("hybrid_layer_pattern"); !pattern.is_null()) {
    model.is_hybrid_model = true;
    model.hybrid_layer_pattern = pattern.as_string();
    model.num_layers = static_cast<int64_t>(model.hybrid_layer_pattern.size());
  }
  model.mamba_state_dim = integer("mamba_state_dim");
  model.mamba_head_dim = integer("mamba_head_dim");
  model.mamba_num_groups = integer("mamba_num_groups");
  model.mamba_num_heads = integer("mamba_num_heads");
  return config;
}

}  // namespace megatron::testing
