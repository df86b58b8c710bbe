#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/config/config.h"

namespace megatron {

// All settings, found by name and by flag.
class Catalog {
 public:
  struct Entry {
    const Setting* setting;
    const Section* section;
    size_t index;  // its place in entries()
  };
  struct Flag {
    const Entry* entry;
    bool on;  // false for --no-x and the like
  };

  static const Catalog& all();

  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* find(
      std::string_view name) const;  // "model.hidden_size" or an alias of it; nullptr where unknown
  const Flag* find_flag(std::string_view flag) const;  // '_' and '-' are alike
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<std::string>& flags() const { return flags_; }
  bool is_section(std::string_view name) const;

 private:
  Catalog();

  std::vector<Entry> entries_;
  std::vector<std::string> names_;
  std::vector<std::string> flags_;
  std::unordered_map<std::string, size_t> by_name_;
  std::unordered_map<std::string, Flag> by_flag_;
};

// What a setting is where no source gives it.
Json default_value(const Catalog::Entry& entry);

// The spelling under which flags are compared: --seq_length is --seq-length.
std::string canonical_flag(std::string_view flag);

}  // namespace megatron
