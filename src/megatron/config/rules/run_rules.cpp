#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

void world_agrees(ConfigBuilder& builder) {
  const RunConfig& run = builder.config.run;
  if (run.world_size > 0 && run.world_size % run.ranks != 0)
    builder.reject("run.world_size",
                   fmt::format("is not a multiple of the {} ranks in each process", run.ranks),
                   "make them agree");
}

void tokenizer_files(ConfigBuilder& builder) {
  const TokenizerConfig& t = builder.config.tokenizer;
  const char* key = "tokenizer.tokenizer_type";
  switch (t.tokenizer_type) {
    case TokenizerKind::gpt2_bpe:
      if ((t.vocab_file.empty() || t.merge_file.empty()) && t.tokenizer_model.empty())
        builder.reject(key, "needs its vocabulary and merges", "give --vocab-file and --merge-file");
      break;
    case TokenizerKind::bert:
    case TokenizerKind::bert_lower:
      if (t.vocab_file.empty() && t.tokenizer_model.empty())
        builder.reject(key, "needs its vocabulary", "give --vocab-file");
      break;
    case TokenizerKind::sentencepiece:
    case TokenizerKind::gpt_sentencepiece:
    case TokenizerKind::llama2:
    case TokenizerKind::huggingface:
    case TokenizerKind::tiktoken:
      if (t.tokenizer_model.empty()) builder.reject(key, "needs its file", "give --tokenizer-model PATH");
      break;
    case TokenizerKind::null_:
    case TokenizerKind::null_multimodal:
      if (t.vocab_size == 0) builder.reject(key, "has no vocabulary of its own", "give --vocab-size N");
      break;
    default:
      break;
  }
  if (builder.given("tokenizer.vocab_size") && t.vocab_size != builder.config.model.vocab_size)
    builder.reject("tokenizer.vocab_size",
                   fmt::format("the model's vocab_size is {}", builder.config.model.vocab_size),
                   "leave one of them out");
  if (t.padded_vocab_size > 0 && t.padded_vocab_size < builder.config.model.vocab_size)
    builder.reject("tokenizer.padded_vocab_size",
                   fmt::format("is less than vocab_size = {}", builder.config.model.vocab_size),
                   "leave it out");
  if (t.padded_vocab_size % builder.config.parallel.tensor_model_parallel_size != 0)
    builder.reject("tokenizer.padded_vocab_size",
                   fmt::format("tensor_model_parallel_size = {} does not divide it",
                               builder.config.parallel.tensor_model_parallel_size),
                   "leave it out, or use a multiple");
}

void checkpoints(ConfigBuilder& builder) {
  const CheckpointConfig& c = builder.config.checkpoint;
  if (c.save_retain_interval > 0 && (c.save_interval == 0 || c.save_retain_interval % c.save_interval != 0))
    builder.reject("checkpoint.save_retain_interval",
                   fmt::format("is not a multiple of save_interval = {}", c.save_interval),
                   "make it a multiple");
  if (c.async_save && c.save.empty())
    builder.reject("checkpoint.async_save", "there is nowhere to save", "give --save DIR");
  if (c.load_main_params_from_ckpt && c.load_optim)
    builder.reject("checkpoint.load_main_params_from_ckpt", "the optimizer's state brings them along",
                   "add --no-load-optim");
  if (c.override_ckpt_iteration && c.finetune)
    builder.reject("checkpoint.override_ckpt_iteration", "fine-tuning counts from 0",
                   "leave out one of it and --finetune");
  if (c.ckpt_convert_format != ConvertFormat::none && (c.ckpt_convert_save.empty() || c.load.empty()))
    builder.reject("checkpoint.ckpt_convert_format", "needs a checkpoint and a place for the new one",
                   "give --load DIR and --ckpt-convert-save DIR");
  if (c.non_persistent_ckpt_type == NonPersistentType::local && c.non_persistent_local_ckpt_dir.empty())
    builder.reject("checkpoint.non_persistent_ckpt_type", "needs a folder on each node",
                   "give --non-persistent-local-ckpt-dir DIR");
  if (c.non_persistent_ckpt_type == NonPersistentType::in_memory)
    builder.reject("checkpoint.non_persistent_ckpt_type", "is not made anywhere", "use local");
  if (c.replication && c.non_persistent_ckpt_type != NonPersistentType::local)
    builder.reject("checkpoint.replication", "copies local checkpoints",
                   "use --non-persistent-ckpt-type local");
  if (c.replication && c.replication_jump == 0)
    builder.reject("checkpoint.replication", "needs the distance of copies", "give --replication-jump N");
  if (c.also_save_hf_checkpoint && c.save.empty())
    builder.reject("checkpoint.also_save_hf_checkpoint", "there is nowhere to save", "give --save DIR");
}

void logging(ConfigBuilder& builder) {
  const LoggerConfig& l = builder.config.logger;
  if (l.log_memory_interval > 0 && l.log_memory_interval % l.log_interval != 0)
    builder.reject("logger.log_memory_interval",
                   fmt::format("is not a multiple of log_interval = {}", l.log_interval),
                   "make it a multiple");
  if (l.log_progress && builder.config.checkpoint.save.empty())
    builder.reject("logger.log_progress", "progress.txt lives in the save folder", "give --save DIR");
  if (!l.wandb_project.empty() && l.wandb_exp_name.empty())
    builder.reject("logger.wandb_project", "a run needs a name", "give --wandb-exp-name NAME");
}

void profiling(ConfigBuilder& builder) {
  const ProfilingConfig& p = builder.config.profiling;
  if (p.profile && p.use_pytorch_profiler)
    builder.reject("profiling.use_pytorch_profiler", "the steps are marked for Nsight Systems already",
                   "keep one of --profile and --use-pytorch-profiler");
  if (p.profile_step_start >= p.profile_step_end)
    builder.reject("profiling.profile_step_end",
                   fmt::format("is not after profile_step_start = {}", p.profile_step_start),
                   "use a later step");
}

void restarts(ConfigBuilder& builder) {
  const InProcessRestartConfig& r = builder.config.inprocess_restart;
  if (r.enabled && r.soft_timeout >= r.hard_timeout)
    builder.reject("inprocess_restart.soft_timeout",
                   fmt::format("is not below hard_timeout = {}", r.hard_timeout), "make it smaller");
  const NvrxStragglerConfig& s = builder.config.nvrx_straggler;
  if (s.enabled && !s.calc_relative_gpu_perf && !s.calc_individual_gpu_perf)
    builder.reject("nvrx_straggler.enabled", "no score is calculated", "keep one of the two scores on");
  if (builder.config.ft.enable_ft_package && builder.config.checkpoint.save.empty())
    builder.reject("ft.enable_ft_package", "timeouts are kept in the save folder", "give --save DIR");
}

void adapters(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const PeftConfig& p = config.peft;
  if (p.scheme == PeftKind::none) return;
  if (builder.purpose == Purpose::training && config.checkpoint.pretrained_checkpoint.empty() &&
      config.checkpoint.load.empty())
    builder.reject("peft.scheme", "adapters need a trained model below them",
                   "give --pretrained-checkpoint DIR");
  if (p.dim % config.parallel.tensor_model_parallel_size != 0)
    builder.reject("peft.dim",
                   fmt::format("tensor_model_parallel_size = {} does not divide it",
                               config.parallel.tensor_model_parallel_size),
                   "use a multiple");
  if (p.scheme == PeftKind::dora && p.dropout_position == DropoutPosition::post)
    builder.reject("peft.dropout_position", "DoRA drops out before its matrices", "use pre");
  if (!p.target_modules.empty() && !p.exclude_modules.empty())
    builder.reject("peft.exclude_modules", "target_modules says which layers get an adapter",
                   "keep one of them");
  if (p.scheme == PeftKind::canonical_lora)
    for (const std::string& module : p.target_modules)
      if (module == "linear_qkv" || module == "linear_fc1")
        builder.reject("peft.target_modules", fmt::format("canonical_lora splits {}", module),
                       "use linear_q, linear_k, linear_v, linear_fc1_up and linear_fc1_gate");
}

void reinforcement(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const RlConfig& r = config.rl;
  if (!r.perform_rl_step) return;
  const int64_t samples = r.grpo_prompts_per_step * r.grpo_group_size * r.grpo_iterations;
  if (config.train.global_batch_size > 0 && samples % config.train.global_batch_size != 0)
    builder.reject(
        "train.global_batch_size",
        fmt::format("does not divide the {} samples of a collection (prompts x group x iterations)", samples),
        "use a divisor");
  if (r.rl_use_sequence_packing && config.train.micro_batch_size > 1)
    builder.reject("train.micro_batch_size", "packed answers go one by one", "use --micro-batch-size 1");
  if (r.rl_submission_granularity != RolloutGranularity::batch && !r.rl_partial_rollouts)
    builder.reject("rl.rl_submission_granularity", "smaller requests than a batch leave unfinished answers",
                   "add --rl-partial-rollouts");
  if (r.rl_consumption_granularity == RolloutGranularity::rollout)
    builder.reject("rl.rl_consumption_granularity", "advantages need whole groups", "use G or B");
  if (r.rl_durable_rollout_bank && r.rl_rollout_bank_dir.empty())
    builder.reject("rl.rl_durable_rollout_bank", "needs a folder", "give --rl-rollout-bank-dir DIR");
}

void distillation(ConfigBuilder& builder) {
  const DistillConfig& d = builder.config.distill;
  if (!d.logits_save_dir.empty() && !d.logits_save_top_k && !d.logits_save_top_p)
    builder.reject("distill.logits_save_dir", "how many logits?", "give --logits-save-top-k N");
}

constexpr Rule kRunRules[] = {
    {"world_agrees", "run.world_size run.ranks", "all ranks are a multiple of those of a process",
     world_agrees},
    {"tokenizer_files",
     "tokenizer.tokenizer_type tokenizer.tokenizer_model tokenizer.vocab_file tokenizer.merge_file "
     "tokenizer.vocab_size tokenizer.padded_vocab_size model.vocab_size model.tensor_model_parallel_size",
     "a tokenizer has its files", tokenizer_files},
    {"checkpoints",
     "checkpoint.save checkpoint.save_interval checkpoint.save_retain_interval checkpoint.async_save "
     "checkpoint.load_main_params_from_ckpt checkpoint.load_optim checkpoint.override_ckpt_iteration "
     "checkpoint.finetune checkpoint.ckpt_convert_format checkpoint.ckpt_convert_save checkpoint.load "
     "checkpoint.non_persistent_ckpt_type checkpoint.non_persistent_local_ckpt_dir checkpoint.replication "
     "checkpoint.replication_jump checkpoint.also_save_hf_checkpoint",
     "options of checkpoints suit each other", checkpoints},
    {"logging",
     "logger.log_interval logger.log_memory_interval logger.log_progress logger.wandb_project "
     "logger.wandb_exp_name checkpoint.save",
     "options of the log suit each other", logging},
    {"profiling",
     "profiling.profile profiling.use_pytorch_profiler profiling.profile_step_start "
     "profiling.profile_step_end",
     "one profiler, over at least one step", profiling},
    {"restarts",
     "inprocess_restart.enabled inprocess_restart.soft_timeout inprocess_restart.hard_timeout "
     "nvrx_straggler.enabled nvrx_straggler.calc_relative_gpu_perf nvrx_straggler.calc_individual_gpu_perf "
     "ft.enable_ft_package checkpoint.save",
     "options of fault tolerance suit each other", restarts},
    {"adapters",
     "peft.scheme peft.dim peft.dropout_position peft.target_modules peft.exclude_modules "
     "checkpoint.pretrained_checkpoint checkpoint.load model.tensor_model_parallel_size",
     "adapters need a trained model and a rank that divides", adapters},
    {"reinforcement",
     "rl.perform_rl_step rl.grpo_prompts_per_step rl.grpo_group_size rl.grpo_iterations "
     "rl.rl_use_sequence_packing rl.rl_submission_granularity rl.rl_consumption_granularity "
     "rl.rl_partial_rollouts rl.rl_durable_rollout_bank train.global_batch_size train.micro_batch_size",
     "collections of samples divide into batches", reinforcement},
    {"distillation", "distill.logits_save_dir distill.logits_save_top_k distill.logits_save_top_p",
     "saved logits have a number", distillation},
};

}  // namespace

std::span<const Rule> run_rules() { return kRunRules; }

}  // namespace megatron
