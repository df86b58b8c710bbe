#pragma once

#include <optional>

#include "megatron/base/gpu_facts.h"
#include "megatron/cli/command.h"
#include "megatron/config/sources/command_line.h"
#include "megatron/datasets/images/image.h"
#include "megatron/inference/image_file.h"
#include "megatron/inference/model_source.h"
#include "megatron/models/model.h"
#include "megatron/training/run/rank_launch.h"

namespace megatron {

// A model that a command runs forward: where it lies, and under which layout and precision.
struct ModelArguments {
  ModelSource source;
  Config config;
  LaunchPlace place;
  std::optional<DType> quantized;  // of weights, which are rounded when they are loaded

  DType dtype() const;
};

// What --hf DIR or --ckpt DIR names, with the settings of the command line.
ModelArguments model_arguments(Invocation& invocation, const CommandLine& line, std::string_view command);
ModelArguments model_arguments(Invocation& invocation, const CommandLine& line, const ModelSource& source);

// One rank's part of it, with its weights.
class LoadedModel {
 public:
  LoadedModel(RankContext& ctx, const ProcessGroup& world, const ModelArguments& arguments);
  Model& model() { return model_; }

 private:
  ParallelContext parallel_;
  Model model_;
};

// What --quantization says; a ConfigError where it is not built for these settings.
std::optional<DType> quantized_dtype(const std::string& quantization, const Config& config);
// The same of a format that is asked for, where these GPUs compute, or none.
std::optional<DType> quantized_dtype(const std::string& quantization, const Config& config,
                                     const std::vector<GpuFacts>& gpus);

// Whether --kv-cache-dtype asks for keys and values in e4m3; a ConfigError where it is no dtype of a cache.
bool fp8_cache(const std::string& kv_cache_dtype);

// The picture files that --images names; none where it names prepared pixels.
std::vector<Image> picture_files(const CommandLine& line, const ModelArguments& arguments);
// The prepared pixels that --images names; null where it was not given.
std::unique_ptr<ImageFile> image_file(const CommandLine& line, const ModelArguments& arguments);

// "usage" and the command's own flags, then the settings that all of them take.
std::string model_command_help(std::string_view usage, std::span<const CommandFlag> flags);

}  // namespace megatron
