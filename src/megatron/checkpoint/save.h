#pragma once

#include <functional>
#include <optional>

#include "megatron/autograd/rank_context.h"
#include "megatron/checkpoint/save_plan.h"

namespace megatron {

// A tensor of the file that this rank writes.
struct OwnChunk {
  std::string key;
  Tensor tensor;  // undefined where it is packed
  std::optional<PackedValues> packed = {};

  DType dtype() const { return packed ? DType::F32 : tensor.dtype(); }
  const Shape& shape() const { return packed ? packed->shape() : tensor.shape(); }
};

// A chunk that lies on the host as a tensor: its own, or a copy where it was packed.
Tensor host_values(const OwnChunk& chunk);

// This rank's share of the plan, as views of its tensors.
std::vector<OwnChunk> own_pieces(int rank, std::span<const ShardedTensor> tensors,
                                 std::span<const StoredTensor> plan);

// All that this rank holds, each box once: a plan in which no rank relies on another.
std::vector<StoredTensor> whole_share(int rank, std::span<const ShardDescription> own);

// What a rank wrote: its file, and the checksums of its chunks in the order of the plan.
struct WrittenFile {
  StoredFile file;
  std::vector<std::string> checksums;
};

// Writes a rank's file into the directory; none where it has no pieces. `ctx` is for pieces on another
// device. Checksums are made of the bytes on their way, not by reading them again.
std::optional<WrittenFile> write_pieces(const std::string& directory, int rank,
                                        std::span<const OwnChunk> pieces, RankContext* ctx = nullptr);

// Size and checksum of a file as it now is on the disk.
StoredFile stored_file(const std::string& directory, const std::string& name);

// A further file, beside the tensors; `name` may have folders.
StoredFile write_asset(const std::string& directory, const std::string& name,
                       std::span<const std::byte> contents);

// The index of what the ranks wrote: files[r] is what write_pieces gave rank r. Written last.
CheckpointIndex make_index(TrainingState state, std::vector<StoredTensor> plan,
                           std::span<const std::optional<WrittenFile>> files);
// What one rank wrote, as an index of its own: `plan` are its pieces alone, in the order of the checksums.
CheckpointIndex share_index(TrainingState state, std::vector<StoredTensor> plan,
                            const std::optional<WrittenFile>& written);
// One index of all shares. A ConfigError where these do not hold every element once.
CheckpointIndex merge_shares(TrainingState state, std::vector<CheckpointIndex> shares);
// Beside it its checksum, as `xxh64sum --check` reads it.
void write_index(const std::string& directory, const CheckpointIndex& index);

}  // namespace megatron
