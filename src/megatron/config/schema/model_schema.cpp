#include "megatron/base/kernel_limits.h"
#include "megatron/config/schema/model_config.h"

namespace megatron {
namespace {

Schema model_config_schema() {
  using C = ModelConfig;
  Schema s("model", "Model");

  // Sizes
  s.field<&C::num_layers>("num_layers", "transformer layers (for a hybrid model: symbols of its pattern)")
      .min(1)
      .max(1 << 24);
  s.field<&C::hidden_size>("hidden_size", "width of the residual stream").min(1).max(1 << 24);
  s.field<&C::num_attention_heads>("num_attention_heads", "query heads of each attention layer")
      .min(1)
      .max(1 << 24);
  s.field<&C::ffn_hidden_size>("ffn_hidden_size", "width of the feed-forward layer")
      .min(1)
      .max(1 << 24)
      .when_unset("4 x hidden_size; with --swiglu 8/3 x hidden_size, rounded down to a multiple of 64");
  s.field<&C::kv_channels>("kv_channels", "width of one attention head")
      .min(1)
      .max(1 << 24)
      .when_unset("hidden_size / num_attention_heads");
  s.field<&C::group_query_attention>("group_query_attention",
                                     "query heads share key and value heads, num_query_groups of them");
  s.field<&C::num_query_groups>("num_query_groups", "key and value heads")
      .min(1)
      .max(1 << 24)
      .when_unset("num_attention_heads; 1 with --group-query-attention");
  s.field<&C::seq_length>("seq_length", "tokens in a training sequence")
      .min(1)
      .max(1 << 30)
      .also("-sl")
      .when_unset("dataset.seq_length");
  s.field<&C::max_position_embeddings>("max_position_embeddings", "longest position that the model knows")
      .min(1)
      .max(1 << 30)
      .when_unset("seq_length");
  s.field<&C::vocab_size>("vocab_size", "tokens of the vocabulary, before padding")
      .min(1)
      .max(1 << 30)
      .no_flag()
      .when_unset("the tokenizer's size");
  s.field<&C::make_vocab_size_divisible_by>(
       "make_vocab_size_divisible_by",
       "the vocabulary is padded to a multiple of this times the tensor-parallel size")
      .min(1)
      .max(1 << 24)
      .alias("tokenizer.make_vocab_size_divisible_by");
  s.field<&C::share_embeddings_and_output_weights>("share_embeddings_and_output_weights",
                                                   "the output head uses the embedding's weight")
      .off_flag("--untie-embeddings-and-output-weights");
  s.field<&C::encoder_num_layers>("encoder_num_layers", "encoder layers of an encoder-decoder model").min(1);
  s.field<&C::decoder_num_layers>("decoder_num_layers", "decoder layers of an encoder-decoder model").min(1);
  s.field<&C::encoder_seq_length>("encoder_seq_length", "tokens of an encoder sequence").min(1);
  s.field<&C::decoder_seq_length>("decoder_seq_length", "tokens of a decoder sequence").min(1);
  s.field<&C::num_tokentypes>("num_tokentypes", "rows of an embedding of token types; 0: there is none")
      .min(0);
  s.field<&C::masked_lm_head>("masked_lm_head",
                              "logits come from a further layer, activation and norm, and have a bias");
  s.field<&C::bert_binary_head>("bert_binary_head", "the sentence-order head of BERT")
      .off_flag("--bert-no-binary-head");

  // Positions
  s.field<&C::position_embedding_type>("position_embedding_type", "how positions enter the model");
  s.field<&C::rotary_base>("rotary_base", "base of the rotary frequencies").above(1);
  s.field<&C::rotary_base_local>("rotary_base_local",
                                 "rotary base of the layers with a window, where it differs")
      .above(1);
  s.field<&C::rotary_percent>("rotary_percent", "part of each head that is rotated").above(0).max(1);
  s.field<&C::rotary_interleaved>("rotary_interleaved",
                                  "rotate neighbouring pairs instead of the two halves of a head");
  s.field<&C::seq_len_interpolation_factor>("seq_len_interpolation_factor", "positions are divided by this")
      .above(0)
      .flag("--rotary-seq-len-interpolation-factor");
  s.field<&C::rope_scaling>("rope_scaling", "Llama 3.1's scaling of the rotary frequencies")
      .flag("--use-rope-scaling");
  s.field<&C::rope_scaling_factor>("rope_scaling_factor",
                                   "by how much Llama 3.1's scaling stretches low frequencies")
      .above(0);
  s.field<&C::rope_scaling_low_freq_factor>(
       "rope_scaling_low_freq_factor",
       "wavelengths above the original length over this are stretched in full")
      .above(0);
  s.field<&C::rope_scaling_high_freq_factor>(
       "rope_scaling_high_freq_factor", "wavelengths below the original length over this stay as they are")
      .above(0);
  s.field<&C::rope_scaling_original_max_position_embeddings>("rope_scaling_original_max_position_embeddings",
                                                             "context length before Llama 3.1's scaling")
      .min(1);
  s.field<&C::no_rope_freq>("no_rope_freq",
                            "every N-th layer has no rotary embedding, or a 0/1 list with 1 for such layers")
      .pattern();
  s.field<&C::mrope_section>("mrope_section", "head channels of the temporal, height and width positions")
      .min(0);
  s.field<&C::yarn_rotary_scaling_factor>("yarn_rotary_scaling_factor",
                                          "by how much YaRN stretches the context")
      .above(0);
  s.field<&C::yarn_original_max_position_embeddings>("yarn_original_max_position_embeddings",
                                                     "context length before YaRN")
      .min(1);
  s.field<&C::yarn_beta_fast>("yarn_beta_fast", "rotations above which YaRN leaves a frequency alone")
      .above(0);
  s.field<&C::yarn_beta_slow>("yarn_beta_slow", "rotations below which YaRN stretches a frequency in full")
      .above(0);
  s.field<&C::yarn_mscale>("yarn_mscale", "YaRN's attention scale");
  s.field<&C::yarn_mscale_all_dim>("yarn_mscale_all_dim", "YaRN's attention scale over all channels");
  s.field<&C::yarn_attention_factor>("yarn_attention_factor",
                                     "amplitude of YaRN's cosines, instead of the one from its scales");
  s.field<&C::yarn_correction_range_round_to_int>("yarn_correction_range_round_to_int",
                                                  "YaRN rounds the ends of its ramp to whole channels");
  s.field<&C::dynamic_rope_factor>(
       "dynamic_rope_factor",
       "sequences beyond max_position_embeddings raise the rotary base, by this factor of their length")
      .above(0);
  s.field<&C::longrope_short_factor>("longrope_short_factor",
                                     "LongRoPE: divisors of the rotary frequencies, one each, up to the "
                                     "original length")
      .above(0);
  s.field<&C::longrope_long_factor>("longrope_long_factor",
                                    "LongRoPE: the same for sequences beyond the original length")
      .above(0);
  s.field<&C::longrope_original_max_position_embeddings>("longrope_original_max_position_embeddings",
                                                         "context length before LongRoPE")
      .min(1);
  s.field<&C::longrope_scaling_factor>("longrope_scaling_factor",
                                       "by how much LongRoPE stretches the context")
      .above(0);
  s.field<&C::longrope_attention_factor>(
      "longrope_attention_factor", "amplitude of LongRoPE's cosines, instead of the one from its factor");
  s.field<&C::rope_type>("rope_type", "rotary embedding of multi-latent attention: with YaRN or plain");
  s.field<&C::relative_attention_num_buckets>("relative_attention_num_buckets",
                                              "buckets of T5's relative positions")
      .min(2);
  s.field<&C::relative_attention_max_distance>("relative_attention_max_distance",
                                               "distance from which T5's relative positions share a bucket")
      .min(1);

  // Norms, activations, biases
  s.field<&C::normalization>("normalization", "kind of norm");
  s.field<&C::layernorm_epsilon>("layernorm_epsilon", "added to the variance in norms")
      .above(0)
      .flag("--norm-epsilon");
  s.field<&C::layernorm_zero_centered_gamma>("layernorm_zero_centered_gamma", "norms multiply by 1 + weight")
      .flag("--apply-layernorm-1p");
  s.field<&C::pre_layernorm>("pre_layernorm",
                             "norms before attention and feed-forward layer; OLMo-2 has them after alone")
      .off_flag("--no-pre-layernorm");
  s.field<&C::post_attention_layernorm>("post_attention_layernorm",
                                        "a further norm after attention's output");
  s.field<&C::post_mlp_layernorm>("post_mlp_layernorm", "a further norm after the feed-forward output");
  s.field<&C::layernorm_after_residual>("layernorm_after_residual",
                                        "BERT's order: norms of the sum with the residual, none before");
  s.field<&C::embedding_layernorm>("embedding_layernorm", "a norm of the embedding's output");
  s.field<&C::apply_residual_connection_post_layernorm>("apply_residual_connection_post_layernorm",
                                                        "the residual is taken after the norm");
  s.field<&C::fp32_residual_connection>("fp32_residual_connection", "the residual stream stays in fp32");
  s.field<&C::activation_func>("activation_func", "activation of the feed-forward layer").no_flag();
  s.field<&C::gated_linear_unit>("gated_linear_unit",
                                 "the activated half is multiplied by a second, linear one")
      .no_flag();
  s.field<&C::glu_linear_offset>("glu_linear_offset", "added to the linear half of a gated unit");
  s.field<&C::activation_func_clamp_value>("activation_func_clamp_value",
                                           "bound of a gated unit's halves before activation")
      .above(0);
  s.field<&C::add_bias_linear>("add_bias_linear", "linear layers have a bias")
      .off_flag("--disable-bias-linear");
  s.field<&C::add_qkv_bias>("add_qkv_bias", "the QKV projection has a bias");
  s.field<&C::add_attention_output_bias>("add_attention_output_bias",
                                         "attention's output projection has a bias")
      .when_unset("add_bias_linear");
  s.field<&C::add_mlp_bias>("add_mlp_bias", "the feed-forward layers have a bias")
      .when_unset("add_bias_linear");

  // Attention
  s.field<&C::qk_layernorm>("qk_layernorm", "queries and keys are normed per head");
  s.field<&C::qk_layernorm_full_width>("qk_layernorm_full_width",
                                       "that norm is over all heads at once, as in OLMo");
  s.field<&C::qk_l2_norm>("qk_l2_norm", "queries and keys are divided by their root mean square");
  s.field<&C::qk_clip>("qk_clip",
                       "after each step weights of heads with large attention logits are scaled down");
  s.field<&C::qk_clip_alpha>("qk_clip_alpha", "share of that scaling given to the query weights")
      .above(0)
      .max(1);
  s.field<&C::qk_clip_threshold>("qk_clip_threshold", "attention logit from which heads are scaled down")
      .above(0);
  s.field<&C::bidirectional_attention>("bidirectional_attention", "tokens see those after them, too");
  s.field<&C::attention_output_gate>("attention_output_gate",
                                     "attention's output is multiplied by a sigmoid gate");
  s.field<&C::softmax_type>("softmax_type",
                            "plain, with one more zero logit, or with a learned logit per head");
  s.field<&C::softmax_scale>("softmax_scale", "factor of the attention logits")
      .when_unset("1 / sqrt(kv_channels)");
  s.field<&C::query_scaling_beta>(
       "query_scaling_beta",
       "queries grow by 1 + beta ln(1 + floor(position / yarn_original_max_position_embeddings))")
      .above(0);
  s.field<&C::apply_query_key_layer_scaling>(
      "apply_query_key_layer_scaling", "attention logits are divided by the layer number before the softmax");
  s.field<&C::attn_logit_softcapping>("attn_logit_softcapping",
                                      "bound of the attention logits, reached smoothly")
      .above(0);
  s.field<&C::final_logit_softcapping>("final_logit_softcapping",
                                       "bound of the output logits, reached smoothly")
      .above(0);
  s.field<&C::embedding_multiplier>("embedding_multiplier", "factor of the embedding's output");
  s.field<&C::output_multiplier>("output_multiplier", "factor of the hidden states that logits are made of");
  s.field<&C::window_size>("window_size", "keys seen to the left and right of a query (-1: all)")
      .min(-1)
      .count(2);
  s.field<&C::window_attn_skip_freq>(
       "window_attn_skip_freq", "every N-th layer sees everything, or a 0/1 list with 1 for windowed layers")
      .pattern();
  s.field<&C::attention_dropout>("attention_dropout", "dropout of attention weights").min(0).max(1);
  s.field<&C::hidden_dropout>("hidden_dropout", "dropout before each residual addition").min(0).max(1);

  // Initial weights
  s.field<&C::init_method_std>("init_method_std", "standard deviation of initial weights").above(0);
  s.field<&C::embedding_init_method_std>("embedding_init_method_std",
                                         "standard deviation of initial embeddings")
      .above(0)
      .when_unset("init_method_std");
  s.field<&C::init_method_xavier_uniform>("init_method_xavier_uniform",
                                          "Xavier's uniform distribution instead of a normal one");
  s.field<&C::perform_initialization>("perform_initialization", "give weights initial values")
      .off_flag("--no-initialization");
  s.field<&C::init_model_with_meta_device>("init_model_with_meta_device",
                                           "build the model without memory first");
  s.field<&C::use_mup>("use_mup",
                       "maximal update parametrisation: widths scale initial weights and learning rates");
  s.field<&C::mup_base_hidden_size>("mup_base_hidden_size", "width at which the hyperparameters were found")
      .min(1);
  s.field<&C::mup_embedding_mult>("mup_embedding_mult", "factor of the embedding's output under muP");
  s.field<&C::mup_output_mult>("mup_output_mult", "factor of the logits under muP");
  s.field<&C::mup_base_head_dim>("mup_base_head_dim", "head width at which the hyperparameters were found")
      .above(0);
  s.field<&C::mup_attn_scale_power>("mup_attn_scale_power",
                                    "attention is scaled by the head width to the minus this");

  // Multi-token prediction
  s.field<&C::mtp_num_layers>("mtp_num_layers", "further tokens predicted, one layer each").min(0);
  s.field<&C::mtp_loss_scaling_factor>("mtp_loss_scaling_factor", "weight of the further tokens' loss")
      .min(0);
  s.field<&C::mtp_use_repeated_layer>("mtp_use_repeated_layer", "one layer predicts all further tokens");
  s.field<&C::mtp_detach_heads>("mtp_detach_heads",
                                "further predictions send no gradient into the main model");
  s.field<&C::mtp_hsm>("mtp_hsm", "hidden states of the depths are mixed");
  s.field<&C::mtp_hybrid_override_pattern>("mtp_hybrid_override_pattern",
                                           "layer pattern of the MTP layers of a hybrid model");

  // Multi-latent attention
  s.field<&C::multi_latent_attention>("multi_latent_attention",
                                      "keys and values go through a low-rank latent");
  s.field<&C::q_lora_rank>("q_lora_rank", "rank of the query latent; none projects queries directly").min(1);
  s.field<&C::kv_lora_rank>("kv_lora_rank", "rank of the key and value latent").min(1);
  s.field<&C::qk_head_dim>("qk_head_dim", "unrotated width of a query and key head").min(1);
  s.field<&C::qk_pos_emb_head_dim>("qk_pos_emb_head_dim", "rotated width of a query and key head").min(1);
  s.field<&C::v_head_dim>("v_head_dim", "width of a value head").min(1);
  s.field<&C::rotary_scaling_factor>("rotary_scaling_factor", "by how much the rotary context is stretched")
      .above(0);
  s.field<&C::original_max_position_embeddings>("original_max_position_embeddings",
                                                "context length before stretching")
      .min(1);
  s.field<&C::beta_fast>("beta_fast", "rotations above which a frequency is left alone").above(0);
  s.field<&C::beta_slow>("beta_slow", "rotations below which a frequency is stretched in full").above(0);
  s.field<&C::mscale>("mscale", "attention scale of stretched positions");
  s.field<&C::mscale_all_dim>("mscale_all_dim", "attention scale over all channels");
  s.field<&C::latent_norm_epsilon>("latent_norm_epsilon", "epsilon of the norms of latent vectors")
      .above(0)
      .when_unset("layernorm_epsilon");
  s.field<&C::mla_rotary_interleaved>("mla_rotary_interleaved",
                                      "multi-latent attention rotates neighbouring pairs");
  s.field<&C::cache_mla_latents>("cache_mla_latents",
                                 "decoding caches the latent instead of keys and values");

  // Other attention kinds
  s.field<&C::experimental_attention_variant>("experimental_attention_variant",
                                              "gated delta net or sparse attention in place of attention");
  s.field<&C::linear_attention_freq>(
       "linear_attention_freq", "every N-th layer is full attention, or a 0/1 list with 1 for linear layers")
      .pattern();
  s.field<&C::linear_conv_kernel_dim>("linear_conv_kernel_dim", "convolution width of a gated delta net")
      .min(1)
      .max(limits::kConvolutionWidth);
  s.field<&C::linear_key_head_dim>("linear_key_head_dim", "key head width of a gated delta net").min(1);
  s.field<&C::linear_value_head_dim>("linear_value_head_dim", "value head width of a gated delta net").min(1);
  s.field<&C::linear_num_key_heads>("linear_num_key_heads", "key heads of a gated delta net").min(1);
  s.field<&C::linear_num_value_heads>("linear_num_value_heads", "value heads of a gated delta net").min(1);
  s.field<&C::dsa_indexer_n_heads>("dsa_indexer_n_heads", "heads of the sparse attention's indexer").min(1);
  s.field<&C::dsa_indexer_head_dim>("dsa_indexer_head_dim", "head width of the indexer").min(1);
  s.field<&C::dsa_indexer_topk>("dsa_indexer_topk", "keys that the indexer picks per query").min(1);
  s.field<&C::dsa_indexer_topk_freq>("dsa_indexer_topk_freq", "layers that share one choice of keys").min(1);
  s.field<&C::dsa_indexer_skip_topk_offset>("dsa_indexer_skip_topk_offset",
                                            "layers before the first shared choice")
      .min(0);
  s.field<&C::dsa_indexer_loss_coeff>("dsa_indexer_loss_coeff", "weight of the indexer's loss").min(0);
  s.field<&C::dsa_indexer_use_sparse_loss>("dsa_indexer_use_sparse_loss",
                                           "the indexer's loss looks at the chosen keys only");
  s.field<&C::dsa_indexer_rope_interleaved>("dsa_indexer_rope_interleaved",
                                            "the indexer rotates neighbouring pairs");
  s.field<&C::dsa_indexer_rotate_activation>("dsa_indexer_rotate_activation",
                                             "the indexer applies a Hadamard rotation");
  s.field<&C::dsa_indexer_scoring_relu>("dsa_indexer_scoring_relu", "the indexer's scores pass a ReLU");
  s.field<&C::dsa_indexer_k_norm_epsilon>("dsa_indexer_k_norm_epsilon", "epsilon of the indexer's key norm")
      .above(0);
  s.field<&C::dsa_indexer_k_norm_fp32>("dsa_indexer_k_norm_fp32", "the indexer's key norm runs in fp32");

  // Hybrid models
  s.field<&C::is_hybrid_model>("is_hybrid_model", "the layers follow hybrid_layer_pattern");
  s.field<&C::hybrid_layer_pattern>(
       "hybrid_layer_pattern",
       "one symbol per layer: M mamba, G delta net, * attention, + MLA, D sparse, - MLP, E experts")
      .also("--hybrid-override-pattern");
  s.field<&C::mamba_state_dim>("mamba_state_dim", "state width of Mamba").min(1);
  s.field<&C::mamba_head_dim>("mamba_head_dim", "head width of Mamba").min(1).max(1 << 24);
  s.field<&C::mamba_num_groups>("mamba_num_groups", "groups of Mamba's B and C").min(1).max(1 << 24);
  s.field<&C::mamba_num_heads>("mamba_num_heads", "heads of Mamba")
      .min(1)
      .max(1 << 24)
      .when_unset("2 x hidden_size / mamba_head_dim");
  s.field<&C::mamba_conv_kernel>("mamba_conv_kernel", "tokens that Mamba's convolution sees")
      .min(1)
      .max(limits::kConvolutionWidth);
  s.field<&C::mamba_conv_bias>("mamba_conv_bias", "Mamba's convolution has a bias");
  s.field<&C::mamba_proj_bias>("mamba_proj_bias", "Mamba's projections have a bias");
  s.field<&C::mamba_chunk_size>("mamba_chunk_size", "tokens whose products Mamba's scan makes at once")
      .min(1);
  s.field<&C::mamba_time_step_min>("mamba_time_step_min", "least step of Mamba's states").min(0);
  s.field<&C::mamba_time_step_max>("mamba_time_step_max", "largest step of Mamba's states").above(0);
  s.field<&C::mamba_norm_full_width>("mamba_norm_full_width",
                                     "Mamba's output is normed as a whole, not by groups");
  s.field<&C::gdp_num_householder>("gdp_num_householder",
                                   "Householder steps per token of a gated delta product")
      .min(1);
  s.field<&C::enable_mhc_connections>("enable_mhc_connections",
                                      "hyper-connections: several residual streams");
  s.field<&C::mhc_num_residual_streams>("mhc_num_residual_streams", "residual streams of hyper-connections")
      .min(1);
  s.field<&C::mhc_sinkhorn_iterations>("mhc_sinkhorn_iterations", "normalisations of the mixing matrix")
      .min(1);
  s.field<&C::mhc_init_gating_factor>("mhc_init_gating_factor", "initial gate of hyper-connections");
  s.field<&C::mhc_recompute_layer_num>("mhc_recompute_layer_num",
                                       "layers whose mixing is recomputed together")
      .min(1);
  s.field<&C::heterogeneous_layers_config_path>("heterogeneous_layers_config_path",
                                                "JSON file that describes each layer by itself");
  s.field<&C::heterogeneous_layers_config_encoded_json>("heterogeneous_layers_config_encoded_json",
                                                        "the same description as text");

  // Loss
  s.field<&C::calculate_per_token_loss>(
      "calculate_per_token_loss", "the loss is a mean over all tokens of the batch, not over micro-batches");
  s.field<&C::freeze_all_layers>("freeze_all_layers", "no weight is trained");
  return s;
}

}  // namespace

template <>
const Schema& schema<ModelConfig>() {
  static const Schema rows = model_config_schema();
  return rows;
}

}  // namespace megatron
