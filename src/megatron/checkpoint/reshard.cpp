#include "megatron/checkpoint/reshard.h"

#include <algorithm>
#include <set>

#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/save.h"

namespace megatron {

namespace {

int64_t bytes_of(const StoredTensor& tensor) {
  return tensor.shape.numel() * static_cast<int64_t>(size_of(tensor.dtype));
}

// Each tensor whole, the largest first, into the file that has least.
std::vector<StoredTensor> spread(std::vector<StoredTensor> tensors, int files) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return bytes_of(tensors[a]) > bytes_of(tensors[b]); });
  std::vector<int64_t> load(static_cast<size_t>(files), 0);
  for (size_t i : order) {
    StoredTensor& tensor = tensors[i];
    tensor.pieces.clear();
    if (bytes_of(tensor) == 0) continue;
    const auto file = std::min_element(load.begin(), load.end());
    tensor.pieces.push_back({static_cast<int>(file - load.begin()), whole_box(tensor.shape)});
    *file += bytes_of(tensor);
  }
  return tensors;
}

void copy_tensor(RankContext& ctx, const TensorSource& source, const StoredTensor& tensor,
                 SafetensorsWriter& writer, StagingBuffer& staging) {
  size_t begin = 0;
  for (const Box& box :
       cut(tensor.shape, StagingBuffer::kPieceBytes / static_cast<int64_t>(size_of(tensor.dtype)))) {
    const ShardedTensor part{tensor.name, box_shard(tensor.shape, box),
                             staging.tensor(box.extent, tensor.dtype)};
    source.read(ctx, part);
    writer.write(tensor.name, begin, {static_cast<const std::byte*>(part.tensor.raw()), part.tensor.bytes()});
    begin += part.tensor.bytes();
  }
}

std::optional<WrittenFile> write_file(RankContext& ctx, const TensorSource& source,
                                      const std::string& directory, int file,
                                      std::span<const StoredTensor> plan) {
  std::vector<const StoredTensor*> tensors;
  std::vector<SafetensorsItem> items;
  for (const StoredTensor& tensor : plan) {
    if (tensor.pieces.empty() || tensor.pieces[0].file != file) continue;
    tensors.push_back(&tensor);
    items.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  if (tensors.empty()) return {};
  const std::string path = directory + "/" + rank_file_name(file);
  SafetensorsWriter writer(path, std::move(items), {{"format", "pt"}});
  StagingBuffer staging;
  for (const StoredTensor* tensor : tensors) {
    if (source.on_tensor) source.on_tensor(*tensor);
    copy_tensor(ctx, source, *tensor, writer, staging);
  }
  WrittenFile written{
      {rank_file_name(file), static_cast<int64_t>(writer.bytes()), {}, writer.header_checksum()}, {}};
  for (const StoredTensor* tensor : tensors) written.checksums.push_back(writer.checksum(tensor->name));
  writer.commit();
  return written;
}

}  // namespace

std::string write_whole_tensors(const std::string& root, const TensorSource& source, int files) {
  require(files >= 1, "checkpoint: cannot write {} files", files);
  RankContext ctx;
  const int64_t iteration = source.state.iteration;
  std::vector<StoredTensor> plan = spread(source.tensors, files);
  const std::string directory = begin_save(root, iteration);
  try {
    std::vector<std::optional<WrittenFile>> written;
    for (int file = 0; file < files; ++file)
      written.push_back(write_file(ctx, source, directory, file, plan));
    CheckpointIndex index = make_index(source.state, std::move(plan), written);
    for (const CheckpointAsset& asset : source.assets)
      index.files.push_back(
          write_asset(directory, asset.name, std::as_bytes(std::span<const char>(asset.contents))));
    write_index(directory, index);
    return publish_save(root, iteration);
  } catch (...) {
    discard_save(root, iteration);
    throw;
  }
}

std::string reshard_checkpoint(const std::string& path, const std::string& root, int files) {
  TensorSource source = checkpoint_source(path);
  for (const std::string& name : assets_of(read_index(source.path)))
    source.assets.push_back({name, read_asset(source.path, name)});
  return write_whole_tensors(root, source, files);
}

std::vector<std::string> assets_of(const CheckpointIndex& index) {
  std::set<int> used;
  for (const StoredTensor& tensor : index.tensors)
    for (const StoredChunk& piece : tensor.pieces) used.insert(piece.file);
  std::vector<std::string> names;
  for (size_t i = 0; i < index.files.size(); ++i)
    if (!used.contains(static_cast<int>(i))) names.push_back(index.files[i].name);
  return names;
}

std::string read_asset(const std::string& directory, const std::string& name) {
  const MappedFile file(directory + "/" + name);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace megatron
