#include "megatron/checkpoint/save.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "megatron/base/checksum.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/safetensors.h"

namespace megatron {

namespace {

constexpr int64_t staging_elements = int64_t{16} << 20;

using ByName = std::multimap<std::string_view, const ShardedTensor*>;

// The rank's own memory of a box that it holds.
Tensor local_view(const ByName& tensors, const std::string& name, const Box& box) {
  for (auto [found, end] = tensors.equal_range(name); found != end; ++found) {
    const ShardedTensor& tensor = *found->second;
    for (const ShardBlock& block : tensor.shard.blocks)
      if (Box{block.global_offset, block.extent}.contains(box))
        return box_of(tensor.tensor,
                      {shifted(box.offset, block.global_offset, block.local_offset), box.extent});
  }
  fail("checkpoint: this rank is to write {}{}, which it does not hold", name, box);
}

// Through host memory of bounded size where the bytes do not already lie there in one run.
void write_piece(SafetensorsWriter& writer, const OwnChunk& piece, const ToHost& to_host) {
  const bool on_cpu = piece.tensor.device().is_cpu();
  if (on_cpu && piece.tensor.is_contiguous()) return writer.write(piece.key, piece.tensor);
  std::vector<std::byte> staging;
  size_t begin = 0;
  for (const Box& box : cut(piece.tensor.shape(), staging_elements)) {
    const Tensor part = box_of(piece.tensor, box);
    staging.resize(std::max(staging.size(), part.bytes()));
    if (on_cpu) {
      copy_host(part, Tensor::wrap(staging.data(), part.shape(), part.dtype()));
    } else {
      to_host(part, staging.data());
    }
    writer.write(piece.key, begin, std::span(staging).first(part.bytes()));
    begin += part.bytes();
  }
}

}  // namespace

std::vector<OwnChunk> own_pieces(int rank, std::span<const ShardedTensor> tensors,
                                 std::span<const StoredTensor> plan) {
  ByName by_name;
  for (const ShardedTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  std::vector<OwnChunk> pieces;
  for (const StoredTensor& tensor : plan)
    for (const StoredChunk& piece : tensor.pieces)
      if (piece.file == rank)
        pieces.push_back({piece_key(tensor, piece.box), local_view(by_name, tensor.name, piece.box)});
  return pieces;
}

std::vector<StoredTensor> whole_share(int rank, std::span<const ShardDescription> own) {
  std::map<std::string, StoredTensor> share;
  for (const ShardDescription& shard : own) {
    StoredTensor& tensor =
        share.try_emplace(shard.name, StoredTensor{shard.name, shard.dtype, shard.shard.global_shape, {}})
            .first->second;
    for (const ShardBlock& block : shard.shard.blocks) {
      const Box box{block.global_offset, block.extent};
      const bool known = std::ranges::any_of(
          tensor.pieces, [&](const StoredChunk& piece) { return intersect(piece.box, box).has_value(); });
      if (!known && box.volume() > 0) tensor.pieces.push_back({rank, box});
    }
  }
  std::vector<StoredTensor> tensors;
  for (auto& [name, tensor] : share) tensors.push_back(std::move(tensor));
  return tensors;
}

std::optional<WrittenFile> write_pieces(const std::string& directory, int rank,
                                        std::span<const OwnChunk> pieces, const ToHost& to_host) {
  if (pieces.empty()) return {};
  std::vector<SafetensorsItem> items;
  for (const OwnChunk& piece : pieces)
    items.push_back({piece.key, piece.tensor.dtype(), piece.tensor.shape()});
  SafetensorsWriter writer(directory + "/" + rank_file_name(rank), std::move(items), {{"format", "pt"}});
  for (const OwnChunk& piece : pieces) write_piece(writer, piece, to_host);
  WrittenFile written{
      {rank_file_name(rank), static_cast<int64_t>(writer.bytes()), {}, writer.header_checksum()}, {}};
  for (const OwnChunk& piece : pieces) written.checksums.push_back(writer.checksum(piece.key));
  writer.commit();
  return written;
}

StoredFile stored_file(const std::string& directory, const std::string& name) {
  const MappedFile file(directory + "/" + name);
  return {name, static_cast<int64_t>(file.bytes().size()), checksum_of(file.bytes())};
}

StoredFile write_asset(const std::string& directory, const std::string& name,
                       std::span<const std::byte> contents) {
  const std::filesystem::path path = std::filesystem::path(directory) / name;
  std::filesystem::create_directories(path.parent_path());
  AtomicFile file(path.string());
  file.write(contents);
  file.commit();
  return stored_file(directory, name);
}

CheckpointIndex make_index(TrainingState state, std::vector<StoredTensor> plan,
                           std::span<const std::optional<WrittenFile>> files) {
  CheckpointIndex index{std::move(state), {}, std::move(plan)};
  std::vector<int> place(files.size(), -1);  // of a rank's file in the list
  for (size_t rank = 0; rank < files.size(); ++rank) {
    if (!files[rank]) continue;
    place[rank] = static_cast<int>(index.files.size());
    index.files.push_back(files[rank]->file);
  }
  std::vector<size_t> next(files.size(), 0);  // of a rank's chunks
  for (StoredTensor& tensor : index.tensors)
    for (StoredChunk& piece : tensor.pieces) {
      const auto rank = static_cast<size_t>(piece.file);
      piece.file = place.at(rank);
      piece.checksum = files[rank]->checksums.at(next[rank]++);
    }
  return index;
}

CheckpointIndex share_index(TrainingState state, std::vector<StoredTensor> plan,
                            const std::optional<WrittenFile>& written) {
  CheckpointIndex index{std::move(state), {}, std::move(plan)};
  if (written) index.files.push_back(written->file);
  size_t next = 0;
  for (StoredTensor& tensor : index.tensors)
    for (StoredChunk& piece : tensor.pieces) {
      piece.file = 0;
      piece.checksum = written.value().checksums.at(next++);
    }
  return index;
}

CheckpointIndex merge_shares(TrainingState state, std::vector<CheckpointIndex> shares) {
  CheckpointIndex index{std::move(state), {}, {}};
  std::map<std::string, StoredTensor> tensors;
  for (CheckpointIndex& share : shares) {
    const auto file = static_cast<int>(index.files.size());
    for (StoredFile& stored : share.files) index.files.push_back(std::move(stored));
    for (StoredTensor& tensor : share.tensors) {
      StoredTensor& all =
          tensors.try_emplace(tensor.name, StoredTensor{tensor.name, tensor.dtype, tensor.shape, {}})
              .first->second;
      for (StoredChunk& piece : tensor.pieces) {
        piece.file += file;
        all.pieces.push_back(std::move(piece));
      }
    }
  }
  Problems problems;
  for (auto& [name, tensor] : tensors) {
    std::ranges::sort(tensor.pieces, [](const StoredChunk& a, const StoredChunk& b) {
      return std::ranges::lexicographical_compare(a.box.offset, b.box.offset);
    });
    check_pieces(tensor, problems);
    index.tensors.push_back(std::move(tensor));
  }
  problems.raise("checkpoint: what the ranks wrote does not fit together");
  return index;
}

void write_index(const std::string& directory, const CheckpointIndex& index) {
  const std::string text = index.to_json().dump() + "\n";
  write_file_atomically(directory + "/index.json.xxh64",
                        checksum_of(std::as_bytes(std::span(text))) + "  index.json\n");
  write_file_atomically(directory + "/index.json", text);
}

}  // namespace megatron
