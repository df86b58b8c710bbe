#pragma once

#include <map>
#include <memory>
#include <set>

#include "megatron/autograd/rank_context.h"
#include "megatron/checkpoint/index.h"
#include "megatron/checkpoint/safetensors.h"

namespace megatron {

// The files of a checkpoint are not what was written, whatever the model: another checkpoint may do.
class DamagedCheckpoint : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// What is wrong with `what`, whose checksum was found to be another than the expected one; empty where it is
// not, or none was made.
std::string checksum_damage(std::string_view what, const std::string& found, const std::string& expected);

// A checkpoint on the disk, read by mapping: whatever the layout it was saved under, a rank reads just the
// slices that it holds. One reader per rank.
class CheckpointReader {
 public:
  // A root (its latest checkpoint) or a checkpoint. Reads the index and checks that its files are there, in
  // full; else it is a DamagedCheckpoint. `verify`: whether the checksum of each chunk is compared before
  // anything of it is used, once.
  explicit CheckpointReader(const std::string& path, bool verify = true,
                            IndexScope scope = IndexScope::whole);

  // No other rank reads the files meanwhile: loads need not go through the page cache, which others would
  // share.
  void set_only_reader(bool only) { only_reader_ = only; }

  const std::string& path() const { return path_; }
  const CheckpointIndex& index() const { return index_; }
  const TrainingState& state() const { return index_.state; }

  // Fills the tensors; floating-point values are converted to the tensor's dtype. A ConfigError lists every
  // tensor that is missing or has another shape, before anything is written.
  void load(RankContext& ctx, std::span<const ShardedTensor> tensors);
  // Blocks of them are read, summed and copied at once (block_reader.h). Where a chunk turns out to be
  // damaged, what was filled so far is worth nothing.
  void load(RankContext& ctx, std::span<const LoadPart> parts);
  // A chunk of a tensor of the index, as a view of its file.
  Tensor chunk(const StoredTensor& tensor, const StoredChunk& chunk);

 private:
  const SafetensorsFile& file(int index);
  const SafetensorsEntry& entry(const StoredTensor& tensor, const StoredChunk& chunk);
  DamagedCheckpoint damaged(const std::string& damage) const;
  DamagedCheckpoint damaged(int file, const std::string& damage) const;
  void check_fit(std::span<const LoadPart> parts) const;
  void verify_chunk(const StoredTensor& tensor, const StoredChunk& chunk);

  friend class LoadBlocks;

  std::string path_;
  CheckpointIndex index_;
  bool verify_, only_reader_ = false;
  std::set<const StoredChunk*> verified_;
  std::map<int, SafetensorsFile> files_;  // those that were needed so far
};

// A DamagedCheckpoint where it is that.
CheckpointIndex read_index(const std::string& directory, IndexScope scope = IndexScope::whole);

// Reads every byte of the checkpoint: sizes and checksums of its files, and that the files hold the pieces
// that the index says. `progress` is told the name of each file before it is read.
Problems verify_checkpoint(const std::string& directory,
                           const std::function<void(const StoredFile&)>& progress = {});

}  // namespace megatron
