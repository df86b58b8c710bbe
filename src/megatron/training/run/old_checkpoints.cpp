#include "megatron/training/run/old_checkpoints.h"

#include <fmt/format.h>

#include <filesystem>

namespace megatron {
namespace {

namespace fs = std::filesystem;

// 0 where somebody has moved it.
uintmax_t bytes_in(const std::string& folder) {
  uintmax_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->is_regular_file(error) && !error) {
      const uintmax_t size = entry->file_size(error);
      bytes += error ? 0 : size;
    }
  return error ? 0 : bytes;
}

}  // namespace

OldCheckpoints::~OldCheckpoints() {
  try {
    finish();
  } catch (...) {  // of whoever is told
  }
}

void OldCheckpoints::retain(const std::string& root, int64_t iteration, const std::string& path,
                            const Retention& policy) {
  tell_failure();
  try {
    std::vector<std::string> aside;
    retain_checkpoints(root, iteration, policy, &aside);
    if (aside.empty()) return;
    if (const uintmax_t bytes = bytes_in(path)) bytes_ = bytes;  // else the last one was as large
    newest_ = aside.size();
    removal_.add(std::move(aside));
  } catch (const std::exception& error) {  // the new checkpoint is there all the same
    tell_(fmt::format("older checkpoints stay: {}", error.what()));
  }
}

std::vector<std::string> OldCheckpoints::make_way(const std::string& root) {
  const size_t pending = removal_.pending().size();
  if (pending == 0) return {};
  std::error_code error;
  const fs::space_info space = fs::space(root, error);
  const bool has_room = !error && bytes_ > 0 && space.available > bytes_ + bytes_ / 8;
  // Where saves follow each other closely, each would find more that is yet to be deleted.
  if (has_room && pending <= newest_)
    removal_.pause();
  else
    removal_.finish();
  return removal_.pending();
}

void OldCheckpoints::finish() {
  removal_.finish();
  tell_failure();
}

void OldCheckpoints::tell_failure() {
  try {
    removal_.rethrow();
  } catch (const std::exception& error) {
    tell_(fmt::format("older checkpoints stay: {}", error.what()));
  }
}

}  // namespace megatron
