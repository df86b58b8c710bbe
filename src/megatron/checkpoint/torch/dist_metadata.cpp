#include "megatron/checkpoint/torch/dist_metadata.h"

#include <algorithm>
#include <map>

#include "megatron/base/mapped_file.h"
#include "megatron/checkpoint/index.h"
#include "megatron/checkpoint/torch/torch_archive.h"

namespace megatron {
namespace {

const std::string kMetadata = "torch.distributed.checkpoint.metadata.";

const PickleValue& attribute(const PickleValue& object, std::string_view name, const std::string& origin) {
  const PickleValue* found = object.find(name);
  if (!found) throw ConfigError(fmt::format("{}: {} has no attribute {}", origin, object.text, name));
  return *found;
}

int64_t size_attribute(const PickleValue& object, std::string_view name, const std::string& origin) {
  const PickleValue& value = attribute(object, name, origin);
  if (!value.is(PickleKind::integer) || value.integer < 0)
    throw ConfigError(
        fmt::format("{}: {}.{} is {}, not a size", origin, object.text, name, name_of(value.kind)));
  return value.integer;
}

// A key of storage_data: a name and, of a tensor, the chunk's place.
using StorageKey = std::pair<std::string_view, std::vector<int64_t>>;
using StorageMap = std::map<StorageKey, DistPlace>;

std::vector<int64_t> list_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

DistPlace read_place(const PickleValue& info, const std::string& origin) {
  const PickleValue& file = attribute(info, "relative_path", origin);
  const bool plain = file.is(PickleKind::text) && !file.text.empty() && file.text != "." &&
                     file.text != ".." && file.text.find('/') == std::string_view::npos &&
                     file.text.find('\0') == std::string_view::npos;
  if (!plain)
    throw ConfigError(fmt::format("{}: a file outside of the checkpoint's folder is named", origin));
  if (const PickleValue* steps = info.find("transform_descriptors");
      steps && !steps->is(PickleKind::none) && !steps->items.empty())
    throw ConfigError(
        fmt::format("{}: {} is compressed; save the checkpoint without transforms", origin, file.text));
  return {std::string(file.text), static_cast<size_t>(size_attribute(info, "offset", origin)),
          static_cast<size_t>(size_attribute(info, "length", origin))};
}

StorageMap read_storage(const PickleValue& data, const std::string& origin) {
  StorageMap places;
  const auto entries = data.entries();
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    const PickleValue& index = *entries[i];
    if (!index.is_object(kMetadata + "MetadataIndex"))
      throw ConfigError(fmt::format("{}: {} in place of a MetadataIndex", origin, name_of(index.kind)));
    StorageKey key{attribute(index, "fqn", origin).text, {}};
    if (const PickleValue* offset = index.find("offset"); offset && !offset->is(PickleKind::none))
      key.second = list_of(torch_shape(*offset, origin));
    places[std::move(key)] = read_place(*entries[i + 1], origin);
  }
  return places;
}

DistTensor read_tensor(std::string_view key, const PickleValue& value, const StorageMap& places,
                       const std::string& origin) {
  const std::string where = fmt::format("{}: {}", origin, key);
  const PickleValue& properties = attribute(value, "properties", where);
  // As pickled by dataclass state, a tuple that begins with the dtype.
  const PickleValue* dtype = properties.find("dtype");
  if (!dtype && properties.items.size() > 1 && properties.items[1]->is(PickleKind::tuple) &&
      !properties.items[1]->items.empty())
    dtype = properties.items[1]->items[0];
  if (!dtype || !dtype->is(PickleKind::global)) throw ConfigError(fmt::format("{}: it has no dtype", where));
  DistTensor tensor{std::string(key),
                    torch_dtype(dtype->text, where),
                    torch_shape(attribute(value, "size", where), where),
                    {}};
  StoredTensor stored{tensor.key, tensor.dtype, tensor.shape, {}};
  for (const PickleValue* chunk : attribute(value, "chunks", where).items) {
    const Box box{torch_shape(attribute(*chunk, "offsets", where), where),
                  torch_shape(attribute(*chunk, "sizes", where), where)};
    if (box.offset.rank() != tensor.shape.rank() || box.extent.rank() != tensor.shape.rank())
      throw ConfigError(fmt::format("{}: a chunk of {} dimensions, the tensor has {}", where,
                                    box.offset.rank(), tensor.shape.rank()));
    const auto place = places.find({key, list_of(box.offset)});
    if (place == places.end())
      throw ConfigError(fmt::format("{}: no file holds its chunk at {}", where, box.offset));
    if (box.volume() > static_cast<int64_t>(place->second.size / size_of(tensor.dtype)))
      throw ConfigError(
          fmt::format("{}: its chunk {} is more than {} bytes hold", where, box, place->second.size));
    tensor.chunks.push_back({box, place->second});
  }
  std::ranges::sort(tensor.chunks, {}, [](const DistChunk& chunk) { return list_of(chunk.box.offset); });
  for (const DistChunk& chunk : tensor.chunks) stored.pieces.push_back({0, chunk.box});
  Problems problems;
  check_pieces(stored, problems);
  problems.raise(fmt::format("{}: chunks that do not fit together", origin));
  return tensor;
}

}  // namespace

DistMetadata parse_dist_metadata(std::span<const std::byte> data, const std::string& origin) {
  const PickleDocument document(data, origin);
  const PickleValue& root = document.root();
  if (!root.is_object(kMetadata + "Metadata"))
    throw ConfigError(fmt::format("{}: {} in place of the Metadata of torch.distributed.checkpoint", origin,
                                  root.text.empty() ? name_of(root.kind) : root.text));
  const StorageMap places = read_storage(attribute(root, "storage_data", origin), origin);
  DistMetadata metadata;
  const auto entries = attribute(root, "state_dict_metadata", origin).entries();
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    const std::string_view key = entries[i]->text;
    const PickleValue& value = *entries[i + 1];
    if (value.is_object(kMetadata + "TensorStorageMetadata")) {
      metadata.tensors.push_back(read_tensor(key, value, places, origin));
    } else {
      const auto place = places.find({key, {}});
      if (place == places.end()) throw ConfigError(fmt::format("{}: no file holds {}", origin, key));
      metadata.objects.push_back({std::string(key), place->second});
    }
  }
  std::ranges::sort(metadata.tensors, {}, &DistTensor::key);
  std::ranges::sort(metadata.objects, {}, &DistObject::key);
  return metadata;
}

DistMetadata read_dist_metadata(const std::string& directory) {
  const MappedFile file(directory + "/.metadata");
  return parse_dist_metadata(file.bytes(), file.path());
}

}  // namespace megatron
