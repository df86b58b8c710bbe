#pragma once

#include <memory>

#include "megatron/base/mapped_file.h"
#include "megatron/checkpoint/torch/pickle.h"
#include "megatron/checkpoint/torch/zip_archive.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// A part of a mapped file.
struct FileSlice {
  std::shared_ptr<const MappedFile> file;
  size_t begin = 0, size = 0;

  static FileSlice whole(const std::string& path);
  std::span<const std::byte> bytes() const { return file->bytes().subspan(begin, size); }
};

// What torch.save wrote: a file, or a part of one. Its values are plain, its tensors views of the mapping.
class TorchArchive {
 public:
  // A ConfigError where it is malformed or of the form that PyTorch wrote before version 1.6.
  TorchArchive(FileSlice slice, const std::string& origin);
  TorchArchive(const TorchArchive&) = delete;

  const PickleValue& root() const { return document_.root(); }
  const std::string& origin() const { return origin_; }
  // On the CPU and read-only; copied only where its data is not aligned. `name` is for messages.
  Tensor tensor(const PickleValue& value, std::string_view name) const;

 private:
  FileSlice slice_;
  std::string origin_;
  ZipArchive zip_;
  PickleDocument document_;
};

// The dtype that torch.float32, torch.FloatStorage and the like name. A ConfigError where we have none such.
DType torch_dtype(std::string_view name, const std::string& origin);
std::string_view torch_name(DType dtype);  // "float32"

// A torch.Size, a tuple or list of sizes, as a shape. A ConfigError where it is none.
Shape torch_shape(const PickleValue& value, const std::string& origin);

}  // namespace megatron
