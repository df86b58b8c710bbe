#include "megatron/config/schema/logger_config.h"

namespace megatron {
namespace {

Schema logger_config_schema() {
  using C = LoggerConfig;
  Schema s("logger", "Logging");
  s.field<&C::log_interval>("log_interval", "steps between log lines").min(1);
  s.field<&C::metrics>("metrics", "file for one JSON line per step");
  s.field<&C::log_throughput>("log_throughput", "log model FLOPs per second");
  s.field<&C::log_progress>("log_progress", "keep progress.txt in the save folder");
  s.field<&C::log_params_norm>("log_params_norm", "log the norm of the weights");
  s.field<&C::log_num_zeros_in_grad>("log_num_zeros_in_grad", "log how many gradients are zero")
      .alias("optimizer.log_num_zeros_in_grad");
  s.field<&C::log_max_attention_logit>("log_max_attention_logit", "log the largest attention logit");
  s.field<&C::log_energy>("log_energy", "log energy and power");
  s.field<&C::log_device_memory_used>("log_device_memory_used", "log the device memory in use");
  s.field<&C::log_memory_interval>("log_memory_interval", "steps between memory reports").min(1);
  s.field<&C::timing_log_level>("timing_log_level", "detail of the timers").min(0).max(2);
  s.field<&C::timing_log_option>("timing_log_option", "what of the ranks' times is printed");
  s.field<&C::tensorboard_dir>("tensorboard_dir", "folder for TensorBoard");
  s.field<&C::tensorboard_log_interval>("tensorboard_log_interval", "steps between TensorBoard points")
      .min(1);
  s.field<&C::tensorboard_queue_size>("tensorboard_queue_size", "points kept before writing").min(1);
  s.field<&C::log_timers_to_tensorboard>("log_timers_to_tensorboard", "timers in TensorBoard");
  s.field<&C::log_loss_scale_to_tensorboard>("log_loss_scale_to_tensorboard", "loss scale in TensorBoard");
  s.field<&C::log_validation_ppl_to_tensorboard>("log_validation_ppl_to_tensorboard",
                                                 "validation perplexity in TensorBoard");
  s.field<&C::log_memory_to_tensorboard>("log_memory_to_tensorboard", "memory in TensorBoard");
  s.field<&C::log_throughput_to_tensorboard>("log_throughput_to_tensorboard", "throughput in TensorBoard");
  s.field<&C::log_l2_norm_grad_to_tensorboard>("log_l2_norm_grad_to_tensorboard",
                                               "gradient norms of layers in TensorBoard");
  s.field<&C::log_runtime_to_tensorboard>("log_runtime_to_tensorboard", "run time in TensorBoard");
  s.field<&C::log_world_size_to_tensorboard>("log_world_size_to_tensorboard", "ranks in TensorBoard");
  s.field<&C::throughput_window_size>("throughput_window_size", "steps over which throughput is averaged")
      .min(1);
  s.field<&C::logging_level>("logging_level", "how much is said: a level's name or Python's number")
      .alias("logger.log_level");
  s.field<&C::save_config_filepath>("save_config_filepath", "file for the resolved configuration");
  s.field<&C::skip_train_metrics_log>("skip_train_metrics_log", "no training lines in the log");
  s.field<&C::wandb_project>("wandb_project", "Weights & Biases project");
  s.field<&C::wandb_exp_name>("wandb_exp_name", "its run name");
  s.field<&C::wandb_save_dir>("wandb_save_dir", "its folder");
  s.field<&C::wandb_entity>("wandb_entity", "its owner");
  s.field<&C::moe_routing_trace_path>("moe_routing_trace_path", "folder for a record of the routing");
  s.field<&C::moe_routing_trace_max_training_iters>("moe_routing_trace_max_training_iters",
                                                    "steps recorded at most")
      .min(1);
  s.field<&C::moe_routing_trace_capture_logits>("moe_routing_trace_capture_logits",
                                                "record the router's logits too");
  s.field<&C::moe_routing_trace_capture_hidden_states>("moe_routing_trace_capture_hidden_states",
                                                       "record the router's inputs too");
  s.field<&C::moe_routing_trace_dump_weights>("moe_routing_trace_dump_weights",
                                              "record the router's weights too");
  return s;
}

Schema profiling_config_schema() {
  using C = ProfilingConfig;
  Schema s("profiling", "Profiling");
  s.field<&C::profile>("profile", "mark the profiled steps for Nsight Systems")
      .alias("profiling.use_nsys_profiler");
  s.field<&C::use_pytorch_profiler>("use_pytorch_profiler", "write a trace of the profiled steps");
  s.field<&C::profile_step_start>("profile_step_start", "first profiled step").min(0);
  s.field<&C::profile_step_end>("profile_step_end", "step after the last profiled one").min(0);
  s.field<&C::profile_ranks>("profile_ranks", "ranks that are profiled; none means rank 0").min(0);
  s.field<&C::record_memory_history>("record_memory_history", "record allocations");
  s.field<&C::memory_snapshot_path>("memory_snapshot_path", "file for that record");
  s.field<&C::record_shapes>("record_shapes", "the trace holds shapes");
  s.field<&C::nvtx_ranges>("nvtx_ranges", "name ranges of work for the profiler");
  return s;
}

}  // namespace

template <>
const Schema& schema<LoggerConfig>() {
  static const Schema rows = logger_config_schema();
  return rows;
}

template <>
const Schema& schema<ProfilingConfig>() {
  static const Schema rows = profiling_config_schema();
  return rows;
}

}  // namespace megatron
