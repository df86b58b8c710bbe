#include "megatron/training/run/run.h"

#include <csignal>
#include <mutex>

#include "megatron/base/atomic_file.h"
#include "megatron/base/cache_folder.h"
#include "megatron/base/error.h"
#include "megatron/base/writable_folder.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/config/sources/string_list.h"
#include "megatron/device/gpu_facts.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/profiler.h"
#include "megatron/training/log/console_log.h"
#include "megatron/training/log/progress_file.h"
#include "megatron/training/log/run_summary.h"
#include "megatron/training/log/tensorboard_log.h"
#include "megatron/training/plan/recompute_setup.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/run/rank_launch.h"
#include "megatron/training/run/weight_hash.h"
#include "megatron/training/setup/parallel_setup.h"
#include "megatron/training/setup/run_settings.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

int64_t world_of(const Config& config, const LaunchPlace& place) {
  return config.run.ranks * place.processes;
}

// Chooses what is left to be chosen by memory, tells what the run will need, and refuses what the GPUs that
// it would use do not hold.
void plan_memory_of(TrainingRun& run, const LaunchPlace& place, const Log& log) {
  const DeviceType device = device_type(run.config);
  const ParallelSizes sizes = parallel_sizes(run.config, world_of(run.config, place));
  const DType dtype = model_dtype(run.config);
  const int64_t sharing = ranks_on_a_device(device, run.config.run.ranks, place.processes_here);
  const auto choice = settle_recompute(run.config, sizes, dtype, device, sharing);
  const RunPlan plan = plan_memory(run.config, sizes, dtype, run.trainer);
  run.planned_bytes = plan.largest().bytes();
  if (place.process == 0) {
    if (choice) log.info("{}", choice->table());
    log.info("{}", run_summary(run.config, plan, device == DeviceType::Cuda ? gpu_name(0) : "the CPU"));
  }
  if (device != DeviceType::Cuda) return;
  // Ranks that share a GPU may need more and less of it; what counts is their sum.
  const auto there = static_cast<double>(min_gpu_memory(run.config.run.ranks * place.processes_here));
  double sum = 0;
  for (const RankPlan& rank : plan.ranks) sum += rank.bytes();
  const double shared = static_cast<double>(sharing) * sum / static_cast<double>(plan.ranks.size());
  if (sharing == 1 || shared > there) check_fits(run.config, plan, there / static_cast<double>(sharing));
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
  if (place.process != 0) return;
  if (!config.logger.metrics.empty()) require_file_place("--metrics", config.logger.metrics);
  if ((config.profiling.profile || config.profiling.nvtx_ranges) && !has_profiler())
    spec.log.warning("--profile and --nvtx-ranges tell nobody: this is a build without CUDA");
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
  spec.sources = read_sources(line, {.hf = read_hf, .recipe = {}, .checkpoint = checkpoint_model_settings});
  return spec;
}

RunSpec run_spec(std::string_view arguments) {
  std::vector<std::string> words;
  for_each_word(arguments, [&](std::string_view word) {
    if (!word.empty()) words.emplace_back(word);
  });
  return run_spec(words);
}

Config resolve_run(const RunSpec& spec, const LaunchPlace& place) {
  Sources sources = spec.sources;
  sources.processes = place.processes;
  if (spec.data) sources.overrides.emplace_back("dataset.mock_data=true");  // they need not be named
  Resolved resolved = resolve(sources, {.gpus = gpu_facts, .vocabulary = vocabulary_size});
  if (place.process == 0)
    for (const std::string& note : resolved.notes) spec.log.info("{}", note);
  if (const std::string& path = resolved.config.logger.save_config_filepath;
      !path.empty() && place.process == 0) {
    require_file_place("--save-config-filepath", path);
    write_file_atomically(path, resolved.given().dump(2) + "\n");
  }
  return std::move(resolved.config);
}

RunEnd run(const RunSpec& spec) {
  const auto start = std::chrono::steady_clock::now();
  const LaunchPlace place = launch_place();
  const Config config = resolve_run(spec, place);
  check_places(spec, config, place);
  TrainingRun run = training_run(config, world_of(config, place), spec.data ? spec.data(config) : RunData{});
  run.start = start;
  run.hf = spec.hf;
  run.cache = cache_folder();
  run.trainer = spec.trainer;
  plan_memory_of(run, place, spec.log);
  if (spec.out) run.callbacks.push_back(console_log(spec.log, spec.out));
  if (!run.config.logger.tensorboard_dir.empty()) run.callbacks.push_back(tensorboard_log(spec.log));
  if (run.config.logger.log_progress && !run.config.checkpoint.save.empty())
    run.callbacks.push_back(progress_file(spec.log));
  if (const std::string& metrics = run.config.logger.metrics; !metrics.empty())
    run.callbacks.push_back(metrics_log(spec.log, metrics));
  if (const int64_t interval = run.config.train.check_weight_hash_across_dp_replicas_interval; interval > 0)
    run.callbacks.push_back(weight_hash_check(interval));
  run.callbacks.insert(run.callbacks.end(), spec.callbacks.begin(), spec.callbacks.end());
  const int further = signal_number(run.config.train.exit_signal);
  run.interruption = std::make_shared<Interruption>(further == SIGTERM || further == SIGINT ? 0 : further);

  RunEnd end;
  std::once_flag kept;  // all ranks end alike
  run_on_ranks(run.config, place, spec.log, [&](RankContext& ctx, const ProcessGroup& world) {
    RunEnd own = train_rank(ctx, world, run);
    std::call_once(kept, [&] { end = std::move(own); });
  });
  if (const std::string text = end.text(); !text.empty() && place.process == 0) spec.log.info("{}", text);
  return end;
}

}  // namespace megatron
