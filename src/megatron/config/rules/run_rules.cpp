#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

void world_agrees(ConfigBuilder& builder) {
  const RunConfig& run = builder.config.run;
  if (run.world_size > 0 && run.world_size % run.ranks != 0)
    builder.reject("run.world_size",
                   fmt::format("is not a multiple of the {} ranks in each process", run.ranks),
                   fmt::format("use a multiple of {}", run.ranks));
}

void vocabulary(ConfigBuilder& builder) {
  const TokenizerConfig& t = builder.config.tokenizer;
  if (t.tokenizer_type == TokenizerKind::null_ && t.vocab_size == 0)
    builder.reject("tokenizer.tokenizer_type", "has no vocabulary of its own", "give --vocab-size N");
  if (builder.given("tokenizer.vocab_size") && t.vocab_size != builder.config.model.vocab_size)
    builder.reject("tokenizer.vocab_size",
                   fmt::format("the model's vocab_size is {}", builder.config.model.vocab_size),
                   fmt::format("use {}", builder.config.model.vocab_size));
  if (t.padded_vocab_size > 0 && t.padded_vocab_size < builder.config.model.vocab_size)
    builder.reject("tokenizer.padded_vocab_size",
                   fmt::format("is less than vocab_size = {}", builder.config.model.vocab_size),
                   "leave it out");
  if (t.padded_vocab_size % builder.config.parallel.tensor_model_parallel_size != 0)
    builder.reject("tokenizer.padded_vocab_size",
                   fmt::format("tensor_model_parallel_size = {} does not divide it",
                               builder.config.parallel.tensor_model_parallel_size),
                   t.pad_vocab_size ? "leave it out" : "use tokenizer.pad_vocab_size=true");
}

void profiling(ConfigBuilder& builder) {
  const ProfilingConfig& p = builder.config.profiling;
  if (p.profile_step_start >= p.profile_step_end)
    builder.reject("profiling.profile_step_end",
                   fmt::format("is not after profile_step_start = {}", p.profile_step_start),
                   fmt::format("use at least {}", p.profile_step_start + 1));
}

void checkpoints(ConfigBuilder& builder) {
  const CheckpointConfig& c = builder.config.checkpoint;
  if (c.ckpt_format != CheckpointFormat::safetensors)
    builder.note(
        fmt::format("ckpt_format = {}: --save writes safetensors; --load reads safetensors, torch_dist and "
                    "torch; megatron "
                    "convert export --megatron writes torch_dist",
                    name_of(c.ckpt_format)));
  if (c.non_persistent_save_interval > 0 && c.non_persistent_ckpt_type == NonPersistentType::none)
    builder.reject("checkpoint.non_persistent_save_interval", "nothing says where to",
                   "add --non-persistent-ckpt-type global");
  if (c.non_persistent_ckpt_type == NonPersistentType::local && c.non_persistent_local_ckpt_dir.empty())
    builder.reject("checkpoint.non_persistent_ckpt_type", "nothing says where the local disks are",
                   "add --non-persistent-local-ckpt-dir DIR");
  const SchedulerConfig& s = builder.config.scheduler;
  if (s.override_opt_param_scheduler && s.use_checkpoint_opt_param_scheduler)
    builder.reject("scheduler.override_opt_param_scheduler",
                   "use_checkpoint_opt_param_scheduler asks for the opposite", "leave it out");
}

void faults(ConfigBuilder& builder) {
  const InProcessRestartConfig& restart = builder.config.inprocess_restart;
  if (restart.enabled && restart.heartbeat_timeout <= restart.heartbeat_interval)
    builder.reject("inprocess_restart.heartbeat_timeout",
                   fmt::format("is not above heartbeat_interval = {}", restart.heartbeat_interval),
                   fmt::format("use {}", 10 * restart.heartbeat_interval));
  if (!builder.config.ft.preemption_file.empty() && builder.config.checkpoint.save.empty())
    builder.reject("ft.preemption_file", "there is nowhere to save to", "give --save DIR, or leave it out");
}

constexpr Rule kRunRules[] = {
    {"world_agrees", "run.world_size run.ranks", "all ranks are a multiple of those of a process",
     world_agrees},
    {"vocabulary",
     "tokenizer.tokenizer_type tokenizer.vocab_size tokenizer.padded_vocab_size model.vocab_size "
     "model.tensor_model_parallel_size",
     "the vocabulary is given once and holds every token", vocabulary},
    {"checkpoints",
     "checkpoint.ckpt_format checkpoint.non_persistent_save_interval checkpoint.non_persistent_ckpt_type "
     "checkpoint.non_persistent_local_ckpt_dir "
     "scheduler.override_opt_param_scheduler scheduler.use_checkpoint_opt_param_scheduler",
     "non-persistent checkpoints have a place, and one schedule counts", checkpoints},
    {"faults",
     "inprocess_restart.enabled inprocess_restart.heartbeat_timeout inprocess_restart.heartbeat_interval "
     "ft.preemption_file checkpoint.save",
     "a process misses several heartbeats before it is given up, and a run that is to go on saves", faults},
    {"profiling", "profiling.profile_step_start profiling.profile_step_end",
     "a profile covers at least one step", profiling},
};

}  // namespace

std::span<const Rule> run_rules() { return kRunRules; }

}  // namespace megatron
