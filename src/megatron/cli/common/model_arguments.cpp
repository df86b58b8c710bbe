#include "megatron/cli/common/model_arguments.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/device/gpu_facts.h"
#include "megatron/kernels/narrow_weight.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/models/whole_model.h"
#include "megatron/nn/quantize_parameter.h"
#include "megatron/training/plan/launch_problems.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {

DType ModelArguments::dtype() const { return model_dtype(config); }

namespace {

// Megatron-LM's scripts name a checkpoint by --load.
std::string checkpoint_of(const CommandLine& line) {
  if (line.has("--ckpt") || !line.hf_dir.empty()) return line.get("--ckpt");
  for (const FlagUse& use : line.sources.flags)
    if (use.name == "--load" && !use.values.empty()) return use.values.front();
  return "";
}

}  // namespace

std::optional<DType> quantized_dtype(const std::string& quantization, const Config& config) {
  if (quantization.empty() || quantization == "none") return std::nullopt;
  const bool gpu = device_type(config) == DeviceType::Cuda;
  return quantized_dtype(quantization, config, gpu ? gpu_facts() : std::vector<GpuFacts>{});
}

std::optional<DType> quantized_dtype(const std::string& quantization, const Config& config,
                                     const std::vector<GpuFacts>& gpus) {
  const bool gpu = !gpus.empty();
  if (quantization != "int8" && quantization != "int4" && quantization != "fp8")
    throw ConfigError(fmt::format(
        "--quantization {}: weights of int8, on the CPU of int4 and on a GPU of fp8 are built; use "
        "--quantization int8, or leave it out",
        quantization));
  if (quantization == "fp8" && !gpu)
    throw ConfigError(
        "--quantization fp8: fp8 weights are for GPUs; on the CPU use --quantization int8 or int4, or none");
  const auto too_old =
      std::ranges::find_if(gpus, [](const GpuFacts& facts) { return facts.compute_capability != 90; });
  if (quantization == "fp8" && too_old != gpus.end())
    throw ConfigError(
        fmt::format("--quantization fp8: its GEMMs need GPUs of compute capability 9.0, not {}.{}; "
                    "use --quantization int8, or leave it out",
                    too_old->compute_capability / 10, too_old->compute_capability % 10));
  if (quantization == "int4" && gpu)
    throw ConfigError(fmt::format(
        "--quantization int4: int4 weights are for the CPU; use --quantization {} on a GPU, or leave it out",
        too_old == gpus.end() ? "int8 or fp8" : "int8"));
  if (const DType dtype = model_dtype(config); dtype != DType::BF16 && (gpu || dtype != DType::F32))
    throw ConfigError(
        fmt::format("--quantization {}: activations are {}, but they must be {}; use --precision bf16",
                    quantization, dtype, gpu ? "bf16" : "fp32 or bf16"));
  if (gpu && config.precision.batch_invariant_mode)
    throw ConfigError(
        fmt::format("--quantization {}: with many rows other kernels run than with few, which "
                    "--batch-invariant-mode rules out; leave one of them out",
                    quantization));
  return quantization == "int8" ? DType::I8 : quantization == "int4" ? kInt4 : DType::F8E4M3;
}

bool fp8_cache(const std::string& kv_cache_dtype) {
  if (kv_cache_dtype.empty() || kv_cache_dtype == "auto") return false;
  if (kv_cache_dtype == "fp8" || kv_cache_dtype == "fp8_e4m3") return true;
  throw ConfigError(
      fmt::format("--kv-cache-dtype {}: keys and values are kept in the model's dtype (auto) or in e4m3 with "
                  "scales (fp8); use one of these",
                  kv_cache_dtype));
}

ModelArguments model_arguments(Invocation& invocation, const CommandLine& line, std::string_view command) {
  const std::string checkpoint = checkpoint_of(line);
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
  if (place.process == 0) {
    for (const std::string& note : source.notes()) invocation.log.info("{}", note);
    for (const std::string& note : resolved.notes) invocation.log.info("{}", note);
  }
  const ParallelConfig& parallel = resolved.config.parallel;
  if (!is_decoder(resolved.config.model) && parallel.context_parallel_size > 1)
    throw ConfigError(
        fmt::format("{}: sequences whose tokens see those after them are not split over ranks; use "
                    "--context-parallel-size 1",
                    source.path()));
  // A token that is decoded cannot be shared out among ranks.
  resolved.config.parallel.sequence_parallel = false;
  resolved.config.parallel.tp_comm_overlap = false;
  if (const VisionConfig* vision = source.vision(); vision && !resolved.config.model.has_tower())
    resolved.config.model = with_tower(resolved.config.model, *vision);
  const std::optional<DType> quantized = quantized_dtype(line.get("--quantization"), resolved.config);
  check_forward_launches(resolved, place.processes * resolved.config.run.ranks);
  return {source, std::move(resolved.config), place, quantized};
}

LoadedModel::LoadedModel(RankContext& ctx, const ProcessGroup& world, const ModelArguments& arguments)
    : parallel_(ParallelContext::from_sizes(world, parallel_sizes(arguments.config, world.size()))),
      model_(arguments.config, parallel_, arguments.dtype()) {
  const std::vector<Parameter*> parameters = model_.parameters();
  arguments.source.load(ctx, parameters, arguments.dtype());
  if (!arguments.quantized) return;
  for (Parameter* parameter : parameters) quantize_parameter(ctx, *parameter, *arguments.quantized);
}

std::vector<Image> picture_files(const CommandLine& line, const ModelArguments& arguments) {
  std::vector<Image> images;
  if (!line.has("--images")) return images;
  for (const std::string& path : line.own.at("--images")) {
    if (path.find(".safetensors") != std::string::npos) continue;
    if (!arguments.config.model.has_tower())
      throw ConfigError(
          fmt::format("{}: the model has no vision tower for --images", arguments.source.path()));
    images.push_back(read_image(path));
  }
  if (!images.empty() && images.size() != line.own.at("--images").size())
    throw UsageError("--images: name picture files, or one FILE.safetensors of prepared pixels");
  return images;
}

std::unique_ptr<ImageFile> image_file(const CommandLine& line, const ModelArguments& arguments) {
  if (!line.has("--images")) return nullptr;
  const VisionConfig& vision = arguments.config.model;
  if (!vision.has_tower())
    throw ConfigError(fmt::format("{}: the model has no vision tower for --images", arguments.source.path()));
  return std::make_unique<ImageFile>(line.get("--images"), vision);
}

std::string model_command_help(std::string_view usage, std::span<const CommandFlag> flags) {
  std::string text(usage);
  text += "\noptions:\n";
  std::string ignored;
  for (const CommandFlag& flag : flags)
    if (flag.no_effect)
      ignored += fmt::format(" {}", flag.name);
    else
      text += fmt::format("  {:<18}  {}\n", flag.name, flag.help);
  if (!ignored.empty()) text += fmt::format("\naccepted, no effect here:{}\n", ignored);
  return text + "\n" + settings_overview();
}

}  // namespace megatron
