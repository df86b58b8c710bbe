#pragma once

#include <functional>
#include <memory>

#include "megatron/base/atomic_file.h"
#include "megatron/checkpoint/torch/dist_metadata.h"
#include "megatron/checkpoint/torch/zip_writer.h"

namespace megatron {

// Writes a torch.distributed.checkpoint directory: *.distcp, then .metadata. One item at a time is in memory,
// of a tensor a piece.
class DistWriter {
 public:
  // `file_bytes`: after how many a new file is begun.
  DistWriter(std::string directory, int64_t file_bytes);

  // A pickle under a key of its own; DCP has it as one torch.save archive.
  void add_object(const std::string& key, const std::string& pickle);
  // A tensor whose chunks follow by add_chunk().
  void add_tensor(const std::string& key, DType dtype, const Shape& shape);
  // A box of the last tensor. `fill` is given one after the other the boxes of the chunk, counted within it,
  // and the contiguous tensors to fill.
  void add_chunk(const Box& box, const std::function<void(const Box& within, const Tensor& target)>& fill);
  void finish();  // writes what is still open, and .metadata

 private:
  DistPlace place_of_next();
  ZipWriter::Sink sink(const DistPlace& place);

  std::string directory_;
  size_t file_bytes_, at_ = 0;
  int files_ = 0;
  std::unique_ptr<AtomicFile> file_;
  DistMetadata metadata_;
};

// A pickle as torch.save stores it: an archive in memory.
std::string torch_archive(const std::string& pickle);

// The pickle of .metadata.
std::string dist_metadata_pickle(const DistMetadata& metadata);

}  // namespace megatron
