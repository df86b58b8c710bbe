#include "megatron/checkpoint/torch/dist_checkpoint.h"

#include <algorithm>

#include "megatron/base/problems.h"

namespace megatron {

DistCheckpoint::DistCheckpoint(const std::string& directory)
    : directory_(directory), metadata_(read_dist_metadata(directory)) {
  Problems problems;
  const auto check = [&](const std::string& key, const DistPlace& place) {
    auto found = files_.find(place.file);
    if (found == files_.end()) {
      std::shared_ptr<const MappedFile> file;
      try {
        file = std::make_shared<const MappedFile>(directory_ + "/" + place.file);
      } catch (const Error& error) {
        problems.add("{}", error.what());
      }
      found = files_.emplace(place.file, std::move(file)).first;
    }
    if (!found->second) return;
    const size_t size = found->second->bytes().size();
    if (place.offset > size || place.size > size - place.offset)
      problems.add("{}: {} is cut short ({} bytes, expected {} at {})", place.file, key, size, place.size,
                   place.offset);
  };
  for (const DistTensor& tensor : metadata_.tensors)
    for (const DistChunk& chunk : tensor.chunks) check(tensor.key, chunk.place);
  for (const DistObject& object : metadata_.objects) check(object.key, object.place);
  problems.raise(fmt::format("the checkpoint {} is damaged", directory_));
}

const DistTensor* DistCheckpoint::find_tensor(std::string_view key) const {
  const auto found = std::ranges::lower_bound(metadata_.tensors, key, {}, &DistTensor::key);
  return found != metadata_.tensors.end() && found->key == key ? &*found : nullptr;
}

const DistObject* DistCheckpoint::find_object(std::string_view key) const {
  const auto found = std::ranges::lower_bound(metadata_.objects, key, {}, &DistObject::key);
  return found != metadata_.objects.end() && found->key == key ? &*found : nullptr;
}

FileSlice DistCheckpoint::slice(const DistPlace& place) const {
  return {files_.find(place.file)->second, place.offset, place.size};
}

Tensor DistCheckpoint::chunk(const DistTensor& tensor, const DistChunk& chunk) const {
  const std::string origin = fmt::format("{}/{}: {}", directory_, chunk.place.file, tensor.key);
  const TorchArchive archive(slice(chunk.place), origin);
  Tensor value = archive.tensor(archive.root(), chunk.box.str());
  if (value.dtype() != tensor.dtype || !(value.shape() == chunk.box.extent))
    throw ConfigError(fmt::format("{}: the file has {}{}, .metadata says {}{}", origin, value.dtype(),
                                  value.shape(), tensor.dtype, chunk.box.extent));
  return value;
}

std::unique_ptr<TorchArchive> DistCheckpoint::object(const DistObject& object) const {
  return std::make_unique<TorchArchive>(slice(object.place),
                                        fmt::format("{}/{}: {}", directory_, object.place.file, object.key));
}

}  // namespace megatron
