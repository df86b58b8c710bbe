#include "megatron/config/schema/resilience_config.h"

namespace megatron {
namespace {

Schema rerun_config_schema() {
  using C = RerunConfig;
  Schema s("rerun_state_machine", "Result checks");
  s.field<&C::rerun_mode>("rerun_mode", "run a step again when its result looks wrong");
  s.field<&C::check_for_nan_in_loss>("check_for_nan_in_loss", "stop at a loss that is not a number")
      .no_flag();
  s.field<&C::check_for_spiky_loss>("check_for_spiky_loss",
                                    "look again at a loss far above the largest so far");
  s.field<&C::spiky_loss_factor>("spiky_loss_factor", "how far").above(1);
  s.field<&C::error_injection_rate>("error_injection_rate",
                                    "one wrong result per this many, to test the check; 0: none")
      .min(0);
  s.field<&C::error_injection_type>("error_injection_type", "kind of wrong result");
  return s;
}

Schema fault_tolerance_config_schema() {
  using C = FaultToleranceConfig;
  Schema s("ft", "Fault tolerance");
  s.field<&C::enable_ft_package>("enable_ft_package", "a monitor restarts ranks that hang");
  s.field<&C::calc_ft_timeouts>("calc_ft_timeouts", "learn its timeouts from the run");
  s.field<&C::ft_num_warmup_iters>("ft_num_warmup_iters", "steps that are not timed").min(0);
  s.field<&C::simulate_fault>("simulate_fault", "kill or stop a rank, as a test");
  s.field<&C::simulated_fault_type>("simulated_fault_type", "which of the two");
  s.field<&C::simulated_fault_rank>("simulated_fault_rank", "the rank that fails").min(0);
  s.field<&C::simulated_fault_base_delay>("simulated_fault_base_delay", "seconds before it fails").min(0);
  s.field<&C::fault_injector_ranks>("fault_injector_ranks", "ranks that fail").min(0);
  s.field<&C::fault_injector_num_ranks>("fault_injector_num_ranks", "how many ranks fail, chosen at random")
      .min(1);
  s.field<&C::fault_injector_fault_types>("fault_injector_fault_types", "kinds of fault to choose from");
  s.field<&C::fault_injector_fault_probabilities>("fault_injector_fault_probabilities",
                                                  "how likely each kind is")
      .min(0)
      .max(1);
  s.field<&C::fault_injector_fault_delay>("fault_injector_fault_delay", "seconds before the fault").min(0);
  s.field<&C::fault_injector_delay_start_iteration>("fault_injector_delay_start_iteration",
                                                    "step from which the delay counts")
      .min(0);
  s.field<&C::fault_injector_mtti_seconds>("fault_injector_mtti_seconds", "mean seconds between faults")
      .above(0);
  s.field<&C::fault_injector_offset_seconds>("fault_injector_offset_seconds",
                                             "seconds without faults at first")
      .min(0);
  s.field<&C::fault_injector_seed>("fault_injector_seed", "seed of the faults").min(0);
  return s;
}

Schema straggler_config_schema() {
  using C = StragglerConfig;
  Schema s("straggler", "Slow ranks");
  s.field<&C::log_straggler>("log_straggler", "report the slowest and fastest ranks");
  s.field<&C::straggler_ctrlr_port>("straggler_ctrlr_port", "port that switches the reports")
      .min(1)
      .max(65535);
  s.field<&C::straggler_minmax_count>("straggler_minmax_count", "ranks named in a report").min(1);
  s.field<&C::disable_straggler_on_startup>("disable_straggler_on_startup", "start with the reports off");
  return s;
}

Schema nvrx_straggler_config_schema() {
  using C = NvrxStragglerConfig;
  Schema s("nvrx_straggler", "Performance scores");
  s.field<&C::enabled>("enabled", "score each rank's speed").no_flag();
  s.field<&C::report_time_interval>("report_time_interval", "seconds between reports").above(0).no_flag();
  s.field<&C::calc_relative_gpu_perf>("calc_relative_gpu_perf", "score against the other ranks").no_flag();
  s.field<&C::calc_individual_gpu_perf>("calc_individual_gpu_perf", "score against the rank's own past")
      .no_flag();
  s.field<&C::num_gpu_perf_scores_to_print>("num_gpu_perf_scores_to_print", "scores printed at each end")
      .min(0)
      .no_flag();
  s.field<&C::gpu_relative_perf_threshold>("gpu_relative_perf_threshold",
                                           "relative score below which a rank is slow")
      .min(0)
      .max(1)
      .no_flag();
  s.field<&C::gpu_individual_perf_threshold>("gpu_individual_perf_threshold",
                                             "own score below which a rank is slow")
      .min(0)
      .max(1)
      .no_flag();
  s.field<&C::stop_if_detected>("stop_if_detected", "leave when a rank is slow").no_flag();
  s.field<&C::profiling_interval>("profiling_interval", "steps between measurements").min(1).no_flag();
  return s;
}

Schema in_process_restart_config_schema() {
  using C = InProcessRestartConfig;
  Schema s("inprocess_restart", "In-process restart");
  s.field<&C::enabled>("enabled", "restart training within the running processes")
      .flag("--inprocess-restart");
  s.field<&C::max_iterations>("max_iterations", "restarts at most; 0: no limit")
      .min(0)
      .flag("--inprocess-max-iterations");
  s.field<&C::monitor_thread_interval>("monitor_thread_interval",
                                       "seconds between checks of the monitor thread")
      .above(0)
      .flag("--inprocess-monitor-thread-interval");
  s.field<&C::monitor_process_interval>("monitor_process_interval",
                                        "seconds between checks of the monitor process")
      .above(0)
      .flag("--inprocess-monitor-process-interval");
  s.field<&C::progress_watchdog_interval>("progress_watchdog_interval", "seconds between checks of progress")
      .above(0)
      .flag("--inprocess-progress-watchdog-interval");
  s.field<&C::heartbeat_interval>("heartbeat_interval", "seconds between heartbeats")
      .above(0)
      .flag("--inprocess-heartbeat-interval");
  s.field<&C::soft_timeout>("soft_timeout", "seconds without progress before a restart")
      .above(0)
      .flag("--inprocess-soft-timeout");
  s.field<&C::hard_timeout>("hard_timeout", "seconds without progress before a kill")
      .above(0)
      .flag("--inprocess-hard-timeout");
  s.field<&C::heartbeat_timeout>("heartbeat_timeout", "seconds without a heartbeat before a rank is given up")
      .above(0)
      .flag("--inprocess-heartbeat-timeout");
  s.field<&C::barrier_timeout>("barrier_timeout", "seconds to meet after a fault")
      .above(0)
      .flag("--inprocess-barrier-timeout");
  s.field<&C::completion_timeout>("completion_timeout", "seconds to meet at the end")
      .above(0)
      .flag("--inprocess-completion-timeout");
  s.field<&C::last_call_wait>("last_call_wait", "seconds to collect further faults")
      .min(0)
      .flag("--inprocess-last-call-wait");
  s.field<&C::termination_grace_time>("termination_grace_time",
                                      "seconds between the polite and the hard kill")
      .min(0)
      .flag("--inprocess-termination-grace-time");
  s.field<&C::granularity>("granularity", "what is replaced together").flag("--inprocess-granularity");
  s.field<&C::active_world_size>("active_world_size", "ranks that train; the rest wait in reserve")
      .min(1)
      .flag("--inprocess-active-world-size")
      .when_unset("all");
  s.field<&C::empty_cuda_cache>("empty_cuda_cache", "give device memory back before a restart")
      .flag("--inprocess-empty-cuda-cache");
  return s;
}

}  // namespace

template <>
const Schema& schema<RerunConfig>() {
  static const Schema rows = rerun_config_schema();
  return rows;
}

template <>
const Schema& schema<FaultToleranceConfig>() {
  static const Schema rows = fault_tolerance_config_schema();
  return rows;
}

template <>
const Schema& schema<StragglerConfig>() {
  static const Schema rows = straggler_config_schema();
  return rows;
}

template <>
const Schema& schema<NvrxStragglerConfig>() {
  static const Schema rows = nvrx_straggler_config_schema();
  return rows;
}

template <>
const Schema& schema<InProcessRestartConfig>() {
  static const Schema rows = in_process_restart_config_schema();
  return rows;
}

}  // namespace megatron
