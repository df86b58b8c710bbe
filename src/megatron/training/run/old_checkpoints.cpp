#include "megatron/training/run/old_checkpoints.h"

#include <fmt/format.h>

#include <filesystem>

namespace megatron {
namespace {

namespace fs = std::filesystem;

uintmax_t bytes_in(const std::string& folder) {
  uintmax_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
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
  std::vector<std::string> aside;
  try {
    retain_checkpoints(root, iteration, policy, &aside);
  } catch (const std::exception& error) {
    tell_(fmt::format("older checkpoints stay: {}", error.what()));
  }
  if (aside.empty()) return;
  try {
    bytes_ = bytes_in(path);
  } catch (const fs::filesystem_error&) {  // somebody else has moved it: the last one was as large
  }
  newest_ = aside.size();
  removal_.add(std::move(aside));
}

std::vector<std::string> OldCheckpoints::make_way(const std::string& root) {
  const size_t pending = removal_.pending().size();
  if (pending == 0) return {};
  std::error_code error;
  const fs::space_info space = fs::space(root, error);
  const bool has_room = !error && bytes_ > 0 && space.available > bytes_ + bytes_ / 8;
  // Where saves follow each other closely, each would find more that is yet to be deleted.
  has_room&& pending <= newest_ ? removal_.pause() : removal_.finish();
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
