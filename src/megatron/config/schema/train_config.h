#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

struct TrainConfig {
  int64_t micro_batch_size = 0;
  int64_t global_batch_size = 0;
  std::vector<int64_t> rampup_batch_size;
  std::string step_batch_size_schedule;
  bool decrease_batch_size_if_needed = false;
  int64_t train_iters = 0;
  int64_t train_samples = 0;
  int64_t num_epochs = 0;
  int64_t exit_interval = 0;
  double exit_duration_in_mins = 0;
  bool exit_signal_handler = false;
  std::string exit_signal = "SIGTERM";
  std::vector<int64_t> iterations_to_skip;
  std::vector<int64_t> phase_transition_iterations;
  int64_t train_sync_interval = 0;
  int64_t empty_unused_memory_level = 0;
  int64_t check_weight_hash_across_dp_replicas_interval = 0;
  int64_t gpu_sniff_test_interval = 0;
  bool check_optimizer_step_success = true;
  bool skip_sync_grad_norm_across_mp = false;
};

template <>
const Schema& schema<TrainConfig>();

struct ValidationConfig {
  int64_t eval_iters = 100;
  int64_t eval_interval = 0;
  int64_t start_eval_at_iter = 0;
  int64_t eval_global_batch_size = 0;
  int64_t eval_micro_batch_size = 0;
  bool skip_train = false;
  bool test_mode = false;
  bool full_validation = false;
  bool multiple_validation_sets = false;
  std::vector<std::string> validation_set_names;
};

template <>
const Schema& schema<ValidationConfig>();

}  // namespace megatron
