#include <cmath>

#include "megatron/base/error.h"
#include "megatron/bridge/families/common.h"
#include "megatron/bridge/families/families.h"

// Models with tokens that see those after them: BERT, T5.
namespace megatron {
namespace {

using enum WeightLayout;

ModelConfig bert(const HfSource& source) {
  const HfConfig& hf = source.config;
  hf.expect("is_decoder", false, "the mask of attention");
  hf.expect("add_cross_attention", false, "the layers");
  ModelConfig model;
  model.num_layers = hf.layers({"num_hidden_layers"});
  model.hidden_size = hf.integer({"hidden_size"});
  model.num_attention_heads = model.num_query_groups = hf.integer({"num_attention_heads"});
  model.kv_channels = model.hidden_size / model.num_attention_heads;
  model.ffn_hidden_size = hf.integer({"intermediate_size"});
  model.max_position_embeddings = model.seq_length = hf.size({"max_position_embeddings"}, 512);
  model.vocab_size = hf.integer({"vocab_size"});
  fit_vocabulary(model);
  model.num_tokentypes = hf.size({"type_vocab_size"}, 2);
  model.normalization = Normalization::layer_norm;
  model.layernorm_epsilon = hf.real({"layer_norm_eps"}, 1e-12);
  model.layernorm_after_residual = true;
  model.embedding_layernorm = true;
  model.bidirectional_attention = true;
  model.model_type = ModelType::bert;
  model.masked_lm_head = true;
  model.bert_binary_head = false;
  model.activation_func = read_activation(hf.text({"hidden_act"}, "gelu"));
  model.attention_dropout = hf.real({"attention_probs_dropout_prob"}, 0.1);
  model.hidden_dropout = hf.real({"hidden_dropout_prob"}, 0.1);
  model.init_method_std = hf.real({"initializer_range"}, 0.02);
  model.share_embeddings_and_output_weights = hf.flag("tie_word_embeddings", true);
  return model;
}

std::vector<WeightRule> bert_rules() {
  std::vector<WeightRule> rules = {
      {same, "embedding.word_embeddings.weight", {"bert.embeddings.word_embeddings.weight"}},
      {same, "embedding.position_embeddings.weight", {"bert.embeddings.position_embeddings.weight"}},
      {same, "embedding.tokentype_embeddings.weight", {"bert.embeddings.token_type_embeddings.weight"}},
      {same, "output_layer.weight", {"cls.predictions.decoder.weight"}},
      {same, "output_layer.bias", {"cls.predictions.bias"}}};
  auto both = [&](WeightLayout layout, const char* ours_weight, const char* ours_bias,
                  std::vector<std::string> weights, std::vector<std::string> biases) {
    rules.push_back({layout, ours_weight, std::move(weights)});
    rules.push_back({layout, ours_bias, std::move(biases)});
  };
  both(same, "embedding.norm.weight", "embedding.norm.bias", {"bert.embeddings.LayerNorm.weight"},
       {"bert.embeddings.LayerNorm.bias"});
  both(qkv, "decoder.layers.*.self_attention.linear_qkv.weight",
       "decoder.layers.*.self_attention.linear_qkv.bias",
       {"bert.encoder.layer.*.attention.self.query.weight", "bert.encoder.layer.*.attention.self.key.weight",
        "bert.encoder.layer.*.attention.self.value.weight"},
       {"bert.encoder.layer.*.attention.self.query.bias", "bert.encoder.layer.*.attention.self.key.bias",
        "bert.encoder.layer.*.attention.self.value.bias"});
  both(same, "decoder.layers.*.self_attention.linear_proj.weight",
       "decoder.layers.*.self_attention.linear_proj.bias",
       {"bert.encoder.layer.*.attention.output.dense.weight"},
       {"bert.encoder.layer.*.attention.output.dense.bias"});
  both(same, "decoder.layers.*.post_attention_layernorm.weight",
       "decoder.layers.*.post_attention_layernorm.bias",
       {"bert.encoder.layer.*.attention.output.LayerNorm.weight"},
       {"bert.encoder.layer.*.attention.output.LayerNorm.bias"});
  both(same, "decoder.layers.*.mlp.linear_fc1.weight", "decoder.layers.*.mlp.linear_fc1.bias",
       {"bert.encoder.layer.*.intermediate.dense.weight"}, {"bert.encoder.layer.*.intermediate.dense.bias"});
  both(same, "decoder.layers.*.mlp.linear_fc2.weight", "decoder.layers.*.mlp.linear_fc2.bias",
       {"bert.encoder.layer.*.output.dense.weight"}, {"bert.encoder.layer.*.output.dense.bias"});
  both(same, "decoder.layers.*.post_mlp_layernorm.weight", "decoder.layers.*.post_mlp_layernorm.bias",
       {"bert.encoder.layer.*.output.LayerNorm.weight"}, {"bert.encoder.layer.*.output.LayerNorm.bias"});
  both(same, "lm_head.dense.weight", "lm_head.dense.bias", {"cls.predictions.transform.dense.weight"},
       {"cls.predictions.transform.dense.bias"});
  both(same, "lm_head.layer_norm.weight", "lm_head.layer_norm.bias",
       {"cls.predictions.transform.LayerNorm.weight"}, {"cls.predictions.transform.LayerNorm.bias"});
  return rules;
}

ModelConfig t5(const HfSource& source) {
  const HfConfig& hf = source.config;
  hf.expect("is_decoder", false, "the layers");
  ModelConfig model;
  model.model_type = ModelType::t5;
  model.encoder_num_layers = hf.layers({"num_layers"});
  model.num_layers = model.decoder_num_layers = hf.layers({"num_decoder_layers"}, model.encoder_num_layers);
  model.hidden_size = hf.integer({"d_model"});
  model.num_attention_heads = model.num_query_groups = hf.integer({"num_heads"});
  model.kv_channels = hf.integer({"d_kv"});
  model.ffn_hidden_size = hf.integer({"d_ff"});
  model.vocab_size = hf.integer({"vocab_size"});
  fit_vocabulary(model);
  model.max_position_embeddings = model.seq_length = hf.size({"n_positions"}, 512);
  model.encoder_seq_length = model.decoder_seq_length = model.seq_length;
  model.position_embedding_type = PositionEmbedding::relative;
  model.relative_attention_num_buckets = hf.size({"relative_attention_num_buckets"}, 32);
  model.relative_attention_max_distance = hf.size({"relative_attention_max_distance"}, 128);
  model.softmax_scale = 1;
  model.normalization = Normalization::rms_norm;
  model.layernorm_epsilon = hf.real({"layer_norm_epsilon"}, 1e-6);
  model.add_bias_linear = false;
  // "relu", or "gated-" before the activation of a gated unit, whose gelu is the one by tanh.
  std::string act = hf.text({"feed_forward_proj"}, "relu");
  if ((model.gated_linear_unit = act.starts_with("gated-"))) act = act.substr(6);
  model.activation_func =
      act == "gelu" && model.gated_linear_unit ? Activation::gelu_tanh : read_activation(act);
  model.attention_dropout = model.hidden_dropout = hf.real({"dropout_rate"}, 0.1);
  model.share_embeddings_and_output_weights =
      hf.flag("tie_word_embeddings", !source.has_tensor("lm_head.weight", false));
  if (hf.flag("scale_decoder_outputs", model.share_embeddings_and_output_weights))
    model.output_multiplier = 1 / std::sqrt(static_cast<double>(model.hidden_size));
  return model;
}

std::vector<WeightRule> t5_rules() {
  return {
      {same, "embedding.word_embeddings.weight", {"shared.weight"}},
      {same, "lm_head.output_layer.weight", {"lm_head.weight"}},
      {same,
       "encoder_relative_pos_emb.relative_attention_bias.weight",
       {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}},
      {same,
       "decoder_relative_pos_emb.relative_attention_bias.weight",
       {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"}},
      {same, "encoder.final_layernorm.weight", {"encoder.final_layer_norm.weight"}},
      {same, "decoder.final_layernorm.weight", {"decoder.final_layer_norm.weight"}},
      {same, "encoder.layers.*.input_layernorm.weight", {"encoder.block.*.layer.0.layer_norm.weight"}},
      {qkv,
       "encoder.layers.*.self_attention.linear_qkv.weight",
       {"encoder.block.*.layer.0.SelfAttention.q.weight", "encoder.block.*.layer.0.SelfAttention.k.weight",
        "encoder.block.*.layer.0.SelfAttention.v.weight"}},
      {same,
       "encoder.layers.*.self_attention.linear_proj.weight",
       {"encoder.block.*.layer.0.SelfAttention.o.weight"}},
      {same, "encoder.layers.*.pre_mlp_layernorm.weight", {"encoder.block.*.layer.1.layer_norm.weight"}},
      {gate_up,
       "encoder.layers.*.mlp.linear_fc1.weight",
       {"encoder.block.*.layer.1.DenseReluDense.wi_0.weight",
        "encoder.block.*.layer.1.DenseReluDense.wi_1.weight",
        "encoder.block.*.layer.1.DenseReluDense.wi.weight"}},
      {same, "encoder.layers.*.mlp.linear_fc2.weight", {"encoder.block.*.layer.1.DenseReluDense.wo.weight"}},
      {same, "decoder.layers.*.input_layernorm.weight", {"decoder.block.*.layer.0.layer_norm.weight"}},
      {qkv,
       "decoder.layers.*.self_attention.linear_qkv.weight",
       {"decoder.block.*.layer.0.SelfAttention.q.weight", "decoder.block.*.layer.0.SelfAttention.k.weight",
        "decoder.block.*.layer.0.SelfAttention.v.weight"}},
      {same,
       "decoder.layers.*.self_attention.linear_proj.weight",
       {"decoder.block.*.layer.0.SelfAttention.o.weight"}},
      {same,
       "decoder.layers.*.pre_cross_attn_layernorm.weight",
       {"decoder.block.*.layer.1.layer_norm.weight"}},
      {same,
       "decoder.layers.*.cross_attention.linear_q.weight",
       {"decoder.block.*.layer.1.EncDecAttention.q.weight"}},
      {kv,
       "decoder.layers.*.cross_attention.linear_kv.weight",
       {"decoder.block.*.layer.1.EncDecAttention.k.weight",
        "decoder.block.*.layer.1.EncDecAttention.v.weight"}},
      {same,
       "decoder.layers.*.cross_attention.linear_proj.weight",
       {"decoder.block.*.layer.1.EncDecAttention.o.weight"}},
      {same, "decoder.layers.*.pre_mlp_layernorm.weight", {"decoder.block.*.layer.2.layer_norm.weight"}},
      {gate_up,
       "decoder.layers.*.mlp.linear_fc1.weight",
       {"decoder.block.*.layer.2.DenseReluDense.wi_0.weight",
        "decoder.block.*.layer.2.DenseReluDense.wi_1.weight",
        "decoder.block.*.layer.2.DenseReluDense.wi.weight"}},
      {same, "decoder.layers.*.mlp.linear_fc2.weight", {"decoder.block.*.layer.2.DenseReluDense.wo.weight"}}};
}

}  // namespace

std::vector<Family> encoder_families() {
  // Heads of BERT's other tasks, and copies of shared weights.
  return {{{"BertForMaskedLM"},
           bert,
           bert_rules(),
           nullptr,
           {"bert.pooler.", "cls.seq_relationship.", "cls.predictions.decoder."},
           {{".LayerNorm.weight", ".LayerNorm.gamma"}, {".LayerNorm.bias", ".LayerNorm.beta"}}},
          {{"T5ForConditionalGeneration"},
           t5,
           t5_rules(),
           nullptr,
           {"encoder.embed_tokens.", "decoder.embed_tokens.",
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias."}}};
}

}  // namespace megatron
