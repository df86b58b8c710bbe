#include <filesystem>
#include <set>

#include "megatron/base/problems.h"
#include "megatron/bridge/megatron/checkpoint.h"
#include "megatron/bridge/megatron/convert.h"
#include "megatron/bridge/megatron/parts.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/models/whole_model.h"

namespace megatron {
namespace {

// The checkpoint must hold the model that its arguments describe, no less and no more.
void check_model(const MegatronCheckpoint& checkpoint) {
  refuse_unlike_layouts(*checkpoint.model, checkpoint.path);
  Problems problems;
  std::set<std::string> wanted;
  whole_model(*checkpoint.model)->visit([&](Parameter& parameter) {
    wanted.insert(parameter.name);
    const MegatronTensor* found = checkpoint.find(parameter.name);
    if (!found)
      problems.add("{}: the checkpoint does not have it", parameter.name);
    else if (!(found->shape == parameter.shard.global_shape))
      problems.add("{}: the checkpoint has {}, its arguments say {}", parameter.name, found->shape,
                   parameter.shard.global_shape);
  });
  for (const MegatronTensor& tensor : checkpoint.tensors)
    if (!tensor.name.starts_with("optimizer.") && !wanted.contains(tensor.name))
      problems.add("{}: the model that its arguments describe has no such tensor", tensor.name);
  problems.raise(fmt::format("{}: its tensors do not fit its arguments", checkpoint.path));
}

}  // namespace

TensorSource megatron_source(std::shared_ptr<const MegatronCheckpoint> checkpoint) {
  TensorSource source;
  source.path = checkpoint->path;
  source.state = checkpoint->state;
  source.padded_vocabulary = true;
  for (const MegatronTensor& tensor : checkpoint->tensors)
    source.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
  source.read = [checkpoint](RankContext& ctx, const ShardedTensor& part) {
    checkpoint->find(part.name)->read(ctx, part.shard, part.tensor);
  };
  return source;
}

std::string import_megatron(const std::string& directory, const std::string& root,
                            const ImportOptions& options) {
  if (std::filesystem::exists(root) && !std::filesystem::is_directory(root))
    throw ConfigError(fmt::format("{} is a file; name a new directory", root));
  if (latest_checkpoint(root))
    throw ConfigError(fmt::format("{} holds checkpoints already; name a new directory", root));
  const auto checkpoint = std::make_shared<const MegatronCheckpoint>(open_megatron(directory));
  if (checkpoint->model) check_model(*checkpoint);
  if (options.note)
    for (const std::string& note : checkpoint->notes) options.note(note);
  TensorSource source = megatron_source(checkpoint);
  int64_t total = 0, done = 0;
  for (StoredTensor& tensor : source.tensors) {
    const bool weight = !tensor.name.starts_with("optimizer.") && !tensor.name.ends_with(".expert_bias");
    if (weight && is_floating(tensor.dtype)) tensor.dtype = options.dtype.value_or(tensor.dtype);
    total += tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype));
  }
  source.on_tensor = [&](const StoredTensor& tensor) {
    if (options.progress) options.progress(tensor.name, done, total);
    done += tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype));
  };
  return write_whole_tensors(root, source, options.files);
}

}  // namespace megatron
