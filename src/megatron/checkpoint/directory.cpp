#include "megatron/checkpoint/directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view tracker_name = "latest_checkpointed_iteration.txt";
constexpr std::string_view prefix = "iter_", partial = ".partial", replaced = ".replaced",
                           removed = ".removed";

// The iteration in "iter_0000123", none for any other name.
std::optional<int64_t> iteration_of(std::string_view name) {
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  int64_t iteration = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), iteration);
  if (error != std::errc() || end != name.data() + name.size() || name.empty() || iteration < 0) return {};
  return iteration;
}

bool is_complete(const fs::path& path) { return fs::exists(path / "index.json"); }

std::optional<int64_t> tracked_iteration(const fs::path& root) {
  std::ifstream file(root / tracker_name);
  int64_t iteration = 0;
  if (!(file >> iteration)) return {};
  return iteration;
}

void rename_directory(const fs::path& from, const fs::path& to) {
  require(std::rename(from.c_str(), to.c_str()) == 0, "cannot rename {} to {}: {}", from.string(),
          to.string(), std::strerror(errno));
}

// What no checkpoint needs: a rest that cannot go, say since another machine reads it, is left for the next
// save.
void clear_away(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// Two directories swap names in one step, where the file system can do that.
bool exchange(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  require(errno == EINVAL || errno == ENOSYS || errno == ENOTSUP, "cannot exchange {} and {}: {}", a.string(),
          b.string(), std::strerror(errno));
  return false;
}

}  // namespace

void remove_directory(const std::string& path) {
  std::error_code error;
  do fs::remove_all(path, error);
  while (error == std::errc::no_such_file_or_directory);  // of what the other one was quicker with
  require(!error, "cannot remove {}: {}", path, error.message());
}

std::string iteration_name(int64_t iteration) { return fmt::format("{}{:07}", prefix, iteration); }

std::string rank_file_name(int rank) { return fmt::format("rank_{:05}.safetensors", rank); }

std::vector<CheckpointPlace> list_checkpoints(const std::string& root) {
  std::vector<CheckpointPlace> places;
  if (!fs::is_directory(root)) return places;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    std::string name = entry.path().filename().string();
    const bool aside = name.ends_with(replaced);
    if (aside) name.resize(name.size() - replaced.size());
    std::optional<int64_t> iteration = iteration_of(name);
    if (!iteration || !is_complete(entry.path())) continue;
    if (aside && is_complete(entry.path().parent_path() / name)) continue;
    places.push_back({*iteration, entry.path().string()});
  }
  std::sort(places.begin(), places.end(),
            [](const CheckpointPlace& a, const CheckpointPlace& b) { return a.iteration < b.iteration; });
  return places;
}

std::optional<CheckpointPlace> latest_checkpoint(const std::string& root) {
  const std::vector<CheckpointPlace> places = list_checkpoints(root);
  if (places.empty()) return {};
  const std::optional<int64_t> tracked = tracked_iteration(root);
  for (const CheckpointPlace& place : places)
    if (place.iteration == tracked) return place;
  return places.back();
}

std::vector<CheckpointPlace> resume_places(const std::string& root) {
  const std::optional<CheckpointPlace> latest = latest_checkpoint(root);
  std::vector<CheckpointPlace> places = list_checkpoints(root);
  std::erase_if(places, [&](const CheckpointPlace& place) { return place.iteration > latest->iteration; });
  std::reverse(places.begin(), places.end());
  return places;
}

std::string index_checksum(const std::string& directory) {
  std::ifstream file(fs::path(directory) / "index.json.xxh64");
  std::string checksum;
  file >> checksum;
  return checksum;
}

bool has_checkpoint(const std::string& path) {
  return is_complete(path) || latest_checkpoint(path).has_value();
}

std::string resolve_checkpoint(const std::string& path) {
  if (is_complete(path)) return path;
  if (std::optional<CheckpointPlace> latest = latest_checkpoint(path)) return latest->path;
  if (!fs::exists(path)) throw ConfigError(fmt::format("{}: there is no such checkpoint", path));
  throw ConfigError(fmt::format(
      "{} holds no complete checkpoint: neither an index.json nor directories {}…/ with one", path, prefix));
}

std::string begin_save(const std::string& root, int64_t iteration,
                       std::span<const std::string> being_removed) {
  std::error_code error;
  fs::create_directories(root, error);
  require(!error, "cannot create {}: {}", root, error.message());
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::find(being_removed, entry.path().string()) != being_removed.end()) continue;
    if (name.starts_with(prefix) && (name.ends_with(partial) || name.ends_with(removed)))
      clear_away(entry.path());
    // A replacement that was killed half-way: finish it, one way or the other.
    if (name.starts_with(prefix) && name.ends_with(replaced)) {
      fs::path place = fs::path(root) / name.substr(0, name.size() - replaced.size());
      if (is_complete(place)) {
        clear_away(entry.path());
      } else {
        rename_directory(entry.path(), place);
      }
    }
  }
  const fs::path place = fs::path(root) / iteration_name(iteration);
  require(!fs::exists(place) || is_complete(place), "{} is there already and was not saved by this program",
          place.string());
  const fs::path path = place.string() + std::string(partial);
  remove_directory(path.string());  // nothing old may be in it
  fs::create_directory(path, error);
  require(!error, "cannot create {}: {}", path.string(), error.message());
  return path.string();
}

std::string publish_save(const std::string& root, int64_t iteration) {
  const fs::path place = fs::path(root) / iteration_name(iteration);
  const fs::path written = place.string() + std::string(partial),
                 aside = place.string() + std::string(replaced);
  require(is_complete(written), "checkpoint: {} has no index.json", written.string());
  sync_directory(written.string());
  fs::path old;  // what the new one takes the place of
  if (!fs::exists(place)) {
    rename_directory(written, place);
  } else if (exchange(written, place)) {
    old = written;
  } else {
    rename_directory(place, aside);
    rename_directory(written, place);
    old = aside;
  }
  sync_directory(root);
  write_file_atomically((fs::path(root) / tracker_name).string(), fmt::format("{}\n", iteration));
  if (!old.empty()) clear_away(old);
  return place.string();
}

std::vector<int64_t> retain_checkpoints(const std::string& root, int64_t published, const Retention& policy,
                                        std::vector<std::string>* aside) {
  std::vector<CheckpointPlace> older = list_checkpoints(root);
  std::erase_if(older, [&](const CheckpointPlace& place) { return place.iteration >= published; });
  if (policy.most_recent >= 1) {
    older.resize(older.size() - std::min<size_t>(older.size(), static_cast<size_t>(policy.most_recent - 1)));
  } else if (policy.interval > 0 && !older.empty()) {
    older = {older.back()};
  } else {
    older.clear();
  }
  std::vector<int64_t> gone;
  std::vector<std::string> renamed_away;
  for (const CheckpointPlace& place : older) {
    if (policy.interval > 0 && place.iteration % policy.interval == 0) continue;
    if (fs::is_symlink(place.path)) continue;
    // Under another name first, so that nobody takes the half that a kill leaves for a checkpoint.
    std::string renamed = place.path + std::string(removed);
    for (int i = 2; fs::exists(renamed); ++i)  // an earlier one of this iteration is still being deleted
      renamed = fmt::format("{}.{}{}", place.path, i, removed);
    rename_directory(place.path, renamed);
    renamed_away.push_back(renamed);
    gone.push_back(place.iteration);
  }
  if (!gone.empty()) sync_directory(root);  // the names go before any content does, also if the power fails
  if (aside)
    aside->insert(aside->end(), renamed_away.begin(), renamed_away.end());
  else
    for (const std::string& path : renamed_away) remove_directory(path);
  return gone;
}

void discard_save(const std::string& root, int64_t iteration) noexcept {
  clear_away(fs::path(root) / (iteration_name(iteration) + std::string(partial)));
}

}  // namespace megatron
