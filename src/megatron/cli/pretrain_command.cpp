#include "megatron/cli/pretrain_command.h"

#include <memory>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/cli/cache_folder.h"
#include "megatron/cli/rank_launch.h"
#include "megatron/cli/recompute_setup.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve.h"
#include "megatron/device/profiler.h"
#include "megatron/training/parallel_setup.h"
#include "megatron/training/run_settings.h"
#include "megatron/training/training_run.h"

namespace megatron {
namespace {

std::string help(std::string_view command, std::string_view what) {
  return fmt::format(
      "usage: megatron {} [settings]\n"
      "\n"
      "{}\n"
      "\n"
      "data:  --mock-data, or --replay FILE.safetensors:KEY (tokens [iterations, global batch, length + 1])\n"
      "ranks: --ranks N, threads of this process, or of each that mpirun, torchrun or srun started;\n"
      "       --tensor-model-parallel-size and the like divide them\n"
      "files: --save DIR --save-interval N, --load DIR (a run goes on where its newest checkpoint is),\n"
      "       --metrics FILE.jsonl (one JSON object per iteration)\n"
      "GPUs:  the first step measures kernels for matrix products and keeps the choice in $MEGATRON_CACHE\n"
      "       (~/.cache/megatron); MEGATRON_CACHE= or --deterministic-mode: the library's first proposals\n"
      "\n{}",
      command, what, settings_help());
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
  const Resolved resolved = resolve(sources);
  if (place.process == 0)
    for (const std::string& note : resolved.notes) invocation.log.info("{}", note);
  const CheckpointConfig& checkpoint = resolved.config.checkpoint;
  if (needs_weights && line.hf_dir.empty() && checkpoint.load.empty())
    throw ConfigError("finetune: there is nothing to begin from; give --hf DIR or --load DIR");

  const ProfilingConfig& profiling = resolved.config.profiling;
  if ((profiling.profile || profiling.nvtx_ranges) && !has_profiler() && place.process == 0)
    invocation.log.warning("--profile and --nvtx-ranges tell nobody: this is a build without CUDA");

  TrainingRun run = training_run(resolved.config);
  run.hf = hf;
  run.cache = cache_folder();
  const DeviceType device = device_type(run.config);
  const auto choice = settle_recompute(
      run.config, parallel_sizes(run.config, run.config.run.ranks * place.processes), model_dtype(run.config),
      device, ranks_on_a_device(device, run.config.run.ranks, place.processes_here));
  if (choice && place.process == 0) invocation.log.info("{}", choice->table());
  const LoggerConfig& logger = run.config.logger;
  std::unique_ptr<MetricsFile> metrics;
  std::unique_ptr<Progress> progress;
  run.on_event = [&](const std::string& what) { invocation.log.info("{}", what); };
  run.on_iteration = [&](const IterationReport& report) {
    if (!logger.metrics.empty()) {
      if (!metrics) metrics = std::make_unique<MetricsFile>(logger.metrics, report.iteration - 1);
      metrics->write(report);
    }
    if (report.iteration % logger.log_interval == 0 || report.iteration == 1) {
      fmt::print(invocation.out, "{}\n", iteration_line(report, time_stamp(), logger.log_throughput));
      std::fflush(invocation.out);
    }
    if (!progress) progress = std::make_unique<Progress>(invocation.log, "training", run.iterations);
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
