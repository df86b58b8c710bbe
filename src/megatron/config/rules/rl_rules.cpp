#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

bool learns(const ConfigBuilder& builder) {
  return builder.config.rl.perform_rl_step && builder.purpose != Purpose::forward;
}

// Which models and runs learn from rewards.
void rewards_go_with(ConfigBuilder& builder) {
  if (!learns(builder)) return;
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  const auto reject_if = [&](bool wrong, const char* name, const char* why, const char* fix) {
    if (wrong) builder.reject(name, why, fix);
  };
  const char* leave_out = "leave it out";
  reject_if(model.masks_text(), "model.model_type", "decoders alone answer prompts", "use --model-type gpt");
  reject_if(model.has_tower(), "rl.perform_rl_step", "models with a vision tower do not learn from rewards",
            leave_out);
  reject_if(model.mtp_num_layers > 0, "model.mtp_num_layers", "rewards do not train MTP layers", leave_out);
  reject_if(config.distill.has_teacher(), "distill.export_kd_teacher_load",
            "a run learns from rewards or from a teacher", leave_out);
  reject_if(config.dataset.sft, "dataset.sft", "a run learns from rewards or from conversations", leave_out);
  reject_if(!config.dataset.replay.empty(), "dataset.replay", "answers are learned from, not given tokens",
            leave_out);
  if (!config.dataset.data_path.empty() || !config.dataset.train_data_path.empty())
    builder.note("--data-path has no effect with --perform-rl-step: the model's answers are learned from");
  reject_if(!config.train.rampup_batch_size.empty(), "train.rampup_batch_size",
            "collections are cut into batches of one size", leave_out);
  reject_if(!config.train.step_batch_size_schedule.empty(), "train.step_batch_size_schedule",
            "collections are cut into batches of one size", leave_out);
  reject_if(config.inprocess_restart.enabled, "inprocess_restart.enabled",
            "answers that are under way are not kept over a fault in the process",
            "leave it out: a run that is started again goes on from its checkpoint");
  reject_if(config.ddp.use_megatron_fsdp &&
                config.ddp.data_parallel_sharding_strategy == ShardingStrategy::optim_grads_params,
            "ddp.data_parallel_sharding_strategy", "answers need whole weights",
            "use optim_grads, or --use-distributed-optimizer instead of --use-megatron-fsdp");
}

void environments_are_named(ConfigBuilder& builder) {
  if (!learns(builder) || builder.purpose != Purpose::training) return;
  if (builder.config.rl.langrl_env_config.empty())
    builder.reject("rl.perform_rl_step", "no environment is named", "add --langrl-env-config FILE");
  if (builder.config.tokenizer.tokenizer_type == TokenizerKind::none)
    builder.reject("rl.perform_rl_step", "environments ask and reward texts",
                   "add --tokenizer-type HuggingFaceTokenizer");
}

void bank_has_a_place(ConfigBuilder& builder) {
  const RlConfig& rl = builder.config.rl;
  if (learns(builder) && rl.rl_durable_rollout_bank && rl.rl_rollout_bank_dir.empty() &&
      builder.config.checkpoint.save.empty())
    builder.reject("rl.rl_durable_rollout_bank", "it has no folder",
                   "add --rl-rollout-bank-dir DIR, or --save DIR");
}

// Iterations take whole collections apart.
void batches_divide_collections(ConfigBuilder& builder) {
  if (!learns(builder)) return;
  const RlConfig& rl = builder.config.rl;
  const int64_t samples = rl.rollouts() * rl.grpo_iterations, batch = builder.config.train.global_batch_size;
  if (batch > 0 && samples % batch != 0)
    builder.reject("train.global_batch_size",
                   fmt::format("a collection has {} prompts x {} answers x {} iterations = {} samples",
                               rl.grpo_prompts_per_step, rl.grpo_group_size, rl.grpo_iterations, samples),
                   fmt::format("use {}", rl.rollouts()));
}

void packing_and_context(ConfigBuilder& builder) {
  if (!learns(builder) || !builder.config.rl.rl_use_sequence_packing) return;
  if (builder.config.parallel.context_parallel_size > 1)
    builder.reject("rl.rl_use_sequence_packing",
                   "answers of any length are not split over context-parallel ranks",
                   "leave it out, or use --context-parallel-size 1");
}

void lag_is_allowed(ConfigBuilder& builder) {
  if (!learns(builder)) return;
  const RlConfig& rl = builder.config.rl;
  if (rl.rl_generation_lag && rl.rl_max_inflight_requests)
    builder.reject("rl.rl_max_inflight_requests", "--rl-generation-lag says the same",
                   "leave one of them out");
  else if (rl.rl_generation_lag.value_or(0) > 0 && !rl.rl_partial_rollouts)
    builder.reject("rl.rl_generation_lag", "answers lie behind the policy with --rl-partial-rollouts alone",
                   "add it, or use 0");
  else if (rl.rl_max_inflight_requests.value_or(0) > rl.rollouts() && !rl.rl_partial_rollouts)
    builder.reject(
        "rl.rl_max_inflight_requests",
        fmt::format("a collection has {} answers, and others would lie behind the policy", rl.rollouts()),
        fmt::format("use at most {}, or add --rl-partial-rollouts", rl.rollouts()));
}

// The copy of the model that answers divides the world in its own way.
void answering_layout_divides(ConfigBuilder& builder) {
  if (!learns(builder)) return;
  const RlConfig& rl = builder.config.rl;
  const ModelConfig& model = builder.config.model;
  const ParallelConfig& parallel = builder.config.parallel;
  const int64_t tp = rl.rl_inference_tensor_model_parallel_size.value_or(parallel.tensor_model_parallel_size),
                pp = rl.rl_inference_pipeline_model_parallel_size.value_or(
                    parallel.pipeline_model_parallel_size);
  if (rl.rl_inference_tensor_model_parallel_size && model.num_attention_heads % tp != 0)
    builder.reject("rl.rl_inference_tensor_model_parallel_size",
                   fmt::format("{} attention heads do not divide", model.num_attention_heads),
                   "leave it out");
  else if (!builder.divides_world(tp * pp))
    builder.reject(
        rl.rl_inference_tensor_model_parallel_size     ? "rl.rl_inference_tensor_model_parallel_size"
        : rl.rl_inference_pipeline_model_parallel_size ? "rl.rl_inference_pipeline_model_parallel_size"
                                                       : "rl.perform_rl_step",
        fmt::format("{} ranks cannot be divided into groups of {} that answer", *builder.world_size, tp * pp),
        "leave it out");
  if (rl.rl_inference_pipeline_model_parallel_size && pp > model.num_layers)
    builder.reject("rl.rl_inference_pipeline_model_parallel_size",
                   fmt::format("{} layers are not enough", model.num_layers), "leave it out");
}

constexpr Rule kRlRules[] = {
    {"rewards_go_with",
     "rl.perform_rl_step model.model_type model.vision_tower model.mtp_num_layers "
     "distill.export_kd_teacher_load dataset.sft dataset.replay dataset.data_path "
     "dataset.train_data_path train.rampup_batch_size "
     "train.step_batch_size_schedule inprocess_restart.enabled ddp.use_megatron_fsdp "
     "ddp.data_parallel_sharding_strategy",
     "decoders with whole weights learn from rewards alone", rewards_go_with},
    {"environments_are_named", "rl.perform_rl_step rl.langrl_env_config tokenizer.tokenizer_type",
     "learning from rewards needs environments and a tokenizer", environments_are_named},
    {"batches_divide_collections",
     "rl.perform_rl_step rl.grpo_prompts_per_step rl.grpo_group_size rl.grpo_iterations "
     "train.global_batch_size",
     "prompts x answers x iterations of a collection are a multiple of the global batch",
     batches_divide_collections},
    {"bank_has_a_place",
     "rl.perform_rl_step rl.rl_durable_rollout_bank rl.rl_rollout_bank_dir checkpoint.save",
     "answered prompts are kept in a folder", bank_has_a_place},
    {"packing_and_context", "rl.perform_rl_step rl.rl_use_sequence_packing model.context_parallel_size",
     "packed answers are not split over context-parallel ranks", packing_and_context},
    {"lag_is_allowed",
     "rl.perform_rl_step rl.rl_generation_lag rl.rl_max_inflight_requests rl.rl_partial_rollouts "
     "rl.grpo_prompts_per_step rl.grpo_group_size",
     "answers lie behind the policy with partial rollouts alone", lag_is_allowed},
    {"answering_layout_divides",
     "rl.perform_rl_step rl.rl_inference_tensor_model_parallel_size "
     "rl.rl_inference_pipeline_model_parallel_size model.tensor_model_parallel_size "
     "model.pipeline_model_parallel_size model.num_attention_heads model.num_layers",
     "the ranks that answer divide the world", answering_layout_divides},
};

}  // namespace

std::span<const Rule> rl_rules() { return kRlRules; }

}  // namespace megatron
