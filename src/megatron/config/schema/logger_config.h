#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class TimingOption { max, minmax, all };
constexpr auto names(TimingOption) { return std::array{"max", "minmax", "all"}; }

struct LoggerConfig {
  int64_t log_interval = 100;
  std::string metrics;
  bool log_throughput = false;
  bool log_progress = false;
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  bool log_max_attention_logit = false;
  bool log_energy = false;
  bool log_device_memory_used = false;
  int64_t log_memory_interval = 0;
  int64_t timing_log_level = 0;
  TimingOption timing_log_option = TimingOption::minmax;
  std::string tensorboard_dir;
  int64_t tensorboard_log_interval = 1;
  int64_t tensorboard_queue_size = 1000;
  bool log_timers_to_tensorboard = false;
  bool log_loss_scale_to_tensorboard = true;
  bool log_validation_ppl_to_tensorboard = false;
  bool log_memory_to_tensorboard = false;
  bool log_throughput_to_tensorboard = false;
  bool log_l2_norm_grad_to_tensorboard = false;
  bool log_runtime_to_tensorboard = false;
  bool log_world_size_to_tensorboard = false;
  int64_t throughput_window_size = 100;
  std::string logging_level;
  std::string save_config_filepath;
  bool skip_train_metrics_log = false;
  std::string wandb_project;
  std::string wandb_exp_name;
  std::string wandb_save_dir;
  std::string wandb_entity;
  std::string moe_routing_trace_path;
  int64_t moe_routing_trace_max_training_iters = 0;
  bool moe_routing_trace_capture_logits = false;
  bool moe_routing_trace_capture_hidden_states = false;
  bool moe_routing_trace_dump_weights = false;
};

template <>
const Schema& schema<LoggerConfig>();

struct ProfilingConfig {
  bool profile = false;
  bool use_pytorch_profiler = false;
  int64_t profile_step_start = 10;
  int64_t profile_step_end = 12;
  std::vector<int64_t> profile_ranks;
  bool record_memory_history = false;
  std::string memory_snapshot_path = "snapshot.pickle";
  bool record_shapes = false;
  bool nvtx_ranges = false;
};

template <>
const Schema& schema<ProfilingConfig>();

}  // namespace megatron
