#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/config/schema/moe_config.h"
#include "megatron/config/schema/setting.h"

namespace megatron {

enum class PositionEmbedding { learned_absolute, rope, yarn, mrope, relative, none };
constexpr auto names(PositionEmbedding) {
  return std::array{"learned_absolute", "rope", "yarn", "mrope", "relative", "none"};
}
enum class Normalization { layer_norm, rms_norm };
constexpr auto names(Normalization) { return std::array{"LayerNorm", "RMSNorm"}; }
enum class Activation { gelu, gelu_tanh, silu, relu, squared_relu, quick_gelu, sigmoid, tanh };
constexpr auto names(Activation) {
  return std::array{"gelu", "gelu_tanh", "silu", "relu", "squared_relu", "quick_gelu", "sigmoid", "tanh"};
}
enum class SoftmaxType { vanilla, off_by_one, learnable };
constexpr auto names(SoftmaxType) { return std::array{"vanilla", "off-by-one", "learnable"}; }
enum class RopeType { rope, yarn };
constexpr auto names(RopeType) { return std::array{"rope", "yarn"}; }
enum class AttentionVariant { none, gdn, gdn2, dsa, gated_delta_net };
constexpr auto names(AttentionVariant) { return std::array{"none", "gdn", "gdn2", "dsa", "gated_delta_net"}; }

// One layer of a model whose layers differ: either part may be missing.
struct LayerBlock {
  bool attention = true, mlp = true;
  int64_t query_groups = 0, ffn_hidden_size = 0;
};

struct ModelConfig : MoeConfig {
  // Sizes
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t ffn_hidden_size = 0;
  int64_t kv_channels = 0;
  bool group_query_attention = false;
  int64_t num_query_groups = 0;
  int64_t seq_length = 0;
  int64_t max_position_embeddings = 0;
  int64_t vocab_size = 0;
  int64_t make_vocab_size_divisible_by = 128;
  bool share_embeddings_and_output_weights = true;
  int64_t encoder_num_layers = 0;
  int64_t decoder_num_layers = 0;
  int64_t encoder_seq_length = 0;
  int64_t decoder_seq_length = 0;
  bool bert_binary_head = true;
  int64_t num_tokentypes = 0;
  bool masked_lm_head = false;

  // Positions
  PositionEmbedding position_embedding_type = PositionEmbedding::learned_absolute;
  double rotary_base = 10000;
  std::optional<double> rotary_base_local;
  double rotary_percent = 1;
  bool rotary_interleaved = false;
  std::optional<double> seq_len_interpolation_factor;
  bool rope_scaling = false;
  double rope_scaling_factor = 8;
  double rope_scaling_low_freq_factor = 1;
  double rope_scaling_high_freq_factor = 4;
  int64_t rope_scaling_original_max_position_embeddings = 8192;
  Json no_rope_freq;
  std::vector<int64_t> mrope_section;
  double yarn_rotary_scaling_factor = 1;
  int64_t yarn_original_max_position_embeddings = 4096;
  double yarn_beta_fast = 32;
  double yarn_beta_slow = 1;
  std::optional<double> yarn_mscale;
  std::optional<double> yarn_mscale_all_dim;
  std::optional<double> yarn_attention_factor;
  bool yarn_correction_range_round_to_int = true;
  std::optional<double> dynamic_rope_factor;
  std::vector<double> longrope_short_factor;
  std::vector<double> longrope_long_factor;
  int64_t longrope_original_max_position_embeddings = 4096;
  double longrope_scaling_factor = 1;
  std::optional<double> longrope_attention_factor;
  RopeType rope_type = RopeType::yarn;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;

  // Norms, activations, biases
  Normalization normalization = Normalization::layer_norm;
  double layernorm_epsilon = 1e-5;
  bool layernorm_zero_centered_gamma = false;
  bool pre_layernorm = true;
  bool post_attention_layernorm = false;
  bool post_mlp_layernorm = false;
  bool layernorm_after_residual = false;
  bool embedding_layernorm = false;
  bool apply_residual_connection_post_layernorm = false;
  bool fp32_residual_connection = false;
  Activation activation_func = Activation::gelu;
  bool gated_linear_unit = false;
  double glu_linear_offset = 0;
  std::optional<double> activation_func_clamp_value;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  std::optional<bool> add_attention_output_bias;
  std::optional<bool> add_mlp_bias;

  // Attention
  bool qk_layernorm = false;
  bool qk_layernorm_full_width = false;
  bool qk_l2_norm = false;
  bool qk_clip = false;
  double qk_clip_alpha = 0.5;
  double qk_clip_threshold = 100;
  bool attention_output_gate = false;
  bool bidirectional_attention = false;
  SoftmaxType softmax_type = SoftmaxType::vanilla;
  std::optional<double> softmax_scale;
  std::optional<double> query_scaling_beta;
  bool apply_query_key_layer_scaling = false;
  std::optional<double> attn_logit_softcapping;
  std::optional<double> final_logit_softcapping;
  std::optional<double> embedding_multiplier;
  std::optional<double> output_multiplier;
  std::vector<int64_t> window_size;
  Json window_attn_skip_freq;
  double attention_dropout = 0.1;
  double hidden_dropout = 0.1;

  // Initial weights
  double init_method_std = 0.02;
  std::optional<double> embedding_init_method_std;
  bool init_method_xavier_uniform = false;
  bool perform_initialization = true;
  bool init_model_with_meta_device = false;
  bool use_mup = false;
  int64_t mup_base_hidden_size = 0;
  double mup_embedding_mult = 1;
  double mup_output_mult = 1;
  std::optional<double> mup_base_head_dim;
  double mup_attn_scale_power = 1;

  // Multi-token prediction
  int64_t mtp_num_layers = 0;
  double mtp_loss_scaling_factor = 0.1;
  bool mtp_use_repeated_layer = false;
  bool mtp_detach_heads = false;
  bool mtp_hsm = false;
  std::string mtp_hybrid_override_pattern;

  // Multi-latent attention
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank;
  int64_t kv_lora_rank = 512;
  int64_t qk_head_dim = 128;
  int64_t qk_pos_emb_head_dim = 64;
  int64_t v_head_dim = 128;
  double rotary_scaling_factor = 1;
  int64_t original_max_position_embeddings = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
  std::optional<double> latent_norm_epsilon;
  bool mla_rotary_interleaved = true;
  bool cache_mla_latents = false;

  // Other attention kinds
  AttentionVariant experimental_attention_variant = AttentionVariant::none;
  Json linear_attention_freq;
  int64_t linear_conv_kernel_dim = 4;
  int64_t linear_key_head_dim = 128;
  int64_t linear_value_head_dim = 128;
  int64_t linear_num_key_heads = 16;
  int64_t linear_num_value_heads = 32;
  int64_t dsa_indexer_n_heads = 0;
  int64_t dsa_indexer_head_dim = 0;
  int64_t dsa_indexer_topk = 0;
  int64_t dsa_indexer_topk_freq = 1;
  int64_t dsa_indexer_skip_topk_offset = 0;
  std::optional<double> dsa_indexer_loss_coeff;
  bool dsa_indexer_use_sparse_loss = false;
  bool dsa_indexer_rope_interleaved = false;
  bool dsa_indexer_rotate_activation = true;
  bool dsa_indexer_scoring_relu = true;
  std::optional<double> dsa_indexer_k_norm_epsilon;
  bool dsa_indexer_k_norm_fp32 = false;

  // Hybrid models
  bool is_hybrid_model = false;
  std::string hybrid_layer_pattern;
  int64_t mamba_state_dim = 128;
  int64_t mamba_head_dim = 64;
  int64_t mamba_num_groups = 8;
  int64_t mamba_num_heads = 0;
  int64_t mamba_conv_kernel = 4;
  bool mamba_conv_bias = true;
  bool mamba_proj_bias = false;
  int64_t mamba_chunk_size = 128;
  double mamba_time_step_min = 0;
  std::optional<double> mamba_time_step_max;
  bool mamba_norm_full_width = false;
  int64_t gdp_num_householder = 3;
  bool enable_mhc_connections = false;
  int64_t mhc_num_residual_streams = 4;
  int64_t mhc_sinkhorn_iterations = 20;
  double mhc_init_gating_factor = 0.01;
  std::optional<int64_t> mhc_recompute_layer_num;
  std::string heterogeneous_layers_config_path;
  std::string heterogeneous_layers_config_encoded_json;
  std::vector<LayerBlock> layer_blocks;  // what that text says; no setting

  // Loss
  bool calculate_per_token_loss = false;
  bool freeze_all_layers = false;
};

template <>
const Schema& schema<ModelConfig>();

}  // namespace megatron
