#pragma once

#include <map>
#include <memory>

#include "megatron/checkpoint/torch/dist_metadata.h"
#include "megatron/checkpoint/torch/torch_archive.h"

namespace megatron {

// A torch.distributed.checkpoint directory (Megatron's torch_dist), read by mapping its files. One reader per
// thread.
class DistCheckpoint {
 public:
  // Reads .metadata and checks that the files reach as far as it says.
  explicit DistCheckpoint(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const DistMetadata& metadata() const { return metadata_; }
  const DistTensor* find_tensor(std::string_view key) const;
  const DistObject* find_object(std::string_view key) const;

  // A chunk's tensor, a read-only view of its file. A ConfigError where it is not what the metadata says.
  Tensor chunk(const DistTensor& tensor, const DistChunk& chunk) const;
  // What torch.save wrote as an object.
  std::unique_ptr<TorchArchive> object(const DistObject& object) const;

 private:
  FileSlice slice(const DistPlace& place) const;

  std::string directory_;
  DistMetadata metadata_;
  std::map<std::string, std::shared_ptr<const MappedFile>, std::less<>> files_;
};

}  // namespace megatron
