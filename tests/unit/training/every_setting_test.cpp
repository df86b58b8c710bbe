// Every setting of a model changes what is computed in some model, is refused in all of them, or is on the
// list of those that have no effect here.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "megatron/base/error.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/config/schema/value.h"
#include "megatron/training/plan/blank_batches.h"
#include "megatron/training/setup/run_settings.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

constexpr const char* kSizes = R"(
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, ffn_hidden_size: 48, seq_length: 16,
        max_position_embeddings: 32, vocab_size: 50, make_vocab_size_divisible_by: 4}
dataset: {mock_data: true}
optimizer: {lr: 0.01}
train: {micro_batch_size: 2, global_batch_size: 4, train_iters: 2}
)";

using Overrides = std::vector<std::string>;

// Models of every kind, each as what it changes in the plain one.
const std::vector<Overrides>& kinds() {
  static const Overrides rope = {"model.position_embedding_type=rope", "model.normalization=RMSNorm",
                                 "model.gated_linear_unit=true", "model.activation_func=silu",
                                 "model.add_bias_linear=false"};
  static const auto also = [](Overrides a, const Overrides& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  static const Overrides yarn =
      also(rope, {"model.position_embedding_type=yarn", "model.yarn_rotary_scaling_factor=4"});
  static const Overrides longrope =
      also(rope, {"model.longrope_short_factor=[1,1,1,1]", "model.longrope_long_factor=[1,2,3,4]",
                  "model.longrope_scaling_factor=4"});
  static const Overrides experts = also(rope, {"model.num_moe_experts=4", "model.moe_router_topk=2",
                                               "model.moe_token_dispatcher_type=alltoall"});
  static const Overrides sigmoid =
      also(experts, {"model.moe_router_score_function=sigmoid", "model.moe_router_enable_expert_bias=true",
                     "model.moe_shared_expert_intermediate_size=16", "model.moe_router_num_groups=2",
                     "model.moe_router_group_topk=1"});
  static const Overrides latent =
      also(rope, {"model.multi_latent_attention=true", "model.kv_lora_rank=16", "model.qk_head_dim=8",
                  "model.qk_pos_emb_head_dim=8", "model.v_head_dim=8", "model.rotary_scaling_factor=4",
                  "model.original_max_position_embeddings=512", "model.q_lora_rank=12",
                  "model.mscale_all_dim=0.5"});
  static const std::vector<Overrides> all = {
      {},
      rope,
      also(rope, {"model.window_size=[3,0]", "model.num_query_groups=2", "model.group_query_attention=true"}),
      also(rope, {"model.rope_scaling=true", "model.rope_scaling_original_max_position_embeddings=8"}),
      also(yarn, {"model.yarn_original_max_position_embeddings=8"}),
      also(yarn, {"model.yarn_original_max_position_embeddings=512", "model.yarn_mscale=1",
                  "model.yarn_mscale_all_dim=0.5"}),
      also(longrope, {"model.longrope_original_max_position_embeddings=8"}),
      also(longrope, {"model.longrope_original_max_position_embeddings=16"}),
      also(rope, {"model.position_embedding_type=mrope", "model.mrope_section=[1,1,2]"}),
      experts,
      also(experts, {"model.moe_expert_capacity_factor=0.5"}),
      also(experts, {"model.moe_router_topk=1", "model.moe_router_pre_softmax=true"}),
      also(experts, {"model.moe_router_load_balancing_type=[quantile_balancing]"}),
      also(rope, {"model.qk_layernorm=true"}),
      also(rope, {"model.qk_clip=true", "model.qk_clip_threshold=0.001"}),
      also(rope, {"model.parallel_residual=true"}),
      also(experts, {"model.moe_router_load_balancing_type=[aux_loss]", "model.moe_aux_loss_coeff=[0.1]"}),
      sigmoid,
      latent,
      also(latent, {"model.rope_type=rope"}),
      also(latent, {"model.experimental_attention_variant=dsa", "model.dsa_indexer_n_heads=2",
                    "model.dsa_indexer_head_dim=8", "model.dsa_indexer_topk=3",
                    "model.dsa_indexer_loss_coeff=0.5", "model.init_method_std=0.2"}),
      also(latent,
           {"model.experimental_attention_variant=dsa", "model.dsa_indexer_n_heads=2",
            "model.dsa_indexer_head_dim=8", "model.dsa_indexer_topk=3", "model.dsa_indexer_topk_freq=2",
            "model.dsa_indexer_skip_topk_offset=1", "model.init_method_std=0.2"}),
      also(rope, {"model.enable_mhc_connections=true", "model.mhc_num_residual_streams=2",
                  "model.mhc_sinkhorn_iterations=2", "model.mhc_init_gating_factor=1"}),
      also(rope, {"model.mtp_num_layers=2"}),
      also(rope, {"model.use_mup=true", "model.mup_base_hidden_size=16"}),
      also(rope, {"model.experimental_attention_variant=gated_delta_net", "model.linear_num_key_heads=2",
                  "model.linear_num_value_heads=4", "model.linear_key_head_dim=8",
                  "model.linear_value_head_dim=8", "model.linear_attention_freq=2"}),
      {"model.num_layers=4", "model.hybrid_layer_pattern=M*-M", "model.position_embedding_type=none",
       "model.normalization=RMSNorm", "model.mamba_num_heads=4", "model.mamba_head_dim=8",
       "model.mamba_num_groups=2", "model.mamba_state_dim=8"},
      {"model.num_layers=4", "model.hybrid_layer_pattern=M*-M", "model.position_embedding_type=none",
       "model.gated_delta_product=true", "model.gdp_num_householder=2", "model.mamba_num_heads=4",
       "model.mamba_head_dim=8", "model.mamba_num_groups=2", "model.mamba_state_dim=8"},
      {"model.hybrid_layer_pattern=M*-M", "model.position_embedding_type=none", "model.mtp_num_layers=1",
       "model.mamba_num_heads=4", "model.mamba_head_dim=8", "model.mamba_num_groups=2"},
      {"model.model_type=bert"},
      {"model.model_type=t5", "model.decoder_seq_length=8"},
      {"model.model_type=t5", "model.position_embedding_type=relative"},
      also(rope, {"model.vision_tower=clip", "model.vision_image_size=28", "model.vision_hidden_size=16",
                  "model.vision_num_attention_heads=2"}),
      also(rope, {"model.vision_tower=clip", "model.vision_image_size=28", "model.vision_hidden_size=16",
                  "model.vision_num_attention_heads=2", "model.vision_class_token=false",
                  "model.vision_projector_norm=LayerNorm"}),
      also(rope, {"model.vision_tower=siglip", "model.vision_image_size=28", "model.vision_hidden_size=16",
                  "model.vision_num_attention_heads=2", "model.vision_tokens_per_image=1",
                  "model.image_token_id=45", "model.bidirectional_attention=true",
                  "model.vision_bidirectional=true"}),
      also(rope, {"model.position_embedding_type=mrope", "model.mrope_section=[1,1,2]",
                  "model.vision_tower=qwen2_5", "model.vision_hidden_size=16", "model.image_token_id=45",
                  "model.vision_num_attention_heads=2", "model.vision_window_size=28"}),
  };
  return all;
}

// Values that cannot be guessed from the type.
const std::map<std::string_view, std::vector<std::string>>& special_values() {
  static const std::map<std::string_view, std::vector<std::string>> table = {
      {"no_rope_freq", {"2", "[1,0]"}},
      {"moe_layer_freq", {"2", "[0,1]"}},
      {"window_attn_skip_freq", {"2"}},
      {"window_size", {"[2,0]"}},
      {"linear_attention_freq", {"[0,1]"}},
      {"mrope_section", {"[2,1,1]"}},
      {"longrope_short_factor", {"[1,2,1,1]"}},
      {"longrope_long_factor", {"[2,2,3,4]"}},
      {"hybrid_layer_pattern", {"M*-M/*-", "MM*-"}},
      {"mamba_time_step_max", {"0.01"}},
      {"mamba_chunk_size", {"4"}},
      {"vision_full_attention_layers", {"[0]"}},
      {"vision_tower", {"none", "clip", "siglip", "qwen2", "qwen2_5"}},
      {"yarn_beta_fast", {"4"}},
      {"yarn_beta_slow", {"0.01"}},
      {"beta_fast", {"4"}},
      {"beta_slow", {"0.01"}},
      {"mtp_hybrid_override_pattern", {"*-"}},
      {"moe_router_load_balancing_type", {"[seq_aux_loss]", "[sinkhorn]", "[quantile_balancing]"}},
      {"moe_aux_loss_coeff", {"[0.3]"}},
      {"heterogeneous_layers_config_path", {"/nowhere.json"}},
      {"heterogeneous_layers_config_encoded_json",
       {R"('{"block_configs": [{"attention": {"no_op": true}}, {}]}')"}},
  };
  return table;
}

// What acts, but not on the numbers of one rank.
const std::set<std::string_view> kElsewhere = {
    "moe_token_dispatcher_type",         // how ranks exchange tokens
    "moe_shared_expert_overlap",         // when shared experts run
    "overlap_moe_expert_parallel_comm",  // when these and weight gradients do
    "overlap_dispatch_backward_with_experts_wgrad",
    "delay_wgrad_compute",
    "moe_enable_routing_replay",  // whether routing is recorded
    "moe_layer_recompute",        // what is kept of a pass
    "output_logit_dtype",         // fp32 is what this test computes in
    "moe_use_upcycling",          // what is made of a checkpoint
    "moe_upcycling_granularity",
    "mrope_section",     // where images stand
    "moe_router_dtype",  // fp32 is what this test computes in
    "image_processor",   // how files become pixels
    "dynamic_resolution",
    "dynamic_resolution_min_patches",
    "dynamic_resolution_max_patches",
    "use_tiling",  // and how many of them
    "max_num_tiles",
    "use_thumbnail",
    "use_area_weighted_aspect_ratio",
    "use_tile_tags",         // how texts speak of images
    "force_system_message",  // and with whom
    "recompute_vision",      // what is kept of a pass
    "model_provider",        // sizes, with LLaVA's tower
    "vision_tower",          // each is a kind of model here
    "vision_output_size",    // refused but where it says what the hidden size does
    "image_token_id",        // where images stand, and videos
    "video_token_id",
    "vision_image_width",            // refused but where it says what the height does
    "vision_in_channels",            // of pixels, which the batch of this test has three of
    "make_vocab_size_divisible_by",  // padding, of which nothing is seen; told by the shape of the embedding
};

std::vector<std::string> candidates(const Setting& setting, const Json& now) {
  if (auto found = special_values().find(setting.key); found != special_values().end()) return found->second;
  std::vector<std::string> values;
  switch (setting.type) {
    case ValueType::boolean:
    case ValueType::optional_boolean:
      return {now.is_bool() && now.as_bool() ? "false" : "true"};
    case ValueType::choice:
      for (std::string_view choice : setting.choices) values.emplace_back(choice);
      break;
    case ValueType::integer:
    case ValueType::optional_integer: {
      const int64_t v = now.is_int() ? now.as_int() : 0;
      for (int64_t value : {2 * v, v + 1, v / 2, int64_t{1}, int64_t{2}, int64_t{4}})
        values.push_back(std::to_string(value));
      break;
    }
    case ValueType::real:
    case ValueType::optional_real: {
      const double v = now.is_number() ? now.as_double() : 0;
      for (double value : {1.5 * v + 0.25, 0.5, 2.5, 0.01}) values.push_back(fmt::format("{}", value));
      break;
    }
    default:
      break;
  }
  std::erase(values, show_value(now));
  return values;
}

Resolved resolved(const Overrides& kind, const Overrides& more) {
  Sources sources;
  sources.file = ConfigText{"sizes", kSizes};
  sources.overrides = kind;
  sources.overrides.insert(sources.overrides.end(), more.begin(), more.end());
  return resolve(sources);
}

std::vector<Batch> batches_of(const Config& config) {
  const int64_t row = config.model.seq_length + 1, rows = config.train.global_batch_size,
                tokens_known = std::min<int64_t>(41, config.model.vocab_size);
  if (config.model.has_tower()) {
    std::vector<Batch> batches = blank_batches(config, rows / config.train.micro_batch_size);
    for (Batch& batch : batches) {
      for (size_t i = 0; i < batch.ids.size(); ++i) {
        batch.labels[i] = static_cast<int64_t>(i * i) % tokens_known;
        if (!config.model.is_image_token(batch.ids[i])) batch.ids[i] = batch.labels[i];
      }
      if (!batch.extra.contains("pixels")) continue;
      auto* pixels = batch.extra.at("pixels").data<float>();
      for (int64_t i = 0; i < batch.extra.at("pixels").numel(); ++i)
        pixels[i] = static_cast<float>(i % 7) / 4;
    }
    return batches;
  }
  if (config.model.masks_text()) {
    std::vector<Batch> batches = blank_batches(config, rows / config.train.micro_batch_size);
    for (Batch& batch : batches)
      for (size_t i = 0; i < batch.ids.size(); ++i) {
        batch.ids[i] = static_cast<int64_t>(i * i) % tokens_known;
        batch.labels[i] = i % 3 == 0 ? batch.ids[i] : kIgnoredLabel;
      }
    return batches;
  }
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < rows * row; ++i)
    tokens.push_back(i % 5 == 4 && i < row ? -100 : i * i % tokens_known);
  return batches_of_tokens(tokens, config.train.micro_batch_size, config.model.seq_length);
}

// Shapes, initial weights, losses and norms of two steps.
std::vector<double> computed(const Config& config) {
  RankContext ctx;
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, DType::F32);
  std::vector<double> seen;
  for (Parameter* parameter : trainer.parameters()) {
    seen.push_back(static_cast<double>(parameter->value.numel()));
    for (float value : ctx.to_vector<float>(parameter->value)) seen.push_back(value);
  }
  const std::vector<Batch> batches = batches_of(config);
  for (int step = 0; step < 3; ++step) {
    const StepReport report = trainer.step(ctx, batches, 0.01);
    seen.insert(seen.end(), {report.loss, report.grad_norm});
    for (const LossTerm& term : report.terms) seen.push_back(term.value);
  }
  return seen;
}

enum class Fate { acts, refused, no_effect, nothing };

class EverySetting : public ::testing::Test {
 protected:
  struct Plain {
    Json model;
    std::vector<double> values;
  };
  const Plain& plain(size_t kind) {
    auto [found, added] = plain_.try_emplace(kind);
    if (added) {
      const Config config = resolved(kinds()[kind], {}).config;
      found->second = {config.to_json().at("model"), computed(config)};
    }
    return found->second;
  }

  // Of any value, or of the one that is given.
  Fate fate(const Setting& setting, const std::string& only = "") {
    bool accepted = false, listed = false;
    for (size_t kind = 0; kind < kinds().size(); ++kind) {
      bool ever = false;  // whether it would be built in some model
      for (const std::string& value : candidates(setting, plain(kind).model.at(setting.key))) {
        if (!only.empty() && value != only) continue;
        try {
          const Resolved after = resolved(kinds()[kind], {fmt::format("{}={}", setting.name(), value)});
          for (const std::string& note : after.notes)
            listed |= note.find("no effect here: " + setting.name()) != std::string::npos;
          accepted = ever = true;
          if (kElsewhere.contains(setting.key)) return Fate::acts;
          if (!listed && computed(after.config) != plain(kind).values) return Fate::acts;
          break;  // this kind has no use for it
        } catch (const ConfigError& error) {
          const std::string why = error.what();
          EXPECT_NE(why.find(';'), std::string::npos) << "no advice: " << why;
          ever |= why.find("not available yet in this build") == std::string::npos;
        } catch (const Error& error) {
          ADD_FAILURE() << fmt::format("{}={} of kind {} passed the checks and failed: {}", setting.name(),
                                       value, kind, error.what());
          return Fate::nothing;
        }
      }
      if (!ever && only.empty()) return Fate::refused;
    }
    return listed ? Fate::no_effect : accepted ? Fate::nothing : Fate::refused;
  }

 private:
  std::map<size_t, Plain> plain_;
};

// One value of a choice may be left out where others act.
TEST_F(EverySetting, ValueOfAChoiceActsOrIsRefused) {
  for (const Schema* rows : {&schema<ModelConfig>(), &schema<MoeConfig>(), &schema<VisionConfig>()})
    for (const Setting& setting : rows->rows())
      if (setting.type == ValueType::choice && !kElsewhere.contains(setting.key))
        for (std::string_view choice : setting.choices)
          EXPECT_NE(fate(setting, std::string(choice)), Fate::nothing)
              << setting.name() << "=" << choice << " is accepted and changes nothing";
}

TEST_F(EverySetting, OfAModelActsOrIsRefused) {
  std::map<Fate, std::vector<std::string>> found;
  for (const Schema* rows : {&schema<ModelConfig>(), &schema<MoeConfig>(), &schema<VisionConfig>()})
    for (const Setting& setting : rows->rows()) found[fate(setting)].emplace_back(setting.key);
  for (const std::string& name : found[Fate::nothing])
    ADD_FAILURE() << name << " is accepted and changes nothing";
  std::string listed, refused;
  for (const std::string& name : found[Fate::refused]) refused += " " + name;
  for (const std::string& name : found[Fate::no_effect]) listed += " " + name;
  fmt::print("{} act; {} have no effect here:{}; {} are refused:{}\n", found[Fate::acts].size(),
             found[Fate::no_effect].size(), listed, found[Fate::refused].size(), refused);
  EXPECT_GT(found[Fate::acts].size(), 130u);
}

}  // namespace
}  // namespace megatron
