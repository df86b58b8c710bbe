#pragma once

#include <functional>
#include <map>

#include "megatron/autograd/rank_context.h"
#include "megatron/bridge/megatron/names.h"
#include "megatron/checkpoint/sharded_tensor.h"
#include "megatron/checkpoint/torch/dist_checkpoint.h"

namespace megatron {

// A part of one of our tensors in the files of a Megatron checkpoint.
struct MegatronPiece {
  ShardSpec shard;               // global: our tensor; local: what read() gives
  std::function<Tensor()> read;  // a view of the file
};

// One of our tensors, whole, as a Megatron checkpoint holds it.
struct MegatronTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<MegatronPiece> pieces;

  // Fills what a rank holds of it, under any layout; floating-point values take the target's dtype.
  void read(RankContext& ctx, const ShardSpec& shard, const Tensor& target) const;
};

// The tensors of a torch_dist checkpoint under our names, sorted; `left_out` is told each key that is none of
// the model's. `checkpoint` must outlive them. A ConfigError lists keys that do not fit together.
std::vector<MegatronTensor> dist_tensors(const DistCheckpoint& checkpoint,
                                         const std::function<void(std::string_view key)>& left_out);

}  // namespace megatron
