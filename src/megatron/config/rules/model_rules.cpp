#include <algorithm>
#include <array>

#include "megatron/base/error.h"
#include "megatron/config/resolve/layer_blocks.h"
#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

void sizes_are_given(ConfigBuilder& builder) {
  if (builder.purpose == Purpose::inspect) return;
  for (const Problem& problem : builder.problems())  // what would have given them could not be read
    if (problem.setting.starts_with("--hf") || problem.setting.starts_with("--config")) return;
  const ModelConfig& model = builder.config.model;
  if (model.num_layers == 0)
    builder.reject("model.num_layers", "a model needs layers",
                   "give --num-layers N, or a model by --config or --hf");
  if (model.hidden_size == 0)
    builder.reject("model.hidden_size", "a model needs a width",
                   "give --hidden-size N, or a model by --config or --hf");
  if (model.num_attention_heads == 0)
    builder.reject("model.num_attention_heads", "attention needs heads",
                   "give --num-attention-heads N, or a model by --config or --hf");
}

// Whether positions turn pairs of a head's channels.
bool turns_heads(const ModelConfig& model) {
  const PositionEmbedding type = model.position_embedding_type;
  return type == PositionEmbedding::rope || type == PositionEmbedding::yarn ||
         type == PositionEmbedding::mrope;
}

void heads_fit_width(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.kv_channels == 0 && model.hidden_size > 0 && model.num_attention_heads > 0)
    builder.reject("model.num_attention_heads",
                   fmt::format("does not divide hidden_size = {}", model.hidden_size),
                   fmt::format("use {}, or give --kv-channels N",
                               common_divisors(std::array{model.hidden_size}, [&](int64_t heads) {
                                 const bool groups = !builder.given("model.num_query_groups") ||
                                                     heads % model.num_query_groups == 0;
                                 const bool pairs = !turns_heads(model) || model.hidden_size / heads % 2 == 0;
                                 return groups && pairs &&
                                        heads % builder.config.parallel.tensor_model_parallel_size == 0;
                               })));
}

void query_groups_divide_heads(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.num_attention_heads > 0 && model.num_query_groups > 0 &&
      model.num_attention_heads % model.num_query_groups != 0)
    builder.reject(
        "model.num_query_groups",
        fmt::format("does not divide num_attention_heads = {}", model.num_attention_heads),
        fmt::format("use {}", common_divisors(std::array{model.num_attention_heads}, [&](int64_t n) {
                      const int64_t tp = builder.config.parallel.tensor_model_parallel_size;
                      return n % tp == 0 || tp % n == 0;
                    })));
}

void lengths_agree(ConfigBuilder& builder) {
  const Config& config = builder.config;
  if (config.model.seq_length != config.dataset.seq_length)
    return builder.reject("dataset.seq_length",
                          fmt::format("model.seq_length is {}", config.model.seq_length), "leave it out");
  const int64_t positions = config.model.max_position_embeddings;
  if (positions >= config.model.seq_length) return;
  // Positions that a model has learned are as many as its weights have.
  const bool learned = config.model.position_embedding_type == PositionEmbedding::learned_absolute &&
                       builder.origin("model.max_position_embeddings").source == Source::hf;
  builder.reject("model.max_position_embeddings",
                 fmt::format("is less than seq_length = {}", config.model.seq_length),
                 learned ? fmt::format("use --seq-length {}", positions)
                         : fmt::format("use at least {}", config.model.seq_length));
}

void positions(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const PositionEmbedding kind = model.position_embedding_type;
  const char* key = "model.position_embedding_type";
  if (kind == PositionEmbedding::mrope && model.mrope_section.empty())
    builder.reject(key, "needs the sections of each head", "give --mrope-section T H W");
  if (model.rope_scaling && kind != PositionEmbedding::rope)
    builder.note(fmt::format("rope_scaling has no effect: position_embedding_type is {}", name_of(kind)));
  if (!model.add_position_embedding && kind == PositionEmbedding::learned_absolute)
    builder.reject("model.add_position_embedding", "position_embedding_type is learned_absolute",
                   "use --position-embedding-type none, or leave it out");
  if (kind == PositionEmbedding::yarn && model.rotary_interleaved)
    builder.reject("model.rotary_interleaved", "yarn rotates halves", "leave it out");
  if (model.rope_scaling_low_freq_factor >= model.rope_scaling_high_freq_factor)
    builder.reject("model.rope_scaling_low_freq_factor", "is not below rope_scaling_high_freq_factor",
                   "use --rope-scaling-low-freq-factor 1 --rope-scaling-high-freq-factor 4");
  if (model.is_hybrid_model && kind != PositionEmbedding::rope && kind != PositionEmbedding::none &&
      builder.given(key))
    builder.reject(key, "hybrid models use rope or none",
                   model.multi_latent_attention ? "use rope" : "use rope or none");
}

// Channels are rotated in pairs.
void rotated_channels_fit(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const bool latent = model.multi_latent_attention;  // turns a part of every head, whatever embeddings have
  const bool turns = turns_heads(model) || latent;
  if (!turns || model.kv_channels == 0) return;
  const int64_t rotated =
      latent ? model.qk_pos_emb_head_dim
             : static_cast<int64_t>(static_cast<double>(model.kv_channels) * model.rotary_percent);
  if (rotated < 2 || rotated % 2 != 0)
    return builder.reject(latent                     ? "model.qk_pos_emb_head_dim"
                          : model.rotary_percent < 1 ? "model.rotary_percent"
                                                     : "model.kv_channels",
                          fmt::format("{} channels of a head cannot be rotated in pairs", rotated),
                          !latent && model.rotary_percent < 1
                              ? std::string("leave it out")
                              : fmt::format("use {}", rotated + 2 - rotated % 2));
  for (const auto& [key, factors] : {std::pair{"model.longrope_short_factor", &model.longrope_short_factor},
                                     {"model.longrope_long_factor", &model.longrope_long_factor}})
    if (!latent && !model.longrope_short_factor.empty() &&
        static_cast<int64_t>(factors->size()) != rotated / 2)
      builder.reject(
          key, fmt::format("has {} factors for {} pairs of channels", factors->size(), rotated / 2),
          "leave out --longrope-short-factor and --longrope-long-factor, or give one for each pair");
}

void attention_kinds(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.multi_latent_attention && builder.given("model.num_query_groups") &&
      model.num_query_groups != model.num_attention_heads)
    builder.reject("model.num_query_groups", "multi-latent attention has no shared key heads",
                   "leave it out");
  if (model.multi_latent_attention && !model.window_size.empty())
    builder.reject("model.window_size", "multi-latent attention has no window", "leave it out");
  const std::pair<const char*, bool> not_latent[] = {
      {"model.softmax_type", model.softmax_type != SoftmaxType::vanilla},
      {"model.attn_logit_softcapping", model.attn_logit_softcapping.has_value()},
      {"model.attention_output_gate", model.attention_output_gate},
      {"model.query_scaling_beta", model.query_scaling_beta.has_value()},
      {"model.add_qkv_bias", model.add_qkv_bias},
      {"model.qk_l2_norm", model.qk_l2_norm}};
  for (const auto& [key, set] : not_latent)
    if (model.multi_latent_attention && set)
      builder.reject(key, "is not built for multi-latent attention", "leave it out");
  if (model.qk_l2_norm && model.qk_layernorm_full_width)
    builder.reject("model.qk_l2_norm", "norms each head on its own", "leave qk_layernorm_full_width out");
}

// What DeepSeek's sparse attention needs, and what it does not go with.
void sparse_attention_fits(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  if (model.is_hybrid_model && !model.attends_sparsely() &&
      model.experimental_attention_variant == AttentionVariant::dsa)
    builder.reject("model.experimental_attention_variant",
                   "sparse attention of a hybrid model is D in its pattern", "leave it out");
  if (!model.attends_sparsely()) return;
  const char* kind =
      model.is_hybrid_model ? "model.hybrid_layer_pattern" : "model.experimental_attention_variant";
  if (builder.on_gpus())
    builder.reject(kind, "dsa has no CUDA kernels",
                   "leave it out for multi-latent attention, or --device cpu");
  if (!model.multi_latent_attention || !model.q_lora_rank)
    builder.reject(kind, "dsa chooses keys of multi-latent attention by its latent queries",
                   "give --multi-latent-attention and --q-lora-rank N");
  for (const auto& [key, flag, value] :
       {std::tuple{"model.dsa_indexer_n_heads", "--dsa-indexer-n-heads", model.dsa_indexer_n_heads},
        {"model.dsa_indexer_head_dim", "--dsa-indexer-head-dim", model.dsa_indexer_head_dim},
        {"model.dsa_indexer_topk", "--dsa-indexer-topk", model.dsa_indexer_topk}})
    if (value == 0) builder.reject(key, "dsa needs it", fmt::format("give {} N", flag));
  if (model.dsa_indexer_head_dim > 0 && model.dsa_indexer_head_dim < model.qk_pos_emb_head_dim)
    builder.reject("model.dsa_indexer_head_dim",
                   fmt::format("is less than the {} channels that are turned", model.qk_pos_emb_head_dim),
                   fmt::format("use {} or more", model.qk_pos_emb_head_dim));
  if (config.parallel.context_parallel_size > 1)
    builder.reject(kind, "dsa does not split sequences over ranks", "use --context-parallel-size 1");
  for (const auto& [key, given] :
       {std::pair{"dataset.reset_attention_mask", config.dataset.reset_attention_mask},
        {"dataset.inter_document_masking", config.dataset.inter_document_masking},
        {"dataset.sft", config.dataset.sft}})
    if (given) builder.reject(key, "dsa reads rows of one sequence each", "leave it out");
}

void mamba_heads_fit(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!has_layers(model, 'M')) return;
  if (model.mamba_num_heads > 0 && model.mamba_num_heads % model.mamba_num_groups != 0)
    builder.reject(
        "model.mamba_num_groups", fmt::format("does not divide mamba_num_heads = {}", model.mamba_num_heads),
        fmt::format("use {}", common_divisors(std::array{model.mamba_num_heads}, [&](int64_t groups) {
                      return groups % builder.config.parallel.tensor_model_parallel_size == 0;
                    })));
}

// Logits that exist whole are made in the model's number format.
void logits_format(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.output_logit_dtype != "fp32") return;
  if (model.final_logit_softcapping)
    builder.reject("model.output_logit_dtype",
                   "final_logit_softcapping bounds them in the model's number format", "leave it out");
  if (model.masked_lm_head || model.output_layer_bias)
    builder.reject("model.output_logit_dtype",
                   "the output layer has a bias, which is added in the model's number format",
                   "leave it out");
}

void layer_lists(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.num_layers == 0 || model.is_hybrid_model) return;
  const std::pair<const char*, const Json*> lists[] = {
      {"model.moe_layer_freq", &model.moe_layer_freq},
      {"model.window_attn_skip_freq", &model.window_attn_skip_freq},
      {"model.no_rope_freq", &model.no_rope_freq},
      {"model.linear_attention_freq", &model.linear_attention_freq}};
  for (const auto& [key, list] : lists)
    if (list == &model.window_attn_skip_freq && model.window_size.empty())
      continue;  // it has no effect
    else if (list->is_array() && static_cast<int64_t>(list->size()) != model.num_layers)
      builder.reject(key, fmt::format("has {} entries for {} layers", list->size(), model.num_layers),
                     "leave it out, or give one entry per layer");
}

void gated_units(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!model.gated_linear_unit && model.glu_linear_offset != 0)
    builder.reject("model.glu_linear_offset", "the feed-forward layer is not gated",
                   "use --swiglu or --quick-geglu");
  if (!model.gated_linear_unit && model.activation_func_clamp_value)
    builder.reject("model.activation_func_clamp_value", "the feed-forward layer is not gated",
                   "use --swiglu or --quick-geglu");
  if (model.gated_linear_unit && model.activation_func == Activation::tanh)
    builder.reject("model.activation_func", "tanh is no gate", "use silu, gelu, relu or sigmoid");
}

void mup(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.use_mup && model.mup_base_hidden_size == 0)
    builder.reject("model.use_mup", "needs the width at which hyperparameters were found",
                   "give --mup-base-hidden-size N");
}

void mtp_layers(ConfigBuilder& builder) {
  if (builder.config.model.mtp_hsm && builder.config.model.mtp_num_layers > 1 &&
      builder.config.parallel.context_parallel_size > 1)
    builder.reject("model.mtp_hsm",
                   "states of the tokens ahead are not fetched from other context-parallel ranks",
                   "use --context-parallel-size 1, or leave it out");
  const ModelConfig& model = builder.config.model;
  if (model.mtp_num_layers > 0 && model.position_embedding_type == PositionEmbedding::learned_absolute)
    builder.reject("model.mtp_num_layers", "MTP layers have no learned positions",
                   "use --position-embedding-type rope");
}

// What the layers of one model cannot do where they differ.
void differing_layers_fit(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const char* key = "model.heterogeneous_layers_config_encoded_json";
  std::vector<LayerBlock> blocks;
  try {
    blocks = read_layer_blocks(model);
  } catch (const Error& error) {
    return builder.reject(key, error.what(),
                          "leave it out, or give {\"block_configs\": [...]} with one entry per layer");
  }
  if (blocks.empty()) return;
  if (static_cast<int64_t>(blocks.size()) != model.num_layers)
    builder.reject(key, fmt::format("describes {} layers of {}", blocks.size(), model.num_layers),
                   fmt::format("use --num-layers {}", blocks.size()));
  if (model.is_hybrid_model || model.num_moe_experts > 0 || model.multi_latent_attention ||
      model.mtp_num_layers > 0 || model.experimental_attention_variant != AttentionVariant::none)
    builder.reject(key, "describes layers of attention and an MLP alone", "leave it out");
  const int64_t tp = builder.config.parallel.tensor_model_parallel_size;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const LayerBlock& block = blocks[layer];
    if (block.attention && (block.query_groups < 1 || model.num_attention_heads % block.query_groups != 0 ||
                            block.query_groups % tp != 0))
      return builder.reject(key,
                            fmt::format("layer {} has {} key heads for {} heads on {} tensor-parallel ranks",
                                        layer, block.query_groups, model.num_attention_heads, tp),
                            "leave it out, or use key heads that divide");
    if (block.mlp && (block.ffn_hidden_size < 1 || block.ffn_hidden_size % tp != 0))
      return builder.reject(key,
                            fmt::format("layer {} has an MLP of width {} for {} tensor-parallel ranks", layer,
                                        block.ffn_hidden_size, tp),
                            "use --tensor-model-parallel-size 1");
  }
}

// A layer without an indexer reads what one before it, of the same chunk of a stage, chose.
void chosen_keys_are_at_hand(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  const ParallelConfig& p = builder.config.parallel;
  if (!model.attends_sparsely() || model.dsa_indexer_topk_freq <= 1) return;
  const char* key = "model.dsa_indexer_topk_freq";
  const int64_t chunks = p.pipeline_model_parallel_size * p.virtual_pipeline_model_parallel_size;
  const bool even = p.pipeline_model_parallel_layout.empty() && p.num_layers_in_first_pipeline_stage == 0 &&
                    p.num_layers_in_last_pipeline_stage == 0 && !p.account_for_embedding_in_pipeline_split &&
                    !p.account_for_loss_in_pipeline_split && model.num_layers % chunks == 0;
  if (model.is_hybrid_model || (chunks > 1 && !even))
    return builder.reject(key,
                          model.is_hybrid_model ? "layers of a hybrid pattern choose keys by themselves"
                                                : "stages of different sizes cut layers that share keys",
                          "use 1");
  for (int64_t chunk = 1; chunk < chunks; ++chunk)
    if (const int64_t first = chunk * model.num_layers / chunks; model.chooser_of_keys(first) != first)
      return builder.reject(
          key,
          fmt::format(
              "layer {}, the first of a pipeline chunk of {} layers, would read keys that layer {} of "
              "another chose",
              first, model.num_layers / chunks, model.chooser_of_keys(first)),
          "use 1, or --pipeline-model-parallel-size 1");
}

// Several residual streams pass through layers of attention and an MLP.
void streams_fit(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!model.enable_mhc_connections) return;
  const char* key = "model.enable_mhc_connections";
  for (auto [given, reason] :
       {std::pair{model.is_hybrid_model, "layers of a hybrid pattern have one stream"},
        {model.masks_text(), "BERT and T5 have one stream"},
        {model.mtp_num_layers > 0, "MTP layers read one stream"},
        {model.parallel_residual, "parallel_residual adds both parts to one stream"},
        {model.layernorm_after_residual, "layernorm_after_residual norms one stream"},
        {model.fp32_residual_connection, "fp32_residual_connection widens one stream"}})
    if (given) return builder.reject(key, reason, "leave it out");
}

void heterogeneous(ConfigBuilder& builder) {
  differing_layers_fit(builder);
  const ModelConfig& model = builder.config.model;
  if (!model.heterogeneous_layers_config_path.empty() &&
      !model.heterogeneous_layers_config_encoded_json.empty())
    builder.reject("model.heterogeneous_layers_config_path", "layers are described twice", "leave it out");
}

// Both parts of a layer read its input: there is no sum between them that could be normed or asked about.
void parallel_residual(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!model.parallel_residual) return;
  if (model.layernorm_after_residual || model.model_type == ModelType::t5)
    builder.reject("model.parallel_residual",
                   model.layernorm_after_residual ? "layernorm_after_residual norms the sum after attention"
                                                  : "T5's decoders look at the encoder after attention",
                   "leave it out");
}

void fp32_residual_fits(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!model.fp32_residual_connection) return;
  const char* key = "model.fp32_residual_connection";
  const PrecisionConfig& precision = builder.config.precision;
  // A checkpoint that was trained in bf16 is read in fp32, where its residuals are fp32 as well.
  if (!precision.bf16 && !precision.fp16 && builder.purpose != Purpose::forward)
    builder.reject(key, "the whole model is fp32", "leave it out, or add --bf16");
  if (model.layernorm_after_residual || !model.pre_layernorm)
    builder.reject(key, "layers read the stream itself, not a norm of it", "leave it out");
  if (model.encoder_num_layers > 0 && model.decoder_num_layers > 0)
    builder.reject(key, "encoder-decoder models have streams of the model's own format", "leave it out");
}

void qk_clip_fits(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (!model.qk_clip) return;
  if (model.softmax_type != SoftmaxType::vanilla)
    builder.reject("model.qk_clip", "the largest score may be the softmax offset's, which no query makes",
                   "leave it out, or use --softmax-type vanilla");
  if (model.encoder_num_layers > 0 && model.decoder_num_layers > 0)
    builder.reject("model.qk_clip", "encoder-decoder models have scores of two kinds", "leave it out");
  if (model.qk_layernorm || model.qk_l2_norm)
    builder.reject("model.qk_clip", "queries and keys are normed, so that their weights' sizes do not count",
                   "leave it out, or leave out --qk-layernorm and --qk-l2-norm");
  if (model.qk_clip_alpha >= 1) builder.reject("model.qk_clip_alpha", "leaves keys alone", "use 0.5");
}

void products_have_layers(ConfigBuilder& builder) {
  const ModelConfig& model = builder.config.model;
  if (model.gated_delta_product && !has_layers(model, 'M'))
    builder.reject("model.gated_delta_product", "no layer of the model is M", "leave it out");
}

constexpr Rule kModelRules[] = {
    {"products_have_layers", "model.gated_delta_product model.hybrid_layer_pattern model.is_hybrid_model",
     "gated delta products are M layers of a hybrid pattern", products_have_layers},
    {"chosen_keys_are_at_hand",
     "model.dsa_indexer_* model.experimental_attention_variant model.hybrid_layer_pattern "
     "model.is_hybrid_model model.num_layers model.pipeline_model_parallel_layout "
     "model.pipeline_model_parallel_size model.virtual_pipeline_model_parallel_size "
     "model.num_layers_in_first_pipeline_stage model.num_layers_in_last_pipeline_stage "
     "model.account_for_embedding_in_pipeline_split model.account_for_loss_in_pipeline_split",
     "layers that share chosen keys lie on one chunk of a stage", chosen_keys_are_at_hand},
    {"streams_fit",
     "model.enable_mhc_connections model.is_hybrid_model model.model_type model.mtp_num_layers "
     "model.parallel_residual model.layernorm_after_residual model.fp32_residual_connection",
     "several residual streams suit the model", streams_fit},
    {"fp32_residual_fits",
     "model.fp32_residual_connection model.bf16 model.fp16 model.layernorm_after_residual "
     "model.pre_layernorm "
     "model.encoder_num_layers model.decoder_num_layers",
     "an fp32 stream suits the model", fp32_residual_fits},
    {"qk_clip_fits",
     "model.qk_clip model.qk_clip_alpha model.softmax_type model.encoder_num_layers model.decoder_num_layers "
     "model.qk_layernorm model.qk_l2_norm",
     "bounds on scores suit the attention", qk_clip_fits},
    {"sizes_are_given", "model.num_layers model.hidden_size model.num_attention_heads",
     "layers, width and heads are given", sizes_are_given},
    {"heads_fit_width", "model.num_attention_heads model.hidden_size model.kv_channels",
     "heads divide the width, or kv_channels is given", heads_fit_width},
    {"query_groups_divide_heads", "model.num_query_groups model.num_attention_heads",
     "key heads divide the query heads", query_groups_divide_heads},
    {"lengths_agree", "model.seq_length dataset.seq_length model.max_position_embeddings",
     "model and data have one sequence length, within the positions", lengths_agree},
    {"positions",
     "model.position_embedding_type model.mrope_section model.rope_scaling model.rotary_interleaved "
     "model.add_position_embedding "
     "model.rope_scaling_low_freq_factor model.rope_scaling_high_freq_factor model.is_hybrid_model",
     "options of positions suit their kind", positions},
    {"rotated_channels_fit",
     "model.position_embedding_type model.kv_channels model.rotary_percent model.multi_latent_attention "
     "model.qk_pos_emb_head_dim model.longrope_short_factor model.longrope_long_factor",
     "heads have pairs of channels to turn", rotated_channels_fit},
    {"sparse_attention_fits",
     "run.device model.experimental_attention_variant model.multi_latent_attention model.q_lora_rank "
     "model.dsa_indexer_* "
     "model.qk_pos_emb_head_dim model.context_parallel_size dataset.reset_attention_mask "
     "dataset.inter_document_masking dataset.sft model.hybrid_layer_pattern model.is_hybrid_model",
     "sparse attention has what it needs", sparse_attention_fits},
    {"mamba_heads_fit", "model.mamba_num_heads model.mamba_num_groups model.hybrid_layer_pattern",
     "groups share Mamba's heads", mamba_heads_fit},
    {"attention_kinds",
     "model.multi_latent_attention model.num_query_groups model.qk_l2_norm model.qk_layernorm_full_width "
     "model.window_size model.window_attn_skip_freq model.experimental_attention_variant",
     "options of attention suit its kind", attention_kinds},
    {"logits_format",
     "model.output_logit_dtype model.final_logit_softcapping model.masked_lm_head model.output_layer_bias",
     "logits can be made in their number format", logits_format},
    {"layer_lists",
     "model.num_layers model.moe_layer_freq model.window_attn_skip_freq model.window_size model.no_rope_freq "
     "model.linear_attention_freq",
     "lists by layer have one entry per layer", layer_lists},
    {"gated_units",
     "model.gated_linear_unit model.glu_linear_offset model.activation_func "
     "model.activation_func_clamp_value",
     "options of gated units need one", gated_units},
    {"mup", "model.use_mup model.mup_base_hidden_size", "muP needs its base width", mup},
    {"parallel_residual", "model.parallel_residual model.layernorm_after_residual model.model_type",
     "attention and MLP side by side have no sum between them", parallel_residual},
    {"mtp_layers",
     "model.mtp_num_layers model.mtp_hsm model.context_parallel_size model.position_embedding_type",
     "options of MTP layers need them", mtp_layers},
    {"heterogeneous",
     "model.heterogeneous_layers_config_path model.heterogeneous_layers_config_encoded_json "
     "model.num_layers model.tensor_model_parallel_size",
     "single layers are described once, and one by one", heterogeneous},
};

}  // namespace

std::span<const Rule> model_rules() { return kModelRules; }

}  // namespace megatron
