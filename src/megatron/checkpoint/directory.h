#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace megatron {

// How checkpoints lie in a directory (the argument of --save and --load):
//   latest_checkpointed_iteration.txt    the iteration to go on from
//   iter_0000123/index.json              what it holds; present from the moment the directory has its name
//   iter_0000123/index.json.xxh64        its checksum
//   iter_0000123/rank_00000.safetensors  what rank 0 wrote
//   iter_0000123.partial/                being written, or the rest of a save that was killed
//   iter_0000123.replaced/               for a moment, while a checkpoint of the same iteration takes its
//                                        place
//   iter_0000123.removed/                being deleted
struct CheckpointPlace {
  int64_t iteration = 0;
  std::string path;
};

std::string iteration_name(int64_t iteration);  // "iter_0000123"
std::string rank_file_name(int rank);           // "rank_00000.safetensors"

// Every complete checkpoint, by iteration.
std::vector<CheckpointPlace> list_checkpoints(const std::string& root);

// The one that the tracker file names; where that is missing or not complete, the newest complete one; none
// where nothing was ever saved.
std::optional<CheckpointPlace> latest_checkpoint(const std::string& root);

// What a run may go on from, best first: the latest, then those before it, newest first. Later ones than the
// tracker names are not among them: somebody went back.
std::vector<CheckpointPlace> resume_places(const std::string& root);

// The checksum of a checkpoint's index, as the file beside it says: it stands for all of the checkpoint.
// Empty where there is none.
std::string index_checksum(const std::string& directory);

// Whether `path` is a checkpoint, or a root that holds one.
bool has_checkpoint(const std::string& path);

// What the user names: a root (then its latest), or one checkpoint itself. A ConfigError where there is none.
std::string resolve_checkpoint(const std::string& path);

// Deletes a directory with all that is in it, maybe beside another process that does the same. An Error where
// it stays.
void remove_directory(const std::string& path);

// A save, seen from the file system. begin_save() clears what killed saves left, as far as it can, and makes
// the partial directory, but leaves alone the paths that another thread is deleting; publish_save(), once all
// files in it are on the disk, gives it its name, moves the tracker, and then deletes what had that name.
// Whatever dies between, what was complete before is still found.
std::string begin_save(const std::string& root, int64_t iteration,
                       std::span<const std::string> being_removed = {});
std::string publish_save(const std::string& root, int64_t iteration);
void discard_save(const std::string& root, int64_t iteration) noexcept;

// Which checkpoints stay when one was published.
struct Retention {
  int64_t most_recent = -1;  // that many, the published one included; -1: all
  int64_t interval = 0;      // and multiples of this; where it alone is given, the previous one goes else
};

// Deletes what is not to stay, never the published one, later ones, or symbolic links. Returns their
// iterations. `aside`: what would be deleted gets another name, which is added, so that deleting large files
// can be left to another thread (background_removal.h).
std::vector<int64_t> retain_checkpoints(const std::string& root, int64_t published, const Retention& policy,
                                        std::vector<std::string>* aside = nullptr);

}  // namespace megatron
