#include "megatron/checkpoint/save.h"

#include "megatron/base/checksum.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/safetensors.h"

namespace megatron {

namespace {

constexpr int64_t staging_elements = int64_t{16} << 20;

// The rank's own memory of a box that it holds.
Tensor local_view(std::span<const ShardedTensor> tensors, const std::string& name, const Box& box) {
  for (const ShardedTensor& tensor : tensors) {
    if (tensor.name != name) continue;
    for (const ShardBlock& block : tensor.shard.blocks)
      if (Box{block.global_offset, block.extent}.contains(box))
        return box_of(tensor.tensor, shifted(box.offset, block.global_offset, block.local_offset),
                      box.extent);
  }
  fail("checkpoint: this rank is to write {}{}, which it does not hold", name, box);
}

// Through host memory of bounded size where the bytes do not already lie there in one run.
void write_piece(RankContext& ctx, SafetensorsWriter& writer, const std::string& key, const Tensor& piece) {
  if (piece.device().is_cpu() && piece.is_contiguous()) return writer.write(key, piece);
  std::vector<std::byte> staging;
  size_t begin = 0;
  for (const Tensor& part : cut(piece, staging_elements)) {
    staging.resize(std::max(staging.size(), part.bytes()));
    if (part.device().is_cpu()) {
      copy_host(part, Tensor::wrap(staging.data(), part.shape(), part.dtype()));
    } else {
      ctx.to_host(part, staging.data());
    }
    writer.write(key, begin, std::span(staging).first(part.bytes()));
    begin += part.bytes();
  }
}

}  // namespace

std::optional<StoredFile> write_shards(RankContext& ctx, const std::string& directory, int rank,
                                       std::span<const ShardedTensor> tensors,
                                       std::span<const StoredTensor> plan) {
  struct Piece {
    const StoredTensor* tensor;
    const Box* box;
  };
  std::vector<Piece> pieces;
  std::vector<SafetensorsItem> items;
  for (const StoredTensor& tensor : plan) {
    for (const StoredPiece& piece : tensor.pieces) {
      if (piece.file != rank) continue;
      pieces.push_back({&tensor, &piece.box});
      items.push_back({piece_key(tensor, piece.box), tensor.dtype, piece.box.extent});
    }
  }
  if (pieces.empty()) return {};
  StoredFile file{rank_file_name(rank), 0, {}};
  const std::string path = directory + "/" + file.name;
  {
    SafetensorsWriter writer(path, std::move(items), {{"format", "pt"}});
    for (const Piece& piece : pieces)
      write_piece(ctx, writer, piece_key(*piece.tensor, *piece.box),
                  local_view(tensors, piece.tensor->name, *piece.box));
    writer.commit();
  }
  MappedFile written(path);
  file.bytes = static_cast<int64_t>(written.bytes().size());
  file.checksum = checksum_of(written.bytes());
  return file;
}

CheckpointIndex make_index(TrainingState state, std::vector<StoredTensor> plan,
                           std::span<const std::optional<StoredFile>> files) {
  CheckpointIndex index{std::move(state), {}, std::move(plan)};
  std::vector<int> place(files.size(), -1);  // of a rank's file in the list
  for (size_t rank = 0; rank < files.size(); ++rank) {
    if (!files[rank]) continue;
    place[rank] = static_cast<int>(index.files.size());
    index.files.push_back(*files[rank]);
  }
  for (StoredTensor& tensor : index.tensors)
    for (StoredPiece& piece : tensor.pieces) piece.file = place.at(static_cast<size_t>(piece.file));
  return index;
}

void write_index(const std::string& directory, const CheckpointIndex& index) {
  const std::string text = index.to_json().dump() + "\n";
  write_file_atomically(directory + "/index.json.xxh64",
                        checksum_of(std::as_bytes(std::span(text))) + "  index.json\n");
  write_file_atomically(directory + "/index.json", text);
}

}  // namespace megatron
