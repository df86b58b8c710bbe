#include "megatron/checkpoint/checkpoint_kind.h"

#include <charconv>
#include <filesystem>
#include <fstream>

#include "megatron/checkpoint/directory.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

bool has_legacy_ranks(const fs::path& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error))
    if (entry.path().filename().string().starts_with("mp_rank_") &&
        fs::is_regular_file(entry.path() / "model_optim_rng.pt", error))
      return true;
  return false;
}

bool has_safetensors(const fs::path& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error))
    if (entry.path().extension() == ".safetensors") return true;
  return false;
}

CheckpointKind kind_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path / ".metadata", error)) return CheckpointKind::torch_dist;
  if (has_legacy_ranks(path)) return CheckpointKind::torch;
  if (fs::is_regular_file(path / "config.json", error) && has_safetensors(path))
    return CheckpointKind::hugging_face;
  return CheckpointKind::none;
}

// What Megatron-LM's tracker file names: an iteration, or "release".
std::string tracked_folder(const fs::path& root) {
  std::ifstream file(root / "latest_checkpointed_iteration.txt");
  std::string word;
  if (!(file >> word)) return {};
  if (word == "release") return word;
  int64_t iteration = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), iteration);
  if (error != std::errc() || end != word.data() + word.size() || iteration < 0) return {};
  return iteration_name(iteration);
}

}  // namespace

FoundCheckpoint recognise_checkpoint(const std::string& path) {
  if (has_checkpoint(path)) return {CheckpointKind::megatron, resolve_checkpoint(path)};
  if (const CheckpointKind kind = kind_of(path); kind != CheckpointKind::none) return {kind, path};
  const std::string folder = tracked_folder(path);
  if (folder.empty()) return {};
  const std::string tracked = (fs::path(path) / folder).string();
  const CheckpointKind kind = kind_of(tracked);
  return kind == CheckpointKind::none ? FoundCheckpoint{} : FoundCheckpoint{kind, tracked};
}

const char* name_of(CheckpointKind kind) {
  constexpr const char* kNames[] = {"no checkpoint", "a checkpoint of this program",
                                    "a Megatron-LM torch_dist checkpoint",
                                    "a Megatron-LM torch (legacy) checkpoint", "a Hugging Face model"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace megatron
