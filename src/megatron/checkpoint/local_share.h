#pragma once

#include "megatron/checkpoint/save.h"

namespace megatron {

// What ranks keep of a checkpoint on disks of their own machines. A set is one save, of one iteration:
//   FOLDER/iter_0000123.5e1f0c2a/rank_00003.by_00001/   what rank 3 held, written by rank 1:
//       index.json, index.json.xxh64, rank_00003.safetensors
//   FOLDER/iter_0000123.5e1f0c2a/rank_00003.by_00001.partial/   being written
struct LocalShare {
  std::string set;  // "iter_0000123.5e1f0c2a"
  int64_t iteration = 0;
  int owner = 0, writer = 0;
  std::string path;
};

std::string local_set_name(int64_t iteration, uint64_t number);

// Every complete share in a folder, the newest sets first; a rank's own before copies of others.
std::vector<LocalShare> list_local_shares(const std::string& folder);

// Writes a share, which is on the disk when this returns. `plan` are the owner's pieces, `chunks` their bytes
// in the same order.
void write_local_share(const std::string& folder, const std::string& set, int owner, int writer,
                       const TrainingState& state, std::vector<StoredTensor> plan,
                       std::span<const OwnChunk> chunks);

// Deletes every set but one. Ranks of one machine may do that at once; what cannot be deleted stays.
void remove_other_sets(const std::string& folder, const std::string& kept) noexcept;

}  // namespace megatron
