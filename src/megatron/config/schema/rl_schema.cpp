#include "megatron/config/schema/rl_config.h"

namespace megatron {
namespace {

Schema rl_config_schema() {
  using C = RlConfig;
  Schema s("rl", "Reinforcement learning");
  s.field<&C::perform_rl_step>("perform_rl_step", "train on rewarded samples of the model itself");
  s.field<&C::grpo_prompts_per_step>("grpo_prompts_per_step", "prompts in one collection")
      .min(1)
      .max(1 << 20);
  s.field<&C::grpo_group_size>("grpo_group_size", "answers to each prompt").min(1).max(1 << 20);
  s.field<&C::grpo_iterations>("grpo_iterations", "passes over one collection").min(1).max(1 << 20);
  s.field<&C::grpo_clamp_eps_lower>("grpo_clamp_eps_lower", "how far the probability ratio may fall").min(0);
  s.field<&C::grpo_clamp_eps_upper>("grpo_clamp_eps_upper", "how far the probability ratio may rise").min(0);
  s.field<&C::grpo_kl_beta>("grpo_kl_beta", "weight of the distance to the reference model").min(0);
  s.field<&C::grpo_entropy_term_weight>("grpo_entropy_term_weight", "weight of the entropy");
  s.field<&C::grpo_filter_groups_with_same_reward>("grpo_filter_groups_with_same_reward",
                                                   "leave out prompts whose answers are rewarded alike");
  s.field<&C::langrl_env_config>("langrl_env_config", "YAML file with the environments");
  s.field<&C::rl_prompts_per_eval>("rl_prompts_per_eval", "prompts of one evaluation").min(1);
  s.field<&C::rl_default_temperature>("rl_default_temperature", "temperature of the answers").min(0);
  s.field<&C::rl_default_top_p>("rl_default_top_p", "probability mass that answers are drawn from; 0: all")
      .min(0)
      .max(1);
  s.field<&C::rl_default_top_k>("rl_default_top_k", "tokens that answers are drawn from; -1: all").min(-1);
  s.field<&C::rl_partial_rollouts>("rl_partial_rollouts", "unfinished answers wait for the next collection");
  s.field<&C::rl_generation_lag>("rl_generation_lag", "steps by which answers may be older than the weights")
      .min(-1);
  s.field<&C::rl_max_inflight_requests>("rl_max_inflight_requests", "requests at once").min(1);
  s.field<&C::rl_submission_granularity>("rl_submission_granularity",
                                         "what is asked for together: batch, group or single answer");
  s.field<&C::rl_consumption_granularity>("rl_consumption_granularity", "what is trained on together");
  s.field<&C::rl_durable_rollout_bank>("rl_durable_rollout_bank", "keep answers on disk");
  s.field<&C::rl_rollout_bank_dir>("rl_rollout_bank_dir", "folder for them");
  s.field<&C::rl_rollout_bank_max_bytes>("rl_rollout_bank_max_bytes", "size of that folder; 0: no limit")
      .min(0);
  s.field<&C::rl_use_sequence_packing>("rl_use_sequence_packing", "short answers share a sequence");
  s.field<&C::rl_sequence_packing_max_sequences_per_bin>("rl_sequence_packing_max_sequences_per_bin",
                                                         "answers in one sequence")
      .min(1);
  s.field<&C::rl_sequence_packing_algo>("rl_sequence_packing_algo", "how they are packed");
  s.field<&C::rl_inference_logprobs_is_correction>("rl_inference_logprobs_is_correction",
                                                   "correct for the inference engine's own probabilities");
  s.field<&C::rl_importance_sampling_truncation_coef>("rl_importance_sampling_truncation_coef",
                                                      "bound of that correction")
      .above(0);
  s.field<&C::rl_kv_cache_management_mode>("rl_kv_cache_management_mode",
                                           "what happens to keys and values while training");
  s.field<&C::rl_offload_optimizer_during_inference>("rl_offload_optimizer_during_inference",
                                                     "optimizer states leave the device meanwhile");
  s.field<&C::rl_persist_cuda_graphs>("rl_persist_cuda_graphs", "recorded batches stay while training");
  s.field<&C::rl_training_cuda_graphs>("rl_training_cuda_graphs", "training steps are recorded too");
  s.field<&C::rl_inference_tensor_model_parallel_size>("rl_inference_tensor_model_parallel_size",
                                                       "tensor-parallel size of the answering model")
      .min(1);
  s.field<&C::rl_inference_pipeline_model_parallel_size>("rl_inference_pipeline_model_parallel_size",
                                                         "its pipeline size")
      .min(1);
  s.field<&C::rl_inference_expert_model_parallel_size>("rl_inference_expert_model_parallel_size",
                                                       "its expert-parallel size")
      .min(1);
  s.field<&C::rl_inference_expert_tensor_model_parallel_size>(
       "rl_inference_expert_tensor_model_parallel_size", "its expert tensor-parallel size")
      .min(1);
  s.field<&C::rl_inference_model_unified_memory_level>("rl_inference_model_unified_memory_level",
                                                       "1 puts it into unified memory")
      .min(0)
      .max(1);
  s.field<&C::rl_offload_inference_model_weights_when_idle>("rl_offload_inference_model_weights_when_idle",
                                                            "its weights leave the device while training");
  s.field<&C::refit_method>("refit_method", "how new weights reach it");
  s.field<&C::rl_verify_model_weights_swap>("rl_verify_model_weights_swap", "check that they arrived");
  s.field<&C::rl_skip_bos_token>("rl_skip_bos_token", "answers start without a begin token");
  s.field<&C::rl_profile>("rl_profile", "profile the collection");
  s.field<&C::rl_profile_dir>("rl_profile_dir", "folder for that");
  s.field<&C::rl_inference_parsers>("rl_inference_parsers", "parsers of the answers");
  return s;
}

}  // namespace

template <>
const Schema& schema<RlConfig>() {
  static const Schema rows = rl_config_schema();
  return rows;
}

}  // namespace megatron
