#pragma once

#include <span>
#include <string_view>

#include "megatron/base/json.h"

namespace megatron {

// A flag or key of Megatron-LM or Megatron Bridge that does not act here: a row of compat.tsv, which explains
// the columns. Launch scripts that hold it keep working where it changes nothing, and are told what to do
// where it would.
struct CompatRow {
  enum class Verdict { ignored, planned, refused };
  std::string_view keys;
  std::string_view flags;
  int words;  // after the flag; -1: any number
  std::string_view defaults;
  Verdict verdict;
  std::string_view text;

  std::string_view name() const { return keys.substr(0, keys.find(' ')); }
  bool is_switch() const { return words == 0 && !defaults.empty(); }
  bool is_default(const Json& value) const;  // null always is
};

extern const std::string_view compat_table;  // compat.tsv

std::span<const CompatRow> compat_rows();

struct CompatFlag {
  const CompatRow* row = nullptr;  // nullptr where there is none
  bool on = true;                  // false for --no-x and the like
};
CompatFlag find_compat_flag(std::string_view flag);      // '_' and '-' are alike
const CompatRow* find_compat_key(std::string_view key);  // or the key of an entry inside its value
bool is_compat_section(std::string_view name);           // "rl"

// "not available yet in this build" and the like, for people.
std::string_view verdict_text(CompatRow::Verdict verdict);

}  // namespace megatron
