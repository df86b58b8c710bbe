#include "megatron/bridge/source_files.h"

#include <algorithm>
#include <filesystem>

#include "megatron/checkpoint/reshard.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

// What describes a model: configurations, tokenizers, chat templates, code that they name, licences. Weights,
// in whatever form, are not among it.
bool is_kept(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.starts_with('.')) return false;
  for (std::string_view end : {".safetensors", ".index.json"})
    if (name.ends_with(end)) return false;
  for (std::string_view end : {".json", ".txt", ".model", ".jinja", ".tiktoken", ".md", ".py"})
    if (name.ends_with(end)) return true;
  for (std::string_view begin : {"tokenizer.", "LICENSE", "NOTICE"})
    if (name.starts_with(begin)) return true;
  return false;
}

}  // namespace

std::vector<std::string> described_by(const std::string& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file() && is_kept(entry.path())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<CheckpointAsset> source_files(const std::string& directory, const SafetensorsDirectory& weights) {
  std::vector<CheckpointAsset> assets;
  for (const std::string& name : described_by(directory))
    assets.push_back({std::string(kSourceFolder) + name, read_asset(directory, name)});
  Json files = Json::object();
  for (const std::string& name : weights.names())
    files[name] = fs::path(weights.file_of(name).path()).filename().string();
  assets.push_back({std::string(kTensorFiles), files.dump(1)});
  return assets;
}

std::vector<CheckpointAsset> tokenizer_files(const std::string& path) {
  std::vector<CheckpointAsset> files;
  if (fs::is_directory(path)) {
    for (const std::string& name : described_by(path))
      if (is_tokenizer_file(name))
        files.push_back({std::string(kSourceFolder) + name, read_asset(path, name)});
  } else if (path.ends_with(".json")) {
    const fs::path file(path);
    files.push_back(
        {std::string(kSourceFolder) + "tokenizer.json",
         read_asset(file.has_parent_path() ? file.parent_path().string() : ".", file.filename())});
  }
  return files;
}

bool is_tokenizer_file(const std::string& name) {
  const std::string file = fs::path(name).filename().string();
  for (std::string_view begin :
       {"tokenizer", "vocab", "merges", "special_tokens_map", "added_tokens", "chat_template"})
    if (file.starts_with(begin)) return true;
  return file.ends_with(".model") || file.ends_with(".tiktoken") || file.ends_with(".jinja");
}

TensorFiles read_tensor_files(const std::string& checkpoint) {
  TensorFiles files;
  const std::string path = checkpoint + "/" + std::string(kTensorFiles);
  if (!fs::exists(path)) return files;
  const Json json = Json::read(path);
  for (const auto& [tensor, file] : json.as_object()) files[tensor] = file.as_string();
  return files;
}

}  // namespace megatron
