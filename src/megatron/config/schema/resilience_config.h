#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class RerunMode { disabled, validate_results, report_stats };
constexpr auto names(RerunMode) { return std::array{"disabled", "validate_results", "report_stats"}; }
enum class InjectedError { correct_result, transient_error, persistent_error };
constexpr auto names(InjectedError) {
  return std::array{"correct_result", "transient_error", "persistent_error"};
}

struct RerunConfig {
  RerunMode rerun_mode = RerunMode::disabled;
  bool check_for_nan_in_loss = true;
  bool check_for_spiky_loss = false;
  double spiky_loss_factor = 10;
  int64_t error_injection_rate = 0;
  InjectedError error_injection_type = InjectedError::transient_error;
};

template <>
const Schema& schema<RerunConfig>();

enum class SimulatedFault { random, rank_killed, rank_hung };
constexpr auto names(SimulatedFault) { return std::array{"random", "rank_killed", "rank_hung"}; }

struct FaultToleranceConfig {
  bool enable_ft_package = false;
  bool calc_ft_timeouts = false;
  int64_t ft_num_warmup_iters = 5;
  bool simulate_fault = false;
  SimulatedFault simulated_fault_type = SimulatedFault::random;
  std::optional<int64_t> simulated_fault_rank;
  double simulated_fault_base_delay = 0;
  std::vector<int64_t> fault_injector_ranks;
  std::optional<int64_t> fault_injector_num_ranks;
  std::vector<std::string> fault_injector_fault_types;
  std::vector<double> fault_injector_fault_probabilities;
  std::optional<double> fault_injector_fault_delay;
  std::optional<int64_t> fault_injector_delay_start_iteration;
  std::optional<double> fault_injector_mtti_seconds;
  std::optional<double> fault_injector_offset_seconds;
  std::optional<int64_t> fault_injector_seed;
};

template <>
const Schema& schema<FaultToleranceConfig>();

struct StragglerConfig {
  bool log_straggler = false;
  int64_t straggler_ctrlr_port = 65535;
  int64_t straggler_minmax_count = 1;
  bool disable_straggler_on_startup = false;
};

template <>
const Schema& schema<StragglerConfig>();

struct NvrxStragglerConfig {
  bool enabled = false;
  double report_time_interval = 300;
  bool calc_relative_gpu_perf = true;
  bool calc_individual_gpu_perf = true;
  int64_t num_gpu_perf_scores_to_print = 5;
  double gpu_relative_perf_threshold = 0.7;
  double gpu_individual_perf_threshold = 0.7;
  bool stop_if_detected = false;
  int64_t profiling_interval = 1;
};

template <>
const Schema& schema<NvrxStragglerConfig>();

enum class RestartGranularity { node, rank };
constexpr auto names(RestartGranularity) { return std::array{"node", "rank"}; }

struct InProcessRestartConfig {
  bool enabled = false;
  int64_t max_iterations = 0;
  double monitor_thread_interval = 1;
  double monitor_process_interval = 1;
  double progress_watchdog_interval = 1;
  double heartbeat_interval = 30;
  double soft_timeout = 60;
  double hard_timeout = 90;
  double heartbeat_timeout = 60;
  double barrier_timeout = 120;
  double completion_timeout = 120;
  double last_call_wait = 1;
  double termination_grace_time = 1;
  RestartGranularity granularity = RestartGranularity::node;
  int64_t active_world_size = 0;
  bool empty_cuda_cache = true;
};

template <>
const Schema& schema<InProcessRestartConfig>();

}  // namespace megatron
