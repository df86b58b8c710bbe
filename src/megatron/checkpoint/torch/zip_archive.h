#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace megatron {

// A zip archive of stored (uncompressed) entries in memory, as torch.save writes it: entries are views of it.
// A malformed one, and one with compressed entries, is refused with a ConfigError.
class ZipArchive {
 public:
  ZipArchive(std::span<const std::byte> data, std::string origin);

  // The archive's own folder is left out of the names: "data.pkl", "data/0".
  const std::map<std::string, std::span<const std::byte>, std::less<>>& entries() const { return entries_; }
  const std::span<const std::byte>* find(std::string_view name) const;
  std::span<const std::byte> at(std::string_view name) const;  // a ConfigError where absent

 private:
  std::string origin_;
  std::map<std::string, std::span<const std::byte>, std::less<>> entries_;
};

}  // namespace megatron
