#include "megatron/checkpoint/local_share.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/checkpoint/directory.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

std::string share_name(int owner, int writer) { return fmt::format("rank_{:05}.by_{:05}", owner, writer); }

}  // namespace

std::string local_set_name(int64_t iteration, uint64_t number) {
  return fmt::format("{}.{:016x}", iteration_name(iteration), number);
}

std::vector<LocalShare> list_local_shares(const std::string& folder) {
  std::vector<LocalShare> shares;
  std::error_code error;  // a rank of the same machine may delete sets meanwhile
  for (const auto& set : fs::directory_iterator(folder, error)) {
    LocalShare share{.set = set.path().filename().string()};
    unsigned long long iteration = 0, number = 0;
    if (std::sscanf(share.set.c_str(), "iter_%llu.%16llx", &iteration, &number) != 2 ||
        share.set != local_set_name(static_cast<int64_t>(iteration), number))
      continue;
    share.iteration = static_cast<int64_t>(iteration);
    for (const auto& entry : fs::directory_iterator(set.path(), error)) {
      const std::string name = entry.path().filename().string();
      if (std::sscanf(name.c_str(), "rank_%d.by_%d", &share.owner, &share.writer) != 2 ||
          name != share_name(share.owner, share.writer) || !fs::exists(entry.path() / "index.json", error))
        continue;
      share.path = entry.path().string();
      shares.push_back(share);
    }
  }
  std::ranges::sort(shares, [](const LocalShare& a, const LocalShare& b) {
    const auto order = [](const LocalShare& share) {
      return std::tuple(-share.iteration, share.set, share.owner, share.owner != share.writer, share.writer);
    };
    return order(a) < order(b);
  });
  return shares;
}

void write_local_share(const std::string& folder, const std::string& set, int owner, int writer,
                       const TrainingState& state, std::vector<StoredTensor> plan,
                       std::span<const OwnChunk> chunks) {
  const fs::path parent = fs::path(folder) / set, place = parent / share_name(owner, writer),
                 partial = place.string() + ".partial";
  std::error_code error;
  fs::remove_all(partial, error);
  fs::create_directories(partial, error);
  require(!error, "cannot create {}: {}", partial.string(), error.message());
  try {
    const std::optional<WrittenFile> written = write_pieces(partial.string(), owner, chunks);
    write_index(partial.string(), share_index(state, std::move(plan), written));
    fs::rename(partial, place, error);
    require(!error, "cannot rename {}: {}", partial.string(), error.message());
  } catch (...) {
    fs::remove_all(partial, error);
    throw;
  }
  sync_directory(parent.string());
  sync_directory(folder);
}

void remove_other_sets(const std::string& folder, const std::string& kept) noexcept try {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename() != kept && entry.path().filename().string().starts_with("iter_"))
      fs::remove_all(entry.path(), ignored);
} catch (...) {  // of no memory for a name: the sets stay
}

}  // namespace megatron
