#include "megatron/cli/commands/pretrain_command.h"

#include <filesystem>
#include <memory>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/cli/common/cache_folder.h"
#include "megatron/cli/common/rank_launch.h"
#include "megatron/cli/common/recompute_setup.h"
#include "megatron/cli/common/writable_folder.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/device/gpu_facts.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/profiler.h"
#include "megatron/training/run/training_run.h"
#include "megatron/training/setup/parallel_setup.h"
#include "megatron/training/setup/run_settings.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

std::string help(std::string_view command, std::string_view what) {
  return fmt::format(
      "usage: megatron {} [settings]\n"
      "\n"
      "{}\n"
      "\n"
      "data:  --mock-data, or --replay FILE.safetensors:KEY\n"
      "       (tokens [iterations, global batch, length + 1])\n"
      "ranks: --ranks N, threads of this process, or of each that mpirun, torchrun\n"
      "       or srun started; --tensor-model-parallel-size and the like divide them\n"
      "files: --save DIR --save-interval N, --load DIR (a run goes on where its newest\n"
      "       checkpoint is), --metrics FILE.jsonl (one JSON object per iteration)\n"
      "GPUs:  the first step autotunes GEMM kernels and caches the choice\n"
      "       in $MEGATRON_CACHE (~/.cache/megatron); MEGATRON_CACHE= or\n"
      "       --deterministic-mode: the library's first proposals\n"
      "\n"
      "Before it starts, the memory of a step is planned and told, and a run that its\n"
      "GPUs do not hold is refused with what helps; after the second iteration\n"
      "follows what was held. Of the metrics, memory_gib is what tensors and scratch\n"
      "memory held at most, reserved_gib what was taken from the device for it.\n"
      "\n{}",
      command, what, settings_overview());
}

// Chooses what is left to be chosen by memory, tells what the run will need, and refuses what the GPUs that
// it would use do not hold.
void plan_memory_of(TrainingRun& run, const LaunchPlace& place, const Log& log) {
  const DeviceType device = device_type(run.config);
  const ParallelSizes sizes = parallel_sizes(run.config, run.config.run.ranks * place.processes);
  const DType dtype = model_dtype(run.config);
  const int64_t sharing = ranks_on_a_device(device, run.config.run.ranks, place.processes_here);
  const auto choice = settle_recompute(run.config, sizes, dtype, device, sharing);
  const RunPlan plan = plan_memory(run.config, sizes, dtype);
  run.planned_bytes = plan.largest().bytes();
  if (place.process == 0) {
    if (choice) log.info("{}", choice->table());
    log.info("{}", plan.memory_table());
  }
  if (device != DeviceType::Cuda) return;
  // Ranks that share a GPU may need more and less of it; what counts is their sum.
  const auto there = static_cast<double>(min_gpu_memory(run.config.run.ranks * place.processes_here));
  double sum = 0;
  for (const RankPlan& rank : plan.ranks) sum += rank.bytes();
  const double shared = static_cast<double>(sharing) * sum / static_cast<double>(plan.ranks.size());
  if (sharing == 1 || shared > there) check_fits(run.config, plan, there / static_cast<double>(sharing));
}

int train(Invocation& invocation, bool needs_weights) {
  const CommandLine line = parse_command_line(invocation.args);
  if (!line.words.empty())
    throw UsageError(
        fmt::format("cannot make sense of '{}': write settings as --flag value or section.key=value",
                    line.words.front()));
  const LaunchPlace place = launch_place();
  std::shared_ptr<const AutoBridge> hf;  // opened once: it reads and checks every file of the model
  auto read_hf = [&hf](const std::string& directory) {
    hf = std::make_shared<const AutoBridge>(directory);
    return hf_model_settings(*hf);
  };
  Sources sources = read_sources(line, {.hf = read_hf, .recipe = {}});
  sources.processes = place.processes;
  const Resolved resolved = resolve(sources, {.gpus = gpu_facts, .vocabulary = vocabulary_size});
  if (place.process == 0)
    for (const std::string& note : resolved.notes) invocation.log.info("{}", note);
  const CheckpointConfig& checkpoint = resolved.config.checkpoint;
  if (needs_weights && line.hf_dir.empty() && (checkpoint.load.empty() || !has_checkpoint(checkpoint.load)))
    throw ConfigError(fmt::format(
        "finetune: there is nothing to begin from{}; give --hf DIR or --load DIR",
        checkpoint.load.empty() ? "" : fmt::format(", and no checkpoint in {}", checkpoint.load)));
  if (!checkpoint.save.empty()) require_folder("--save", checkpoint.save);
  if (const std::string& metrics = resolved.config.logger.metrics; !metrics.empty() && place.process == 0)
    require_file_place("--metrics", metrics);

  const ProfilingConfig& profiling = resolved.config.profiling;
  if ((profiling.profile || profiling.nvtx_ranges) && !has_profiler() && place.process == 0)
    invocation.log.warning("--profile and --nvtx-ranges tell nobody: this is a build without CUDA");

  TrainingRun run = training_run(resolved.config);
  run.hf = hf;
  run.cache = cache_folder();
  plan_memory_of(run, place, invocation.log);
  const LoggerConfig& logger = run.config.logger;
  std::unique_ptr<MetricsFile> metrics;
  bool metrics_full = false;
  IterationMeans means;
  std::unique_ptr<Progress> progress;
  run.on_event = [&](const std::string& what) {
    if (progress) progress->clear();
    invocation.log.info("{}", what);
  };
  run.on_iteration = [&](const IterationReport& report) {
    if (!logger.metrics.empty()) {
      if (!metrics) metrics = std::make_unique<MetricsFile>(logger.metrics, report.iteration - 1);
      const bool written = metrics->write(report);
      if (!written && !metrics_full) {
        if (progress) progress->clear();
        invocation.log.warning(
            "--metrics {}: there is no room for the row of iteration {}; rows are left out until there is",
            logger.metrics, report.iteration);
      }
      metrics_full = !written;
    }
    if (!progress)
      progress = std::make_unique<Progress>(invocation.log, "training", run.iterations, report.iteration);
    means.add(report);
    const bool complete = report.iteration % logger.log_interval == 0;
    if (complete || report.iteration == 1 || report.iteration == run.iterations) {
      progress->clear();
      fmt::print(invocation.out, "{}\n", iteration_line(means.report(), time_stamp(), logger.log_throughput));
      std::fflush(invocation.out);
    }
    if (complete) means.reset();
    progress->update(report.iteration,
                     fmt::format("loss {:.4f}  {:.0f} tokens/s", report.loss, report.tokens_per_second));
  };
  run_on_ranks(run.config, place, invocation.log,
               [&](RankContext& ctx, const ProcessGroup& world) { train_rank(ctx, world, run); });
  return 0;
}

}  // namespace

std::string pretrain_help() {
  return help("pretrain", "Trains a model from scratch, or from the weights of --hf DIR.");
}
int run_pretrain(Invocation& invocation) { return train(invocation, false); }

std::string finetune_help() {
  return help("finetune", "Trains a model further, from --hf DIR or a checkpoint (--load DIR --finetune).");
}
int run_finetune(Invocation& invocation) { return train(invocation, true); }

}  // namespace megatron
