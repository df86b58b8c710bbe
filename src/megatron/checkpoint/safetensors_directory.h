#pragma once

#include "megatron/base/json.h"
#include "megatron/checkpoint/safetensors.h"

namespace megatron {

// Whether all files of tensors that a directory speaks of are there: weights may be left elsewhere, since
// they are large.
bool holds_whole_safetensors(const std::string& path);

// The tensors of a Hugging Face model: a directory with one model.safetensors, or with shards and the
// model.safetensors.index.json that says where each tensor stands; or one .safetensors file. Every header is
// read when it is opened, and a ConfigError lists what is wrong in any of them: shards that are missing,
// tensors that are not where the index says, names that lead out of the directory.
class SafetensorsDirectory {
 public:
  explicit SafetensorsDirectory(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }  // by name
  const Json& index_metadata() const { return index_metadata_; }        // of the index; null without one
  std::vector<std::string> names() const;                               // sorted
  size_t size() const { return places_.size(); }
  bool contains(std::string_view name) const { return places_.find(name) != places_.end(); }
  // Errors name the nearest tensors.
  const SafetensorsEntry& at(std::string_view name) const { return file_of(name).at(name); }
  const SafetensorsFile& file_of(std::string_view name) const;
  Tensor tensor(std::string_view name) const { return file_of(name).tensor(name); }

 private:
  void open_sharded(const std::string& index_path);
  void add(const std::string& path);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> places_;  // tensor → file
  Json index_metadata_;
};

}  // namespace megatron
