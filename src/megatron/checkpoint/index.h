#pragma once

#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/base/problems.h"
#include "megatron/checkpoint/sharded_tensor.h"
#include "megatron/optimizer/loss_scale.h"

namespace megatron {

// A box of a global tensor, stored as one tensor of one file of the checkpoint.
struct StoredChunk {
  int file;
  Box box;
  std::string checksum = {};  // XXH64 of its bytes; empty where the save made none
};

struct StoredTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<StoredChunk> pieces;  // every element exactly once
};

struct StoredFile {
  std::string name;  // relative to the checkpoint
  int64_t bytes = 0;
  std::string checksum = {};         // XXH64 of all of it; empty where header and chunks have their own
  std::string header_checksum = {};  // of a file of tensors: what stands before their data
};

// The checkpoint of --save behind which a non-persistent one was saved.
struct BaseCheckpoint {
  int64_t iteration = 0;
  std::string checksum;  // of its index, which holds those of all its tensors; "": it was still being written
  friend bool operator==(const BaseCheckpoint&, const BaseCheckpoint&) = default;
};

// What a run needs beside its tensors to go on where it stopped.
struct TrainingState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  int64_t consumed_valid_samples = 0;
  uint64_t seed = 0;
  Json config;                  // the resolved configuration of the run
  Json extra;                   // what other formats hold beyond the rest
  int64_t optimizer_steps = 0;  // updates that were taken; fewer than iterations where some were skipped
  int64_t skipped_samples = 0;  // of those consumed, the ones of iterations that were left out
  int64_t without_update = 0;   // of those consumed, the ones whose updates were not taken
  Json schedule;                // the learning rate's, under Megatron-LM's names; null: not kept
  Json rerun;                   // a result that another machine shall compute; null: none
  Json user;                    // whatever the program that trains keeps; null: nothing
  std::optional<LossScaleState> loss_scale = {};  // of fp16
  std::optional<BaseCheckpoint> base = {};        // of a non-persistent checkpoint
};

// Whether an index tells of all of a checkpoint, or of what one rank wrote.
enum class IndexScope { whole, share };

// The file index.json of a checkpoint.
struct CheckpointIndex {
  TrainingState state;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  // sorted by name

  Json to_json() const;
  // A ConfigError that lists everything that does not fit together: files that do not exist in the list,
  // boxes outside their tensor, overlaps, and, unless it is one rank's share, elements that no piece holds.
  static CheckpointIndex from_json(const Json& json, const std::string& origin,
                                   IndexScope scope = IndexScope::whole);

  const StoredTensor* find(std::string_view name) const;
};

// The name of a piece in its file: the tensor's own where it is whole, else with its place, "w[0:4, 0:8]".
std::string piece_key(const StoredTensor& tensor, const Box& box);

// Adds what is wrong with a tensor's pieces: boxes outside, overlaps, elements that none holds.
void check_pieces(const StoredTensor& tensor, Problems& problems, IndexScope scope = IndexScope::whole);

}  // namespace megatron
