#include "megatron/config/schema/checkpoint_config.h"

namespace megatron {
namespace {

Schema checkpoint_config_schema() {
  using C = CheckpointConfig;
  Schema s("checkpoint", "Checkpoints");
  s.field<&C::save>("save", "folder to save into").also("--save-dir");
  s.field<&C::save_interval>("save_interval", "steps between checkpoints")
      .min(1)
      .also("--persistent-save-interval");
  s.field<&C::save_retain_interval>("save_retain_interval",
                                    "older checkpoints stay when their step is a multiple of this")
      .min(1);
  s.field<&C::most_recent_k>("most_recent_k", "newest checkpoints that stay; -1: all").min(-1);
  s.field<&C::save_optim>("save_optim", "save the optimizer's state");
  s.field<&C::save_rng>("save_rng", "save the random state");
  s.field<&C::load>("load", "folder to continue from").also("--load-dir");
  s.field<&C::load_optim>("load_optim", "load the optimizer's state");
  s.field<&C::load_rng>("load_rng", "load the random state");
  s.field<&C::load_main_params_from_ckpt>("load_main_params_from_ckpt",
                                          "load the weights' main copy though not the optimizer's state");
  s.field<&C::finetune>("finetune", "take the weights only and start at step 0");
  s.field<&C::pretrained_checkpoint>("pretrained_checkpoint",
                                     "weights to begin with when there is nothing in load");
  s.field<&C::ckpt_step>("ckpt_step", "step to load, instead of the newest").min(0);
  s.field<&C::override_ckpt_iteration>("override_ckpt_iteration", "step to count from after loading").min(0);
  s.field<&C::use_checkpoint_args>("use_checkpoint_args", "the checkpoint's model settings replace these");
  s.field<&C::use_mp_args_from_checkpoint_args>("use_mp_args_from_checkpoint_args",
                                                "the checkpoint's parallel settings replace these");
  s.field<&C::use_tokenizer_model_from_checkpoint_args>("use_tokenizer_model_from_checkpoint_args",
                                                        "the checkpoint's tokenizer replaces this one");
  s.field<&C::exit_on_missing_checkpoint>("exit_on_missing_checkpoint",
                                          "leave when there is nothing to load");
  s.field<&C::ckpt_format>("ckpt_format", "layout of the files");
  s.field<&C::auto_detect_ckpt_format>("auto_detect_ckpt_format", "find out the layout when loading");
  s.field<&C::ckpt_convert_format>("ckpt_convert_format", "write the checkpoint in this layout and leave");
  s.field<&C::ckpt_convert_save>("ckpt_convert_save", "folder for that");
  s.field<&C::fully_parallel_save>("fully_parallel_save", "replicas share the writing")
      .off_flag("--no-ckpt-fully-parallel-save")
      .also("--ckpt-fully-parallel-save");
  s.field<&C::fully_parallel_load>("fully_parallel_load", "replicas share the reading")
      .flag("--ckpt-fully-parallel-load");
  s.field<&C::async_save>("async_save", "write while training goes on");
  s.field<&C::ckpt_assume_constant_structure>("ckpt_assume_constant_structure", "plan the writing once");
  s.field<&C::dist_ckpt_strictness>("dist_ckpt_strictness", "what happens to keys that do not match");
  s.field<&C::dist_ckpt_optim_fully_reshardable>("dist_ckpt_optim_fully_reshardable",
                                                 "optimizer states may be loaded by any layout");
  s.field<&C::dist_ckpt_workers>("dist_ckpt_workers", "writers of each rank")
      .min(1)
      .alias("checkpoint.storage_writers_per_rank");
  s.field<&C::save_tokenizer_assets>("save_tokenizer_assets",
                                     "keep the tokenizer's files with the checkpoint");
  s.field<&C::verify_integrity>("verify_integrity", "write and check hashes");
  s.field<&C::non_persistent_save_interval>("non_persistent_save_interval",
                                            "steps between checkpoints that are soon replaced")
      .min(1);
  s.field<&C::non_persistent_ckpt_type>("non_persistent_ckpt_type", "where those are kept");
  s.field<&C::non_persistent_global_ckpt_dir>("non_persistent_global_ckpt_dir", "shared folder for them");
  s.field<&C::non_persistent_local_ckpt_dir>("non_persistent_local_ckpt_dir", "node-local folder for them");
  s.field<&C::non_persistent_local_ckpt_algo>("non_persistent_local_ckpt_algo", "how they are written");
  s.field<&C::replication>("replication", "nodes keep copies of each other's local checkpoints");
  s.field<&C::replication_jump>("replication_jump", "ranks between two copies").min(1);
  s.field<&C::replication_factor>("replication_factor", "copies").min(2);
  s.field<&C::save_params_interval>("save_params_interval", "steps between dumps of weights").min(1);
  s.field<&C::save_activations_interval>("save_activations_interval", "steps between dumps of activations")
      .min(1);
  s.field<&C::save_wgrads_interval>("save_wgrads_interval", "steps between dumps of weight gradients").min(1);
  s.field<&C::save_dgrads_interval>("save_dgrads_interval", "steps between dumps of activation gradients")
      .min(1);
  s.field<&C::save_tokens_per_expert_interval>("save_tokens_per_expert_interval",
                                               "steps between dumps of expert loads")
      .min(1);
  s.field<&C::also_save_hf_checkpoint>("also_save_hf_checkpoint",
                                       "write Hugging Face files beside each checkpoint");
  s.field<&C::hf_source_path>("hf_source_path", "Hugging Face folder whose files they resemble");
  return s;
}

}  // namespace

template <>
const Schema& schema<CheckpointConfig>() {
  static const Schema rows = checkpoint_config_schema();
  return rows;
}

}  // namespace megatron
