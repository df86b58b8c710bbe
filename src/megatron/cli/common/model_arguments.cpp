#include "megatron/cli/common/model_arguments.h"

#include "megatron/base/error.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/device/gpu_facts.h"
#include "megatron/models/whole_model.h"
#include "megatron/training/setup/parallel_setup.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {

DType ModelArguments::dtype() const { return model_dtype(config); }

ModelArguments model_arguments(Invocation& invocation, const CommandLine& line, std::string_view command) {
  const std::string checkpoint = line.get("--ckpt");
  if (line.hf_dir.empty() == checkpoint.empty())
    throw UsageError(fmt::format("{}: say which model, by --hf DIR or --ckpt DIR", command));
  return model_arguments(
      invocation, line,
      checkpoint.empty() ? ModelSource::hugging_face(line.hf_dir) : ModelSource::checkpoint(checkpoint));
}

ModelArguments model_arguments(Invocation& invocation, const CommandLine& line, const ModelSource& source) {
  const LaunchPlace place = launch_place();
  CommandLine settings = line;
  settings.hf_dir.clear();
  Sources sources = read_sources(settings);
  sources.hf = source.model_settings();
  sources.hf_origin = source.path();
  sources.processes = place.processes;
  Resolved resolved = resolve(sources, {.purpose = Purpose::forward, .gpus = gpu_facts});
  if (place.process == 0)
    for (const std::string& note : resolved.notes) invocation.log.info("{}", note);
  const ParallelConfig& parallel = resolved.config.parallel;
  if (is_encoder_decoder(resolved.config.model) && parallel.pipeline_model_parallel_size > 1)
    throw ConfigError(
        fmt::format("{}: an encoder and its decoder are not split into stages; use "
                    "--pipeline-model-parallel-size 1",
                    source.path()));
  if (!is_decoder(resolved.config.model) && parallel.context_parallel_size > 1)
    throw ConfigError(
        fmt::format("{}: sequences whose tokens see those after them are not split over ranks; use "
                    "--context-parallel-size 1",
                    source.path()));
  // A token that is decoded cannot be shared out among ranks.
  resolved.config.parallel.sequence_parallel = false;
  resolved.config.parallel.tp_comm_overlap = false;
  return {source, std::move(resolved.config), place};
}

LoadedModel::LoadedModel(RankContext& ctx, const ProcessGroup& world, const ModelArguments& arguments)
    : parallel_(ParallelContext::from_sizes(world, parallel_sizes(arguments.config, world.size()))),
      model_(arguments.config, parallel_, arguments.dtype(), arguments.source.vision()) {
  const std::vector<Parameter*> parameters = model_.parameters();
  arguments.source.load(ctx, parameters, arguments.dtype());
}

std::unique_ptr<ImageFile> image_file(const CommandLine& line, const ModelArguments& arguments) {
  if (!line.has("--images")) return nullptr;
  const VisionConfig* vision = arguments.source.vision();
  if (!vision)
    throw ConfigError(fmt::format("{}: the model has no vision tower for --images", arguments.source.path()));
  return std::make_unique<ImageFile>(line.get("--images"), *vision);
}

std::string model_command_help(std::string_view usage, std::span<const CommandFlag> flags) {
  std::string text(usage);
  text += "\noptions:\n";
  for (const CommandFlag& flag : flags) text += fmt::format("  {:<18}  {}\n", flag.name, flag.help);
  return text + "\n" + settings_overview();
}

}  // namespace megatron
