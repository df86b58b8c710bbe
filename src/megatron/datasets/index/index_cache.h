#pragma once

#include <string>
#include <string_view>

#include "megatron/base/json.h"

namespace megatron {

// JSON as Python's json.dumps(value, indent=4) writes it: cache names are hashes of that text.
std::string python_json(const Json& value);

// The files of one cached index, named as Megatron-LM names them: DIR/<md5 of the description>-KIND-NAME.
// Without a directory there is no cache.
class IndexCache {
 public:
  IndexCache() = default;
  // `kind` is the class, and where upstream has it the split: "GPTDataset-train".
  IndexCache(std::string directory, const Json& description, std::string_view kind);

  explicit operator bool() const { return !directory_.empty(); }
  const std::string& description() const { return description_; }
  const std::string& hash() const { return hash_; }
  // The path of one file ("shuffle_index.npy"); "" without a cache.
  std::string path(std::string_view name) const;

  // Whether the facts that upstream's description leaves out were stored and are these.
  enum class Facts { absent, same, different };
  Facts compare(const Json& facts) const;
  // Writes the facts, of an index that was checked. A directory that cannot be written is left as it is.
  void remember(const Json& facts) const;
  // Before an index is built: makes the directory, and forgets the facts of an older one.
  void prepare() const;
  // After the index files: writes description.txt and the facts.
  void publish(const Json& facts) const;

 private:
  std::string directory_, description_, hash_, kind_;
};

}  // namespace megatron
