#include "megatron/training/run/run.h"

#include <csignal>
#include <cstdlib>
#include <mutex>

#include "megatron/base/atomic_file.h"
#include "megatron/base/cache_folder.h"
#include "megatron/base/error.h"
#include "megatron/base/refuse.h"
#include "megatron/base/writable_folder.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/config/rules/nonuniform_refusals.h"
#include "megatron/config/sources/string_list.h"
#include "megatron/device/gpu_facts.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/profiler.h"
#include "megatron/device/system_memory.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/recipes/recipe_catalogue.h"
#include "megatron/training/log/console_log.h"
#include "megatron/training/log/memory_log.h"
#include "megatron/training/log/progress_file.h"
#include "megatron/training/log/run_summary.h"
#include "megatron/training/log/tensorboard_log.h"
#include "megatron/training/log/trace_log.h"
#include "megatron/training/plan/launch_problems.h"
#include "megatron/training/plan/recompute_setup.h"
#include "megatron/training/run/fault_injector.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/run/rank_launch.h"
#include "megatron/training/run/restart_memory.h"
#include "megatron/training/run/weight_hash.h"
#include "megatron/training/setup/run_settings.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

// Ranks that train at first.
int64_t world_of(const Config& config, const LaunchPlace& place) {
  const InProcessRestartConfig& restart = config.inprocess_restart;
  return restart.enabled && restart.active_world_size > 0 ? restart.active_world_size
                                                          : config.run.ranks * place.processes;
}

// Chooses what is left to be chosen by memory, tells what the run will need, and refuses what the kernels of
// the GPUs that it would use do not take, or what these, or this machine, do not hold. Gives the fewest
// tensor-parallel ranks with which a replica would fit after a fault.
int64_t plan_memory_of(TrainingRun& run, const Resolved& resolved, const LaunchPlace& place, const Log& log) {
  const DeviceType device = device_type(run.config);
  const ParallelSizes sizes = parallel_sizes(run.config, world_of(run.config, place));
  const DType dtype = model_dtype(run.config);
  const int64_t sharing = ranks_on_a_device(device, run.config.run.ranks, place.processes_here);
  const auto choice = settle_recompute(run.config, sizes, dtype, device, sharing);
  const RunPlan plan = plan_memory(run.config, sizes, dtype, run.trainer, resolved.gpus);
  check_launches(resolved, plan.refusals);
  run.planned_bytes = plan.largest().bytes();
  if (place.process == 0) {
    if (choice) log.info("{}", choice->table());
    log.info("{}", run_summary(run.config, plan, device == DeviceType::Cuda ? gpu_name(0) : "the CPU"));
  }
  // Ranks that share a device may need more and less of it; what counts is their sum.
  const auto there = device == DeviceType::Cuda
                         ? static_cast<double>(min_gpu_memory(run.config.run.ranks * place.processes_here))
                         : system_memory();
  double sum = 0;
  for (const RankPlan& rank : plan.ranks) sum += rank.bytes();
  const double shared = static_cast<double>(sharing) * sum / static_cast<double>(plan.ranks.size());
  if (sharing == 1 || shared > there) check_fits(run.config, plan, there / static_cast<double>(sharing));
  if (!run.config.inprocess_restart.enabled || !may_lose_ranks(run.config)) return 1;
  // Beside whole ranks, where several share a device.
  const double left = there - static_cast<double>(sharing - 1) * run.planned_bytes;
  const int64_t ranks = fewest_ranks_that_fit(run.config, sizes.world, dtype, run.trainer, left);
  if (ranks > 1 && place.process == 0)
    log.info(
        "memory: after a fault replicas go on with at least {} of {} tensor-parallel ranks; those that "
        "have fewer would not fit and are dropped",
        ranks, sizes.tp);
  return ranks;
}

// Before data is read and memory planned for them.
void check_ranks(const Config& config) {
  if (const int64_t ranks = config.run.ranks; ranks > kMaxThreadRanks)
    throw ConfigError(
        fmt::format("--ranks {}: a process has at most {} ranks; start several processes "
                    "(mpirun, srun or torchrun), each with its share",
                    ranks, kMaxThreadRanks));
}

// What would be found wrong only after hours of work.
void check_places(const RunSpec& spec, const Config& config, const LaunchPlace& place) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  const auto offers = [](const std::string& path) {
    return !path.empty() && recognise_checkpoint(path).kind != CheckpointKind::none;
  };
  if (spec.needs_weights && !spec.hf && !offers(checkpoint.load) && !offers(checkpoint.pretrained_checkpoint))
    throw ConfigError(fmt::format(
        "finetune: there is nothing to begin from{}; give --hf DIR or --load DIR",
        checkpoint.load.empty() ? "" : fmt::format(", and no checkpoint in {}", checkpoint.load)));
  if (!checkpoint.save.empty()) require_folder("--save", checkpoint.save);
  if (!checkpoint.save.empty() && checkpoint.non_persistent_ckpt_type == NonPersistentType::local)
    require_folder("--non-persistent-local-ckpt-dir", checkpoint.non_persistent_local_ckpt_dir);
  if (place.process != 0) return;
  if (!config.logger.metrics.empty()) require_file_place("--metrics", config.logger.metrics);
  if (config.profiling.nvtx_ranges && !has_profiler())
    spec.log.warning("--nvtx-ranges tells nobody: this is a build without CUDA");
}

// The end of the ranks that train, also on those that their tensor-parallel groups do without, which wait for
// it here: a process that ends early looks as if the run had ended.
RunEnd end_of_all(RankContext& ctx, const ProcessGroup& world, bool trained, RunEnd own) {
  constexpr std::chrono::hours kWholeRun(24 * 365);
  if (!trained) world.set_timeout(kWholeRun);
  const std::vector<double> known = {
      static_cast<double>(own.reason), static_cast<double>(own.signal), own.saved ? 1.0 : 0.0,
      own.goes_on ? 1.0 : 0.0, static_cast<double>(own.state.iteration)};  // zeros where it did not train
  Tensor told = ctx.from_vector<double>(known, {static_cast<int64_t>(known.size())});
  world.all_reduce(told, ReduceOp::Max).wait();
  if (trained) return own;
  const std::vector<double> values = ctx.to_vector<double>(told);
  own.reason = static_cast<RunEnd::Reason>(values[0]);
  own.signal = static_cast<int>(values[1]);
  own.saved = values[2] > 0;
  own.goes_on = values[3] > 0;
  own.state.iteration = static_cast<int64_t>(values[4]);
  return own;
}

// Planted faults belong to the first start of a job.
bool is_first_start() {
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"})
    if (const char* count = std::getenv(name); count && std::atoi(count) > 0) return false;
  return true;
}

int signal_number(const std::string& name) {
  for (int signal = 1; signal < NSIG; ++signal)
    if (const char* own = sigabbrev_np(signal); own && name == std::string("SIG") + own) return signal;
  return 0;
}

}  // namespace

RunSpec run_spec(std::span<const std::string> arguments) {
  const CommandLine line = parse_command_line(arguments);
  if (!line.words.empty())
    throw UsageError(
        fmt::format("cannot make sense of '{}': write settings as --flag value or section.key=value",
                    line.words.front()));
  RunSpec spec;
  // Opened once: it reads and checks every file of the model.
  const auto read_hf = [&](const std::string& directory) {
    spec.hf = std::make_shared<const AutoBridge>(directory);
    return hf_model_settings(*spec.hf);
  };
  spec.sources = read_sources(line, {.hf = read_hf,
                                     .recipe = read_recipe,
                                     .checkpoint = checkpoint_model_settings,
                                     .checkpoint_layout = checkpoint_layout_settings});
  return spec;
}

RunSpec run_spec(std::string_view arguments) {
  std::vector<std::string> words;
  for_each_word(arguments, [&](std::string_view word) {
    if (!word.empty()) words.emplace_back(word);
  });
  return run_spec(words);
}

Resolved resolve_run(const RunSpec& spec, const LaunchPlace& place) {
  Sources sources = spec.sources;
  sources.processes = place.processes;
  if (spec.data) sources.overrides.emplace_back("dataset.mock_data=true");  // they need not be named
  Resolved resolved = resolve(sources, {.gpus = gpu_facts, .vocabulary = vocabulary_size});
  check_gpus(resolved);
  if (place.process == 0) {
    if (spec.hf)
      for (const std::string& note : spec.hf->notes()) spec.log.info("{}", note);
    for (const std::string& note : resolved.notes) spec.log.info("{}", note);
  }
  if (const std::string& path = resolved.config.logger.save_config_filepath;
      !path.empty() && place.process == 0) {
    require_file_place("--save-config-filepath", path);
    write_file_atomically(path, resolved.given().dump(2) + "\n");
  }
  return resolved;
}

RunEnd run(const RunSpec& spec) {
  const auto start = std::chrono::steady_clock::now();
  const LaunchPlace place = launch_place();
  const Resolved resolved = resolve_run(spec, place);
  const Config& config = resolved.config;
  check_ranks(config);
  check_places(spec, config, place);
  const bool live = config.rl.perform_rl_step;
  require_input(!live || spec.live_data, "--perform-rl-step: this program has no environments; leave it out");
  TrainingRun run = training_run(config, world_of(config, place),
                                 live        ? no_data(config)
                                 : spec.data ? spec.data(config)
                                             : run_data(config, spec.log));
  if (live) run.live_data = spec.live_data;
  run.start = start;
  if (const std::string& notice = config.ft.preemption_file; !notice.empty())
    run.old_notice = write_time(notice);
  run.hf = spec.hf;
  run.cache = cache_folder();
  run.trainer = spec.trainer;
  run.teacher = TeacherSource::of(run.config);
  run.trainer.teacher = run.teacher.model;
  const int64_t min_tp = plan_memory_of(run, resolved, place, spec.log);
  if (spec.out) run.callbacks.push_back(console_log(spec.log, spec.out));
  if (!run.config.logger.tensorboard_dir.empty()) run.callbacks.push_back(tensorboard_log(spec.log));
  if (run.config.profiling.profile) run.callbacks.push_back(trace_log(spec.log));
  if (run.config.profiling.record_memory_history) run.callbacks.push_back(memory_log(spec.log));
  if (run.config.logger.log_progress && !run.config.checkpoint.save.empty())
    run.callbacks.push_back(progress_file(spec.log));
  if (const std::string& metrics = run.config.logger.metrics; !metrics.empty())
    run.callbacks.push_back(metrics_log(spec.log, metrics));
  if (const int64_t interval = run.config.train.check_weight_hash_across_dp_replicas_interval; interval > 0)
    run.callbacks.push_back(weight_hash_check(interval));
  const auto ranks_here = static_cast<int>(run.config.run.ranks);
  if (std::vector<InjectedFault> faults = parse_faults(run.config.ft.inject_fault);
      !faults.empty() && is_first_start() && !place.rejoins)
    run.callbacks.push_back(fault_injector(std::move(faults), place.process * ranks_here, ranks_here));
  run.callbacks.insert(run.callbacks.end(), spec.callbacks.begin(), spec.callbacks.end());
  const int further = signal_number(run.config.train.exit_signal);
  run.interruption = std::make_shared<Interruption>(further == SIGTERM || further == SIGINT ? 0 : further);

  run.started_again = place.starter == LaunchPlace::Starter::Slurm || std::getenv("MEGATRON_LAUNCH");
  const auto restart = std::make_shared<RestartState>(ranks_here);
  restart->min_tp = min_tp;
  if (run.config.inprocess_restart.enabled) run.restart = restart;

  RunEnd end;
  std::mutex ends;  // all ranks end alike
  run_with_restarts(run.config, place, spec.log, spec.restart, *restart,
                    [&](RankContext& ctx, const ProcessGroup& world) {
                      const ParallelSizes& sizes = restart->sizes;
                      const ProcessGroup active = active_world(world, sizes);
                      RunEnd own;
                      if (active) own = train_rank(ctx, active, sizes, run);
                      if (!sizes.inactive.empty())
                        own = end_of_all(ctx, world, static_cast<bool>(active), std::move(own));
                      if (run.restart) world.barrier();  // those that are done wait for those that go on
                      std::lock_guard lock(ends);
                      end = std::move(own);
                    });
  if (const std::string text = end.text(); !text.empty() && place.process == 0) spec.log.info("{}", text);
  return end;
}

}  // namespace megatron
