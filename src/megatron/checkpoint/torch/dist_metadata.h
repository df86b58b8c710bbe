#pragma once

#include <string>
#include <vector>

#include "megatron/nn/shard_plan.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Where one item of a torch.distributed.checkpoint directory is.
struct DistPlace {
  std::string file;  // relative to the directory
  size_t offset = 0, size = 0;
};

struct DistChunk {
  Box box;
  DistPlace place;  // of a torch.save archive that holds the box
};

struct DistTensor {
  std::string key;
  DType dtype;
  Shape shape;
  std::vector<DistChunk> chunks;  // every element exactly once
};

struct DistObject {
  std::string key;
  DistPlace place;
};

// The file .metadata of a torch.distributed.checkpoint directory.
struct DistMetadata {
  std::vector<DistTensor> tensors;  // sorted by key
  std::vector<DistObject> objects;  // sorted by key
};

// A ConfigError where it is malformed, chunks overlap or leave elements out, or a file's name leads out of
// the directory.
DistMetadata read_dist_metadata(const std::string& directory);
// The same from the file's contents; `origin` begins the messages.
DistMetadata parse_dist_metadata(std::span<const std::byte> data, const std::string& origin);

}  // namespace megatron
