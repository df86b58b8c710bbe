#include "megatron/checkpoint/save.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "megatron/base/checksum.h"
#include "megatron/checkpoint/block_writer.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/safetensors.h"

namespace megatron {

namespace {

using ByName = std::multimap<std::string_view, const ShardedTensor*>;

// The rank's own memory of a box that it holds.
OwnChunk local_view(const ByName& tensors, const StoredTensor& stored, const Box& box) {
  for (auto [found, end] = tensors.equal_range(stored.name); found != end; ++found) {
    const ShardedTensor& tensor = *found->second;
    for (const ShardBlock& block : tensor.shard.blocks) {
      if (!Box{block.global_offset, block.extent}.contains(box)) continue;
      const Box local{shifted(box.offset, block.global_offset, block.local_offset), box.extent};
      OwnChunk chunk{piece_key(stored, box), {}};
      if (!tensor.packed) {
        chunk.tensor = box_of(tensor.tensor, local);
        return chunk;
      }
      std::vector<Tensor> parts;
      for (const Tensor& part : tensor.packed->parts) parts.push_back(box_of(part, local));
      chunk.packed = tensor.packed->with_parts(std::move(parts));
      return chunk;
    }
  }
  fail("checkpoint: this rank is to write {}{}, which it does not hold", stored.name, box);
}

// Copies of tensors into the host memory of blocks, from wherever they are.
class ToHost {
 public:
  explicit ToHost(RankContext* ctx) : ctx_(ctx) {}

  // Complete on return, or once the buffer's event is there.
  void copy(const Tensor& tensor, std::byte* target, BlockWriter::Buffer& buffer) const {
    if (tensor.device().is_cpu())
      return copy_host(tensor, Tensor::wrap(target, tensor.shape(), tensor.dtype()));
    require(ctx_ != nullptr, "checkpoint: {} is not on the host", tensor);
    Tensor source = tensor;
    if (!source.is_contiguous()) {
      source = ctx_->empty(tensor.shape(), tensor.dtype(), MemoryTag::Workspace);
      ctx_->kernels->copy(ctx_->kernel_context(), {tensor, source});
    }
    ctx_->runtime->copy_to_host_async(target, source.raw(), source.bytes(), ctx_->stream.native());
    if (!buffer.arrived) buffer.arrived.emplace(ctx_->runtime);
    buffer.arrived->record(ctx_->stream);
  }
  float scale(const Tensor& tensor) const {
    float value = 0;
    if (tensor && tensor.device().is_cpu()) value = *tensor.data<float>();
    if (tensor && !tensor.device().is_cpu()) ctx_->to_host(tensor, &value);
    return value;
  }

 private:
  RankContext* ctx_;
};

// A tensor in views of at most about a block, in row-major order.
std::vector<Box> blocks_of(const Shape& shape, size_t element_bytes) {
  return cut(shape, static_cast<int64_t>(BlockWriter::kBlockBytes / element_bytes));
}

// As one dimension where nothing lies between the elements, so that blocks need not end with rows.
Tensor flattened(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor.detach().view({tensor.numel()}) : tensor.detach();
}

void write_plain(BlockWriter& file, size_t item, const Tensor& tensor, const ToHost& host) {
  if (tensor.device().is_cpu() && tensor.is_contiguous())
    return file.write(item, 0, {static_cast<const std::byte*>(tensor.raw()), tensor.bytes()});
  const Tensor flat = flattened(tensor);
  size_t begin = 0;
  for (const Box& box : blocks_of(flat.shape(), size_of(flat.dtype()))) {
    const Tensor part = box_of(flat, box);
    if (part.numel() == 0) continue;
    BlockWriter::Buffer& buffer = file.buffer(part.bytes());
    host.copy(part, buffer.data(), buffer);
    file.write(item, begin, buffer, part.bytes());
    begin += part.bytes();
  }
}

void write_packed(BlockWriter& file, size_t item, const PackedValues& packed, const ToHost& host) {
  std::vector<Tensor> parts;
  for (const Tensor& part : packed.parts) parts.push_back(part.detach());
  if (std::ranges::all_of(parts, [](const Tensor& part) { return part.is_contiguous(); }))
    for (Tensor& part : parts) part = flattened(part);
  const float scale = host.scale(packed.scale);
  size_t begin = 0;
  for (const Box& box : blocks_of(parts.front().shape(), sizeof(float))) {
    const auto count = static_cast<size_t>(box.volume());
    if (count == 0) continue;
    size_t source_bytes = 0;
    for (const Tensor& part : parts) source_bytes += count * size_of(part.dtype());
    BlockWriter::Buffer& buffer = file.buffer(count * sizeof(float), source_bytes);
    std::vector<const std::byte*> sources;
    auto* target = static_cast<std::byte*>(buffer.source.raw());
    for (const Tensor& part : parts) {
      const Tensor view = box_of(part, box);
      if (view.device().is_cpu() && view.is_contiguous()) {
        sources.push_back(static_cast<const std::byte*>(view.raw()));
        continue;
      }
      host.copy(view, target, buffer);
      sources.push_back(target);
      target += view.bytes();
    }
    buffer.fill = [unpack = packed.unpack, sources = std::move(sources), scale,
                   values = std::span(reinterpret_cast<float*>(buffer.data()), count)] {
      unpack(sources, scale, values);
    };
    file.write(item, begin, buffer, count * sizeof(float));
    begin += count * sizeof(float);
  }
}

}  // namespace

Tensor host_values(const OwnChunk& chunk) {
  if (!chunk.packed) return chunk.tensor;
  Tensor wide = host_tensor(chunk.shape(), DType::F32);
  std::vector<Tensor> copies;
  std::vector<const std::byte*> parts;
  for (const Tensor& part : chunk.packed->parts) {
    copies.push_back(host_tensor(part.shape(), part.dtype()));
    copy_host(part, copies.back());
    parts.push_back(static_cast<const std::byte*>(copies.back().raw()));
  }
  chunk.packed->unpack(parts, ToHost(nullptr).scale(chunk.packed->scale),
                       {wide.data<float>(), static_cast<size_t>(wide.numel())});
  return wide;
}

std::vector<OwnChunk> own_pieces(int rank, std::span<const ShardedTensor> tensors,
                                 std::span<const StoredTensor> plan) {
  ByName by_name;
  for (const ShardedTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  std::vector<OwnChunk> pieces;
  for (const StoredTensor& tensor : plan)
    for (const StoredChunk& piece : tensor.pieces)
      if (piece.file == rank) pieces.push_back(local_view(by_name, tensor, piece.box));
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
                                        std::span<const OwnChunk> pieces, RankContext* ctx) {
  if (pieces.empty()) return {};
  std::vector<SafetensorsItem> items;
  for (const OwnChunk& piece : pieces) items.push_back({piece.key, piece.dtype(), piece.shape()});
  SafetensorsWriter writer(directory + "/" + rank_file_name(rank), std::move(items), {{"format", "pt"}});
  // From the beginning of the file to its end, as disks like it.
  std::map<size_t, const OwnChunk*> in_order;  // by item, which follow the data
  for (const OwnChunk& piece : pieces) in_order.emplace(writer.item(piece.key), &piece);
  const ToHost host(ctx);
  BlockWriter blocks(writer, ctx && !ctx->device.is_cpu() ? ctx->runtime : nullptr);
  for (const auto& [item, piece] : in_order) {
    if (piece->packed)
      write_packed(blocks, item, *piece->packed, host);
    else
      write_plain(blocks, item, piece->tensor, host);
  }
  blocks.finish();
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
