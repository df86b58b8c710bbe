#include "megatron/config/resolve/finetune_files.h"

#include <algorithm>
#include <filesystem>

#include "megatron/config/config.h"

namespace megatron {
namespace fs = std::filesystem;
namespace {

constexpr const char *kDataset = "dataset.finetune_hf_dataset", *kFiles = "dataset.finetune_data_files";

bool is_json_lines(const fs::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".json";
}

// Whether a file is of a split by its name: train.jsonl, train-00000-of-00002.jsonl.
bool is_of_split(const std::string& name, const std::string& split) {
  return name.starts_with(split) && name.size() > split.size() &&
         (name[split.size()] == '.' || name[split.size()] == '-' || name[split.size()] == '_');
}

// The files of a split in a folder, or in its folder "data", in the order of their names.
std::vector<std::string> files_of_split(const std::string& folder, const std::string& split) {
  std::vector<std::string> found;
  for (const fs::path& place : {fs::path(folder), fs::path(folder) / "data"}) {
    std::error_code absent;
    for (const auto& entry : fs::directory_iterator(place, absent))
      if (entry.is_regular_file() && is_json_lines(entry.path()) &&
          is_of_split(entry.path().filename().string(), split))
        found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// What is not there becomes a problem.
std::vector<std::string> named_files(ConfigBuilder& builder) {
  const DatasetConfig& data = builder.config.dataset;
  const std::string& root = data.finetune_hf_dataset;
  std::vector<std::string> files;
  for (const std::string& name : data.finetune_data_files) {
    const std::string path =
        root.empty() || !fs::is_directory(root) ? name : (fs::path(root) / name).string();
    if (!fs::is_regular_file(path)) {
      builder.reject(kFiles, fmt::format("there is no file {}, and nothing is downloaded", path),
                     "use --sft --data-path FILE instead");
      return {};
    }
    if (!is_json_lines(path)) {
      builder.reject(kFiles, fmt::format("{} is not of JSON lines", path),
                     "use --sft --data-path FILE instead, with its rows in a .jsonl file");
      return {};
    }
    files.push_back(path);
  }
  if (!files.empty()) return files;
  if (fs::is_regular_file(root) && is_json_lines(root)) return {root};
  if (!fs::is_directory(root)) {
    builder.reject(kDataset,
                   "there is no file or folder of JSON lines of that name, and nothing is downloaded",
                   "use --sft --data-path FILE instead");
    return {};
  }
  files = files_of_split(root, data.finetune_data_split);
  if (files.empty())
    builder.reject(kDataset,
                   fmt::format("the folder has no {0}.jsonl or {0}-*.jsonl", data.finetune_data_split),
                   "name its files by --finetune-data-files");
  return files;
}

}  // namespace

void derive_finetune_files(ConfigBuilder& builder) {
  const DatasetConfig& data = builder.config.dataset;
  const char* named = !data.finetune_data_files.empty() ? kFiles : kDataset;
  if (data.finetune_hf_dataset.empty() && data.finetune_data_files.empty()) return;
  if (builder.purpose != Purpose::training) return;
  if (!data.data_path.empty() || !data.train_data_path.empty() || data.mock_data)
    return builder.reject(named, "other data is given beside it", "leave it out");
  const std::vector<std::string> files = named_files(builder);
  const std::string why(named);
  if (files.empty())
    return builder.derive("dataset.data_path", Json::Array{"none"}, why);  // a problem says so
  Json list = Json::array();
  for (const std::string& file : files) list.push_back(file);
  builder.derive("dataset.data_path", list, why);
  builder.derive("dataset.sft", true, why);
  if (!builder.given("dataset.answer_only_loss") && data.sft_tokenizer_prompt_format.empty())
    builder.derive("dataset.answer_only_loss", false, why);
  if (!builder.given("dataset.packing") && data.sft_tokenizer_prompt_format.empty() &&
      !builder.config.model.has_tower())
    builder.derive("dataset.packing", "offline", why);
  for (const auto& [name, on] : {std::pair{"dataset.reset_position_ids", data.reset_position_ids},
                                 {"dataset.reset_attention_mask", data.reset_attention_mask},
                                 {"dataset.eod_mask_loss", data.eod_mask_loss}}) {
    if (!on) continue;
    builder.derive(name, false, why);
    builder.note(fmt::format("{}: conversations in one row are separate anyway", name));
  }
}

}  // namespace megatron
