#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/checkpoint/checkpoint.h"

namespace megatron {

// Tensors that can be read box by box: a checkpoint of ours, or files of another format.
struct TensorSource {
  std::string path;  // of the checkpoint, for messages
  TrainingState state;
  std::vector<StoredTensor> tensors;  // name, dtype and shape of each, sorted by name
  // Fills a part that lies within the tensor's shape.
  std::function<void(RankContext& ctx, const ShardedTensor& part)> read;
  // Fills many, one after the other, faster than single ones can be; empty: it does not know how.
  std::function<void(RankContext& ctx, std::span<const LoadPart> parts)> read_many = {};
  // Fills what is packed as it was kept; false where it is not held in that form. Empty: nothing is.
  std::function<bool(RankContext& ctx, const ShardedTensor& part)> read_packed = {};
  std::vector<CheckpointAsset> assets;
  std::function<void(const StoredTensor& tensor)> on_tensor = {};  // told what is about to be copied
  bool padded_vocabulary = false;  // embeddings and output layers may have more rows than there are tokens

  const StoredTensor* find(std::string_view name) const;
  void load(RankContext& ctx, std::span<const LoadPart> parts) const;  // by whichever of the two
};

// A checkpoint of ours, or the latest of a root. `verify`: whether checksums are compared; `only_reader`: no
// other rank reads it meanwhile.
TensorSource checkpoint_source(const std::string& path, bool verify = true, bool only_reader = false);

}  // namespace megatron
