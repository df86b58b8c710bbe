#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "megatron/config/config.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/schema/value.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// Every name that follows a dot in the sources below src/megatron but for config's own.
std::set<std::string> members_read() {
  std::set<std::string> names;
  const fs::path root = fs::path(MEGATRON_SOURCE_DIR) / "src/megatron";
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    const fs::path path = entry.path();
    if (!entry.is_regular_file() || *path.lexically_relative(root).begin() == "config") continue;
    const std::string text = testing::read_text(path.string());
    for (size_t dot = text.find('.'); dot != std::string::npos; dot = text.find('.', dot + 1)) {
      size_t end = dot + 1;
      while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
        ++end;
      names.insert(text.substr(dot + 1, end - dot - 1));
    }
  }
  return names;
}

// A setting that is said to act is read by something: none is silently ignored.
TEST(Settings, WhatActsIsRead) {
  // These act on other settings while the configuration is resolved.
  const std::set<std::string> while_resolving = {
      "model.num_layers_per_virtual_pipeline_stage",
      "model.heterogeneous_layers_config_path",
      "run.mixed_precision",
      "model.pipeline_dtype",  // it is the parameters'
      "run.world_size",
      "model.model_provider",
      "model.add_position_embedding",
      "model.mtp_hybrid_override_pattern",
      "model.moe_layer_recompute",
      "model.fp4",
      "scheduler.no_weight_decay_cond_type",
      "model.vision_image_width",  // the height in another name
      // A layout that they describe has to be that of the ranks.
      "run.llm_dp",
      "run.llm_offset",
      "run.encoder_tp",
      "run.encoder_dp",
      // dataset.data_path tells them to the rest.
      "dataset.finetune_hf_dataset",
      "dataset.finetune_data_split",
      "dataset.finetune_data_files",
      // most_patches() tells it to the rest.
      "model.dynamic_resolution_max_patches",
      // inactive_slots() tells them to the rest.
      "model.tp_base",
      "model.tp_spares",
      "model.num_reduced_tp_dp_ranks",
      // bf16_at_start() and bf16_at_end() tell them to the rest.
      "model.first_last_layers_bf16",
      "model.num_layers_at_start_in_bf16",
      "model.num_layers_at_end_in_bf16",
      // chooser_of_keys() tells it to the rest.
      "model.dsa_indexer_skip_topk_offset",
      // ddp.grad_reduce_in_fp32 tells them to the rest.
      "optimizer.main_grads_dtype",
      "ddp.megatron_fsdp_main_grads_dtype",
      // There are only tokens without text so far: the value is what happens anyway.
      "tokenizer.tokenizer_type",
      // One layout of checkpoints is written, and a note says so.
      "checkpoint.ckpt_format",
      "checkpoint.use_checkpoint_args",
      "checkpoint.use_mp_args_from_checkpoint_args",
      "model.group_query_attention",
      "rl.rl_partial_rollouts",  // allows a lag
      "distill.export_kd_cfg",   // a file of the other settings of its section
      "elastic.enable_router",   // there are no sub-networks without it
      // elastic_sizes() tells them to the rest.
      "elastic.emb_int_list",
      "elastic.emb_per_list",
      "elastic.mlp_int_list",
      "elastic.mlp_per_list",
      "elastic.mamba_int_list",
      "elastic.mamba_per_list",
      "elastic.moe_expert_int_list",
      "elastic.moe_expert_per_list",
      "dataset.seq_length",
      "tokenizer.vocab_size",
      "tokenizer.padded_vocab_size",
      "tokenizer.pad_vocab_size",
  };
  const std::set<std::string> read = members_read();
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    const Setting& setting = *entry.setting;
    const bool lacking = setting.limit && setting.limit->values.empty();
    if (lacking || while_resolving.contains(setting.name())) continue;
    EXPECT_TRUE(read.contains(std::string(setting.key)))
        << setting.name() << " is said to act, but nothing outside the configuration reads it";
  }
}

// Stages that are cut in two ways are refused, so a checkpoint gives one.
TEST(Settings, ChunksOfACheckpointAreSaidInOneWay) {
  Config config;
  config.parallel.pipeline_model_parallel_size = 2;
  config.parallel.virtual_pipeline_model_parallel_size = 2;
  const auto keys = [&] {
    std::set<std::string> names;
    const Json settings = layout_settings(config.to_json().at("model"));
    for (const auto& [key, value] : settings.as_object()) names.insert(key);
    return names;
  };
  EXPECT_TRUE(keys().contains("virtual_pipeline_model_parallel_size"));
  config.parallel.num_layers_per_virtual_pipeline_stage = 1;
  EXPECT_TRUE(keys().contains("num_layers_per_virtual_pipeline_stage"));
  EXPECT_FALSE(keys().contains("virtual_pipeline_model_parallel_size"));
  config.parallel.pipeline_model_parallel_layout = "E|t|t|L";
  EXPECT_TRUE(keys().contains("pipeline_model_parallel_layout"));
  EXPECT_FALSE(keys().contains("num_layers_per_virtual_pipeline_stage"));
}

}  // namespace
}  // namespace megatron
