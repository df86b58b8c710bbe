#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class NonPersistentType { none, global, local, in_memory };
constexpr auto names(NonPersistentType) { return std::array{"none", "global", "local", "in_memory"}; }
enum class LocalCheckpointAlgo { fully_parallel, atomic };
constexpr auto names(LocalCheckpointAlgo) { return std::array{"fully_parallel", "atomic"}; }
enum class CheckpointFormat { torch_dist, torch, torch_dcp, fsdp_dtensor, safetensors };
constexpr auto names(CheckpointFormat) {
  return std::array{"torch_dist", "torch", "torch_dcp", "fsdp_dtensor", "safetensors"};
}
enum class ConvertFormat { none, torch, torch_dist };
constexpr auto names(ConvertFormat) { return std::array{"none", "torch", "torch_dist"}; }
enum class Strictness {
  assume_ok_unexpected,
  log_unexpected,
  log_all,
  raise_unexpected,
  raise_all,
  return_unexpected,
  return_all,
  ignore_all
};
constexpr auto names(Strictness) {
  return std::array{"assume_ok_unexpected", "log_unexpected", "log_all",   "raise_unexpected", "raise_all",
                    "return_unexpected",    "return_all",     "ignore_all"};
}

struct CheckpointConfig {
  std::string save;
  int64_t save_interval = 0;
  int64_t save_retain_interval = 0;
  int64_t most_recent_k = -1;
  bool save_optim = true;
  bool save_rng = true;
  std::string load;
  bool load_optim = true;
  bool load_rng = true;
  bool load_main_params_from_ckpt = false;
  bool finetune = false;
  std::string pretrained_checkpoint;
  int64_t ckpt_step = 0;
  std::optional<int64_t> override_ckpt_iteration;
  bool use_checkpoint_args = false;
  bool use_mp_args_from_checkpoint_args = false;
  bool use_tokenizer_model_from_checkpoint_args = true;
  bool exit_on_missing_checkpoint = false;
  CheckpointFormat ckpt_format = CheckpointFormat::safetensors;
  bool auto_detect_ckpt_format = false;
  ConvertFormat ckpt_convert_format = ConvertFormat::none;
  std::string ckpt_convert_save;
  bool fully_parallel_save = true;
  bool fully_parallel_load = false;
  bool async_save = false;
  bool ckpt_assume_constant_structure = false;
  Strictness dist_ckpt_strictness = Strictness::assume_ok_unexpected;
  bool dist_ckpt_optim_fully_reshardable = false;
  int64_t dist_ckpt_workers = 1;
  bool save_tokenizer_assets = true;
  bool verify_integrity = false;
  int64_t non_persistent_save_interval = 0;
  NonPersistentType non_persistent_ckpt_type = NonPersistentType::none;
  std::string non_persistent_global_ckpt_dir;
  std::string non_persistent_local_ckpt_dir;
  LocalCheckpointAlgo non_persistent_local_ckpt_algo = LocalCheckpointAlgo::fully_parallel;
  bool replication = false;
  int64_t replication_jump = 0;
  int64_t replication_factor = 2;
  int64_t save_params_interval = 0;
  int64_t save_activations_interval = 0;
  int64_t save_wgrads_interval = 0;
  int64_t save_dgrads_interval = 0;
  int64_t save_tokens_per_expert_interval = 0;
  bool also_save_hf_checkpoint = false;
  std::string hf_source_path;
};

template <>
const Schema& schema<CheckpointConfig>();

}  // namespace megatron
