#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class RolloutGranularity { batch, group, rollout };
constexpr auto names(RolloutGranularity) { return std::array{"B", "G", "R"}; }
enum class KvCacheMode { persist, offload, recompute };
constexpr auto names(KvCacheMode) { return std::array{"persist", "offload", "recompute"}; }
enum class PackingAlgo { fifo, round_robin };
constexpr auto names(PackingAlgo) { return std::array{"fifo", "round-robin"}; }
enum class RefitMethod { gloo, nccl, nvshmem };
constexpr auto names(RefitMethod) { return std::array{"gloo", "nccl", "nvshmem"}; }

struct RlConfig {
  bool perform_rl_step = false;
  int64_t grpo_prompts_per_step = 32;
  int64_t grpo_group_size = 2;
  int64_t grpo_iterations = 2;
  double grpo_clamp_eps_lower = 0.01;
  double grpo_clamp_eps_upper = 0.01;
  double grpo_kl_beta = 0.001;
  double grpo_entropy_term_weight = 0;
  bool grpo_filter_groups_with_same_reward = false;
  std::string langrl_env_config;
  int64_t rl_prompts_per_eval = 32;
  double rl_default_temperature = 1;
  double rl_default_top_p = 0;
  int64_t rl_default_top_k = -1;
  bool rl_partial_rollouts = false;
  std::optional<double> rl_generation_lag;
  std::optional<int64_t> rl_max_inflight_requests;
  RolloutGranularity rl_submission_granularity = RolloutGranularity::batch;
  RolloutGranularity rl_consumption_granularity = RolloutGranularity::batch;
  bool rl_durable_rollout_bank = false;
  std::string rl_rollout_bank_dir;
  int64_t rl_rollout_bank_max_bytes = 0;
  bool rl_use_sequence_packing = false;
  int64_t rl_sequence_packing_max_sequences_per_bin = 50;
  PackingAlgo rl_sequence_packing_algo = PackingAlgo::fifo;
  bool rl_inference_logprobs_is_correction = false;
  std::optional<double> rl_importance_sampling_truncation_coef;
  KvCacheMode rl_kv_cache_management_mode = KvCacheMode::persist;
  bool rl_offload_optimizer_during_inference = false;
  bool rl_persist_cuda_graphs = false;
  bool rl_training_cuda_graphs = false;
  std::optional<int64_t> rl_inference_tensor_model_parallel_size;
  std::optional<int64_t> rl_inference_pipeline_model_parallel_size;
  std::optional<int64_t> rl_inference_expert_model_parallel_size;
  std::optional<int64_t> rl_inference_expert_tensor_model_parallel_size;
  int64_t rl_inference_model_unified_memory_level = 0;
  bool rl_offload_inference_model_weights_when_idle = false;
  RefitMethod refit_method = RefitMethod::gloo;
  bool rl_verify_model_weights_swap = false;
  bool rl_skip_bos_token = false;
  bool rl_profile = false;
  std::string rl_profile_dir;
  std::vector<std::string> rl_inference_parsers;
};

template <>
const Schema& schema<RlConfig>();

}  // namespace megatron
