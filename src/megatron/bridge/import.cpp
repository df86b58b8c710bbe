#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/convert.h"
#include "megatron/bridge/source_files.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/config/config.h"
#include "megatron/models/whole_model.h"

namespace megatron {
namespace {

// The widest of the dtypes that the tensor's parts have; fp16 and bf16 meet in fp32, since neither holds the
// other.
DType stored_dtype(const AutoBridge& bridge, const Parameter& parameter) {
  DType widest = DType::BF16;
  bool first = true;
  for (const HfPart& part : bridge.parts(parameter.name, parameter.shard.global_shape)) {
    DType dtype = bridge.weights().dtype(part.name);
    if (first || size_of(dtype) > size_of(widest))
      widest = dtype;
    else if (dtype != widest && size_of(dtype) == size_of(widest))
      widest = DType::F32;
    first = false;
  }
  return widest;
}

}  // namespace

std::string import_model(const std::string& hf_directory, const std::string& root,
                         const ImportOptions& options) {
  // A save may replace a checkpoint of its own iteration; what comes from elsewhere replaces nothing.
  if (std::filesystem::exists(root) && !std::filesystem::is_directory(root))
    throw ConfigError(fmt::format("{} is a file; name a new directory", root));
  if (latest_checkpoint(root))
    throw ConfigError(fmt::format("{} holds checkpoints already; name a new directory", root));
  const AutoBridge bridge(hf_directory);
  const ModelConfig& config = bridge.model_config();
  if (options.note)
    for (const std::string& note : bridge.notes()) options.note(note);
  TensorSource source;
  Config resolved;
  resolved.model = config;
  source.state.config = resolved.to_json();
  int64_t total = 0, done = 0;
  whole_model(config, bridge.vision_config())->visit([&](Parameter& parameter) {
    const DType stored = stored_dtype(bridge, parameter);
    const DType dtype = parameter.keep_fp32 ? stored : options.dtype.value_or(stored);
    source.tensors.push_back({parameter.name, dtype, parameter.shard.global_shape, {}});
    total += parameter.shard.global_shape.numel() * static_cast<int64_t>(size_of(dtype));
  });
  source.read = [&](RankContext& ctx, const ShardedTensor& part) {
    bridge.read(ctx, part.name, part.shard, part.tensor);
  };
  source.on_tensor = [&](const StoredTensor& tensor) {
    if (options.progress) options.progress(tensor.name, done, total);
    done += tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype));
  };
  source.assets = source_files(hf_directory, bridge.weights().files());
  return write_whole_tensors(root, source, options.files);
}

}  // namespace megatron
