#include "megatron/checkpoint/safetensors_directory.h"

#include <filesystem>
#include <set>

#include "megatron/base/nearest.h"
#include "megatron/base/problems.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

// The one file in the directory that ends so; none where there is none, an error where there are several.
std::string find_ending(const std::string& directory, std::string_view ending) {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().ends_with(ending)) found.push_back(entry.path().string());
  if (found.size() > 1)
    throw ConfigError(
        fmt::format("{} holds {} files that end in {}: name one of them", directory, found.size(), ending));
  return found.empty() ? "" : found[0];
}

// The index of the shards, or the one file of tensors; "" where there is neither.
std::string weights_in(const std::string& path) {
  if (!fs::is_directory(path)) return path;
  for (const char* name : {"model.safetensors.index.json", "model.safetensors"})
    if (const fs::path file = fs::path(path) / name; fs::exists(file)) return file.string();
  for (const char* ending : {".safetensors.index.json", ".safetensors"})
    if (std::string file = find_ending(path, ending); !file.empty()) return file;
  return "";
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

bool holds_whole_safetensors(const std::string& path) {
  const std::string file = weights_in(path);
  if (file.empty()) return false;
  if (!file.ends_with(".json")) return true;
  const Json index = Json::read(file);
  const Json* map = index.find("weight_map");
  if (!map || !map->is_object()) return true;  // who reads it tells what is wrong with it
  for (const auto& [name, shard] : map->as_object())
    if (shard.is_string() && !fs::exists(fs::path(file).parent_path() / shard.as_string())) return false;
  return true;
}

SafetensorsDirectory::SafetensorsDirectory(const std::string& path) : path_(path) {
  const std::string file = weights_in(path);
  if (file.empty()) throw ConfigError(fmt::format("{} holds no .safetensors file", path));
  if (file.ends_with(".json")) {
    open_sharded(file);
  } else {
    add(file);
  }
}

void SafetensorsDirectory::add(const std::string& path) {
  files_.emplace_back(path);
  for (const SafetensorsEntry& entry : files_.back().entries())
    places_.emplace(entry.name, files_.size() - 1);
}

void SafetensorsDirectory::open_sharded(const std::string& index_path) {
  Problems problems;
  Json index;
  std::map<std::string, std::set<std::string>> promised;  // file → tensors
  try {
    index = Json::read(index_path);
    for (const auto& [name, file] : index.at("weight_map").as_object())
      promised[file.as_string()].insert(name);
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{} is not an index of safetensors files: {}", index_path, error.what()));
  }
  if (const Json* metadata = index.find("metadata")) index_metadata_ = *metadata;
  for (const auto& [name, tensors] : promised) {
    const fs::path file = fs::path(index_path).parent_path() / name;
    if (!is_plain_name(name)) {
      problems.add("the file name '{}' leads elsewhere", name);
      continue;
    }
    if (!fs::exists(file)) {
      problems.add("{} is missing: {} tensors should be in it, {} for one", name, tensors.size(),
                   *tensors.begin());
      continue;
    }
    try {
      files_.emplace_back(file.string());
    } catch (const Error& error) {
      problems.add("{}", error.what());
      continue;
    }
    for (const std::string& tensor : tensors) {
      if (files_.back().contains(tensor)) {
        places_.emplace(tensor, files_.size() - 1);
      } else {
        problems.add("{} should be in {}, but is not", tensor, name);
      }
    }
    for (const SafetensorsEntry& entry : files_.back().entries())
      if (!tensors.contains(entry.name)) problems.add("{} is in {}, but not in the index", entry.name, name);
  }
  problems.raise(index_path + " and its files do not fit together");
}

std::vector<std::string> SafetensorsDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : places_) names.push_back(name);
  return names;
}

const SafetensorsFile& SafetensorsDirectory::file_of(std::string_view name) const {
  auto found = places_.find(name);
  if (found != places_.end()) return files_[found->second];
  const std::string advice = did_you_mean(nearest(name, names()));
  throw ConfigError(
      fmt::format("{} has no tensor '{}'{}{}", path_, name, advice.empty() ? "" : ": ", advice));
}

}  // namespace megatron
