#include "megatron/base/error.h"
#include "megatron/bridge/families/common.h"
#include "megatron/bridge/families/families.h"

// Decoders with a vision tower: Qwen2-VL, Qwen2.5-VL, Gemma 3, LLaVA. The decoder is read as its family
// without one.
namespace megatron {
namespace {

using enum WeightLayout;

Family text_family(std::vector<Family> group, std::string_view architecture) {
  for (Family& family : group)
    if (family.architectures.front() == architecture) return std::move(family);
  fail("bridge: there is no family {}", architecture);
}
Family qwen2() { return text_family(qwen_families(), "Qwen2ForCausalLM"); }
Family llama() { return text_family(llama_families(), "LlamaForCausalLM"); }
Family gemma3() { return text_family(gemma_families(), "Gemma3ForCausalLM"); }

// The decoder's part of the configuration; older files keep it at the top. Its tensors stand under `prefix`.
ModelConfig read_text(const HfSource& source, const Family& family, std::string_view prefix) {
  const Json* nested = source.config.find({"text_config"});
  const HfConfig text(nested ? *nested : source.config.json());
  HfSource inner{text, {}};
  if (source.holds)
    inner.holds = [&](std::string_view name) {
      return source.holds(std::string(prefix) + std::string(name));
    };
  return family.configure(inner);
}

HfConfig vision_part(const HfSource& source) {
  const Json* vision = source.config.find({"vision_config"});
  if (!vision) throw ConfigError("config.json: it has no vision_config");
  return HfConfig(*vision);
}

ModelConfig qwen_vl(const HfSource& source) {
  const HfConfig& hf = source.config;
  ModelConfig model = read_text(source, qwen2(), "");
  model.share_embeddings_and_output_weights =
      hf.flag("tie_word_embeddings", !source.has_tensor("lm_head.weight", true));
  const Json* nested = hf.find({"text_config"});
  const HfRope rope = (nested ? HfConfig(*nested) : hf).rope();
  model.position_embedding_type = PositionEmbedding::mrope;
  model.rotary_base = rope.theta.value_or(1e6);
  const HfConfig scaling(rope.scaling);
  if (scaling.has("mrope_section"))
    for (const Json& section : scaling.list("mrope_section", 3))
      model.mrope_section.push_back(section.as_int());
  else
    model.mrope_section = {16, 24, 24};
  return model;
}

VisionConfig qwen_tower(const HfSource& source) {
  const HfConfig& hf = source.config;
  const HfConfig part = vision_part(source);
  VisionConfig vision;
  vision.image_token_id = hf.integer({"image_token_id"}, 151655);
  vision.video_token_id = hf.integer({"video_token_id"}, 151656);
  vision.vision_num_layers = part.layers({"depth"}, 32);
  vision.vision_num_attention_heads = part.size({"num_heads"}, 16);
  vision.vision_in_channels = part.size({"in_channels", "in_chans"}, 3);
  vision.vision_patch_size = part.size({"patch_size"}, 14);
  vision.vision_temporal_patch_size = part.size({"temporal_patch_size"}, 2);
  vision.vision_spatial_merge_size = part.size({"spatial_merge_size"}, 2);
  vision.vision_init_method_std = part.real({"initializer_range"}, 0.02);
  return vision;
}

VisionConfig qwen2_tower(const HfSource& source) {
  const HfConfig part = vision_part(source);
  VisionConfig vision = qwen_tower(source);
  vision.vision_tower = VisionTowerKind::qwen2;
  vision.vision_hidden_size = part.size({"embed_dim"}, 1280);
  vision.vision_output_size = part.size({"hidden_size"}, 3584);
  vision.vision_ffn_hidden_size =
      static_cast<int64_t>(static_cast<double>(vision.vision_hidden_size) * part.real({"mlp_ratio"}, 4));
  return vision;
}

VisionConfig qwen2_5_tower(const HfSource& source) {
  const HfConfig part = vision_part(source);
  VisionConfig vision = qwen_tower(source);
  vision.vision_tower = VisionTowerKind::qwen2_5;
  vision.vision_hidden_size = part.size({"hidden_size"}, 1280);
  vision.vision_output_size = part.size({"out_hidden_size"}, 3584);
  vision.vision_ffn_hidden_size = part.size({"intermediate_size"}, 3420);
  vision.vision_window_size = part.size({"window_size"}, 112);
  vision.vision_full_attention_layers = {7, 15, 23, 31};
  if (part.has("fullatt_block_indexes")) {
    vision.vision_full_attention_layers.clear();
    for (const Json& layer : part.list("fullatt_block_indexes"))
      vision.vision_full_attention_layers.push_back(layer.as_int());
  }
  return vision;
}

ModelConfig gemma3_vl(const HfSource& source) {
  ModelConfig model = read_text(source, gemma3(), "language_model.");
  model.share_embeddings_and_output_weights = source.config.flag("tie_word_embeddings", true);
  model.bidirectional_attention = true;  // but for the mask: causal between texts, none inside an image
  return model;
}

// What SigLIP's and CLIP's towers have where config.json does not say.
struct TowerDefaults {
  VisionTowerKind kind;
  int64_t image_token, layers, hidden_size, ffn_hidden_size, image_size;
  double epsilon;
};

VisionConfig patch_tower(const HfSource& source, const TowerDefaults& otherwise, const Family& text) {
  const HfConfig part = vision_part(source);
  VisionConfig vision;
  vision.vision_tower = otherwise.kind;
  vision.image_token_id =
      source.config.integer({"image_token_index", "image_token_id"}, otherwise.image_token);
  vision.vision_num_layers = part.layers({"num_hidden_layers"}, otherwise.layers);
  vision.vision_hidden_size = part.size({"hidden_size"}, otherwise.hidden_size);
  vision.vision_output_size = read_text(source, text, "language_model.").hidden_size;
  vision.vision_ffn_hidden_size = part.size({"intermediate_size"}, otherwise.ffn_hidden_size);
  vision.vision_num_attention_heads = part.size({"num_attention_heads"}, 16);
  vision.vision_in_channels = part.size({"num_channels"}, 3);
  vision.vision_patch_size = part.size({"patch_size"}, 14);
  vision.vision_image_size = part.size({"image_size"}, otherwise.image_size);
  vision.vision_layernorm_epsilon = part.real({"layer_norm_eps"}, otherwise.epsilon);
  return vision;
}

VisionConfig siglip(const HfSource& source) {
  VisionConfig vision =
      patch_tower(source, {VisionTowerKind::siglip, 262144, 27, 1152, 4304, 896, 1e-6}, gemma3());
  vision.vision_bidirectional = true;
  vision.vision_tokens_per_image = source.config.size({"mm_tokens_per_image"}, 256);
  return vision;
}

ModelConfig llava(const HfSource& source) {
  ModelConfig model = read_text(source, llama(), "language_model.");
  model.share_embeddings_and_output_weights = source.config.flag("tie_word_embeddings", false);
  return model;
}

VisionConfig clip(const HfSource& source) {
  const HfConfig& hf = source.config;
  VisionConfig vision =
      patch_tower(source, {VisionTowerKind::clip, 32000, 24, 1024, 4096, 336, 1e-5}, llama());
  const Json* feature = hf.find({"vision_feature_layer"});  // negative: counted from the last
  const int64_t layers = vision.vision_num_layers, last = feature ? feature->as_int() : -2;
  // Hidden states are counted from that before the first layer.
  vision.vision_num_layers = last < 0 ? layers + 1 + last : last;
  if (vision.vision_num_layers < 1 || vision.vision_num_layers > layers)
    throw ConfigError(
        fmt::format("config.json: vision_feature_layer is {}, but the tower has {} layers", last, layers));
  vision.vision_init_method_std = vision_part(source).real({"initializer_range"}, 0.02);
  vision.vision_class_token = hf.text({"vision_feature_select_strategy"}, "default") == "full";
  vision.vision_projector_size = vision.vision_output_size;
  return vision;
}

// Weight and bias of one module after the other.
struct Pair {
  std::string ours_weight, ours_bias, weight, bias;
};

std::vector<WeightRule> pairs(WeightLayout layout, std::initializer_list<Pair> list) {
  std::vector<WeightRule> rules;
  for (const Pair& pair : list) {
    rules.push_back({layout, pair.ours_weight, {pair.weight}});
    rules.push_back({layout, pair.ours_bias, {pair.bias}});
  }
  return rules;
}

std::vector<WeightRule> qwen_tower_rules() {
  return std::vector<WeightRule>{
             {same, "vision_model.patch_embed.proj.weight", {"visual.patch_embed.proj.weight"}},
             {gate_up,
              "vision_model.decoder.layers.*.mlp.linear_fc1.weight",
              {"visual.blocks.*.mlp.gate_proj.weight", "visual.blocks.*.mlp.up_proj.weight",
               "visual.blocks.*.mlp.fc1.weight"}},
             {gate_up,
              "vision_model.decoder.layers.*.mlp.linear_fc1.bias",
              {"visual.blocks.*.mlp.gate_proj.bias", "visual.blocks.*.mlp.up_proj.bias",
               "visual.blocks.*.mlp.fc1.bias"}}} +
         pairs(packed_qkv, {{"vision_model.decoder.layers.*.self_attention.linear_qkv.weight",
                             "vision_model.decoder.layers.*.self_attention.linear_qkv.bias",
                             "visual.blocks.*.attn.qkv.weight", "visual.blocks.*.attn.qkv.bias"}}) +
         pairs(same, {{"vision_model.decoder.layers.*.input_layernorm.weight",
                       "vision_model.decoder.layers.*.input_layernorm.bias", "visual.blocks.*.norm1.weight",
                       "visual.blocks.*.norm1.bias"},
                      {"vision_model.decoder.layers.*.pre_mlp_layernorm.weight",
                       "vision_model.decoder.layers.*.pre_mlp_layernorm.bias", "visual.blocks.*.norm2.weight",
                       "visual.blocks.*.norm2.bias"},
                      {"vision_model.decoder.layers.*.self_attention.linear_proj.weight",
                       "vision_model.decoder.layers.*.self_attention.linear_proj.bias",
                       "visual.blocks.*.attn.proj.weight", "visual.blocks.*.attn.proj.bias"},
                      {"vision_model.merger.patch_norm.weight", "vision_model.merger.patch_norm.bias",
                       "visual.merger.ln_q.weight", "visual.merger.ln_q.bias"},
                      {"vision_model.merger.linear_fc1.weight", "vision_model.merger.linear_fc1.bias",
                       "visual.merger.mlp.0.weight", "visual.merger.mlp.0.bias"},
                      {"vision_model.merger.linear_fc2.weight", "vision_model.merger.linear_fc2.bias",
                       "visual.merger.mlp.2.weight", "visual.merger.mlp.2.bias"}});
}

// The second matrix of the tower's MLP has another name where that is gated.
std::vector<WeightRule> tower_fc2_rules(const std::string& weight, const std::string& bias) {
  return pairs(same, {{"vision_model.decoder.layers.*.mlp.linear_fc2.weight",
                       "vision_model.decoder.layers.*.mlp.linear_fc2.bias", weight, bias}});
}

// What SigLIP's and CLIP's towers share.
std::vector<WeightRule> patch_tower_rules() {
  const std::string layer = "vision_model.decoder.layers.*.", theirs = "vision_tower.encoder.layers.*.";
  return std::vector<WeightRule>{{same,
                                  "vision_model.position_embeddings.weight",
                                  {"vision_tower.embeddings.position_embedding.weight"}},
                                 {same,
                                  "vision_model.patch_embed.proj.weight",
                                  {"vision_tower.embeddings.patch_embedding.weight"}},
                                 {qkv,
                                  layer + "self_attention.linear_qkv.weight",
                                  {theirs + "self_attn.q_proj.weight", theirs + "self_attn.k_proj.weight",
                                   theirs + "self_attn.v_proj.weight"}},
                                 {qkv,
                                  layer + "self_attention.linear_qkv.bias",
                                  {theirs + "self_attn.q_proj.bias", theirs + "self_attn.k_proj.bias",
                                   theirs + "self_attn.v_proj.bias"}}} +
         pairs(same, {{layer + "input_layernorm.weight", layer + "input_layernorm.bias",
                       theirs + "layer_norm1.weight", theirs + "layer_norm1.bias"},
                      {layer + "pre_mlp_layernorm.weight", layer + "pre_mlp_layernorm.bias",
                       theirs + "layer_norm2.weight", theirs + "layer_norm2.bias"},
                      {layer + "self_attention.linear_proj.weight", layer + "self_attention.linear_proj.bias",
                       theirs + "self_attn.out_proj.weight", theirs + "self_attn.out_proj.bias"},
                      {layer + "mlp.linear_fc1.weight", layer + "mlp.linear_fc1.bias",
                       theirs + "mlp.fc1.weight", theirs + "mlp.fc1.bias"}}) +
         tower_fc2_rules(theirs + "mlp.fc2.weight", theirs + "mlp.fc2.bias");
}

std::vector<WeightRule> siglip_rules() {
  return patch_tower_rules() +
         std::vector<WeightRule>{
             {same, "vision_model.patch_embed.proj.bias", {"vision_tower.embeddings.patch_embedding.bias"}},
             {same,
              "multi_modal_projector.mm_soft_embed_norm.weight",
              {"multi_modal_projector.mm_soft_emb_norm.weight"}},
             {same,
              "multi_modal_projector.proj.weight",
              {"multi_modal_projector.mm_input_projection_weight"}}} +
         pairs(same, {{"vision_model.final_layernorm.weight", "vision_model.final_layernorm.bias",
                       "vision_tower.post_layernorm.weight", "vision_tower.post_layernorm.bias"}});
}

std::vector<WeightRule> clip_rules() {
  return patch_tower_rules() +
         std::vector<WeightRule>{
             {same, "vision_model.class_token", {"vision_tower.embeddings.class_embedding"}}} +
         pairs(same,
               {{"vision_model.ln_pre.weight", "vision_model.ln_pre.bias", "vision_tower.pre_layrnorm.weight",
                 "vision_tower.pre_layrnorm.bias"},
                {"vision_projection.encoder.linear_fc1.weight", "vision_projection.encoder.linear_fc1.bias",
                 "multi_modal_projector.linear_1.weight", "multi_modal_projector.linear_1.bias"},
                {"vision_projection.encoder.linear_fc2.weight", "vision_projection.encoder.linear_fc2.bias",
                 "multi_modal_projector.linear_2.weight", "multi_modal_projector.linear_2.bias"}});
}

// The decoder's rules, its tensors under a prefix.
std::vector<WeightRule> under(std::string_view prefix, std::vector<WeightRule> rules) {
  for (WeightRule& rule : rules)
    for (std::string& name : rule.theirs) name.insert(0, prefix);
  return rules;
}

}  // namespace

std::vector<Family> vision_families() {
  // As the modules are called since there is one for both parts.
  const auto inner_names = [] {
    return std::vector<Spelling>{{"model.", "model.language_model."}, {"visual.", "model.visual."}};
  };
  const auto outer_names = [] {
    return std::vector<Spelling>{{"vision_tower.", "vision_tower.vision_model."},
                                 {"vision_tower.", "model.vision_tower.vision_model."},
                                 {"vision_tower.", "model.vision_tower."},
                                 {"multi_modal_projector.", "model.multi_modal_projector."},
                                 {"language_model.model.", "model.language_model."},
                                 {"language_model.lm_head.", "lm_head."}};
  };
  return {
      {{"Qwen2VLForConditionalGeneration"},
       qwen_vl,
       qwen_tower_rules() +
           tower_fc2_rules("visual.blocks.*.mlp.fc2.weight", "visual.blocks.*.mlp.fc2.bias") + qwen2().rules,
       qwen2_tower,
       {},
       inner_names()},
      {{"Qwen2_5_VLForConditionalGeneration"},
       qwen_vl,
       qwen_tower_rules() +
           tower_fc2_rules("visual.blocks.*.mlp.down_proj.weight", "visual.blocks.*.mlp.down_proj.bias") +
           qwen2().rules,
       qwen2_5_tower,
       {},
       inner_names()},
      {{"Gemma3ForConditionalGeneration"},
       gemma3_vl,
       siglip_rules() + under("language_model.", gemma3().rules),
       siglip,
       {},
       outer_names()},
      // The layers behind the one whose states are read stay unused.
      {{"LlavaForConditionalGeneration"},
       llava,
       clip_rules() + under("language_model.", llama().rules),
       clip,
       {"vision_tower.encoder.layers.", "vision_tower.post_layernorm.",
        "vision_tower.vision_model.encoder.layers.", "vision_tower.vision_model.post_layernorm.",
        "model.vision_tower.vision_model.encoder.layers.", "model.vision_tower.vision_model.post_layernorm.",
        "model.vision_tower.encoder.layers.", "model.vision_tower.post_layernorm."},
       outer_names()}};
}

}  // namespace megatron
