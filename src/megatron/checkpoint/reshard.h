#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/checkpoint/checkpoint.h"

namespace megatron {

// Tensors that can be read box by box: another checkpoint, or files of another format.
struct TensorSource {
  TrainingState state;
  std::vector<StoredTensor> tensors;                                      // name, dtype and shape of each
  std::function<void(RankContext& ctx, const ShardedTensor& part)> read;  // fills a part, in host memory
  std::vector<CheckpointAsset> assets;
  std::function<void(const StoredTensor& tensor)> on_tensor = {};  // told what is about to be copied
};

// Writes a checkpoint under `root` with whole tensors spread evenly over `files` files. Uses little memory,
// whatever the size. Returns its path.
std::string write_whole_tensors(const std::string& root, const TensorSource& source, int files);

// Writes a checkpoint again in that form; what it keeps beside its tensors comes along.
std::string reshard_checkpoint(const std::string& path, const std::string& root, int files);

std::vector<std::string> assets_of(const CheckpointIndex& index);  // its files that hold no tensors
std::string read_asset(const std::string& directory, const std::string& name);

}  // namespace megatron
