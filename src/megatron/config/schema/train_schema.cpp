#include "megatron/config/schema/train_config.h"

namespace megatron {
namespace {

Schema train_config_schema() {
  using C = TrainConfig;
  Schema s("train", "Training");
  s.field<&C::micro_batch_size>("micro_batch_size", "sequences in one forward pass of a rank")
      .min(1)
      .max(1 << 24)
      .also("-mb")
      .tune({1, 2, 4, 8});
  s.field<&C::global_batch_size>("global_batch_size", "sequences in one step of the whole job")
      .min(1)
      .max(1 << 24)
      .also("-gb")
      .when_unset("micro_batch_size x data-parallel size");
  s.field<&C::rampup_batch_size>("rampup_batch_size",
                                 "start, increment and samples of a growing batch (retired)")
      .min(0)
      .count(3);
  s.field<&C::step_batch_size_schedule>("step_batch_size_schedule",
                                        "batch sizes by consumed tokens: 0:512 10B:1024");
  s.field<&C::decrease_batch_size_if_needed>("decrease_batch_size_if_needed",
                                             "a batch that does not divide is made smaller");
  s.field<&C::train_iters>("train_iters", "steps of the run")
      .min(0)
      .also("--max-steps")
      .also("-ms")
      .alias("scheduler.max_steps");
  s.field<&C::train_samples>("train_samples", "sequences of the run, instead of steps").min(0);
  s.field<&C::num_epochs>("num_epochs", "passes over a finite data set, instead of steps").min(0);
  s.field<&C::exit_interval>("exit_interval", "leave after steps that are a multiple of this").min(1);
  s.field<&C::exit_duration_in_mins>("exit_duration_in_mins", "save and leave after this many minutes")
      .above(0);
  s.field<&C::exit_signal_handler>("exit_signal_handler", "save and leave when a signal arrives");
  s.field<&C::exit_signal>("exit_signal", "that signal")
      .one_of({"SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"});
  s.field<&C::iterations_to_skip>("iterations_to_skip", "steps whose data is consumed without training")
      .min(1);
  s.field<&C::phase_transition_iterations>("phase_transition_iterations",
                                           "steps at which data is planned anew")
      .min(1);
  s.field<&C::train_sync_interval>("train_sync_interval", "steps between waits for the device").min(1);
  s.field<&C::empty_unused_memory_level>(
       "empty_unused_memory_level",
       "give unused device memory back: 0 never, 1 each step, 2 also after the forward pass")
      .min(0)
      .max(2);
  s.field<&C::check_weight_hash_across_dp_replicas_interval>(
       "check_weight_hash_across_dp_replicas_interval", "steps between comparisons of the replicas' weights")
      .min(1);
  s.field<&C::gpu_sniff_test_interval>("gpu_sniff_test_interval", "steps between self-tests of the device")
      .min(1);
  s.field<&C::check_optimizer_step_success>("check_optimizer_step_success",
                                            "all ranks agree whether a step was taken")
      .no_flag();
  s.field<&C::skip_sync_grad_norm_across_mp>("skip_sync_grad_norm_across_mp",
                                             "ranks of one model do not agree on the gradient norm")
      .no_flag();
  return s;
}

Schema validation_config_schema() {
  using C = ValidationConfig;
  Schema s("validation", "Evaluation");
  s.field<&C::eval_iters>("eval_iters", "batches of one evaluation").min(0).alias("train.eval_iters");
  s.field<&C::eval_interval>("eval_interval", "steps between evaluations; 0: none")
      .min(0)
      .alias("train.eval_interval");
  s.field<&C::start_eval_at_iter>("start_eval_at_iter", "first step that may be evaluated").min(0);
  s.field<&C::eval_global_batch_size>("eval_global_batch_size", "sequences in one evaluation batch")
      .min(1)
      .max(1 << 24)
      .when_unset("global_batch_size");
  s.field<&C::eval_micro_batch_size>("eval_micro_batch_size",
                                     "sequences in one forward pass of an evaluation")
      .min(1)
      .max(1 << 24)
      .when_unset("micro_batch_size");
  s.field<&C::skip_train>("skip_train", "evaluate only").alias("train.skip_train");
  s.field<&C::test_mode>("test_mode", "run as a test of the program itself");
  s.field<&C::full_validation>("full_validation", "each evaluation goes over the whole validation set");
  s.field<&C::multiple_validation_sets>("multiple_validation_sets",
                                        "validation sets are evaluated one by one");
  s.field<&C::validation_set_names>("validation_set_names", "their names in the log");
  return s;
}

}  // namespace

template <>
const Schema& schema<TrainConfig>() {
  static const Schema rows = train_config_schema();
  return rows;
}

template <>
const Schema& schema<ValidationConfig>() {
  static const Schema rows = validation_config_schema();
  return rows;
}

}  // namespace megatron
