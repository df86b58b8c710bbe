#include "megatron/config/sources/compat.h"

#include <array>
#include <string>
#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/string_list.h"

namespace megatron {
namespace {

// Cuts off what stands before `separator`.
std::string_view take(std::string_view& rest, std::string_view separator) {
  const size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + separator.size(), rest.size()));
  return part;
}

CompatRow::Verdict read_verdict(std::string_view word) {
  if (word == "ignored") return CompatRow::Verdict::ignored;
  if (word == "planned") return CompatRow::Verdict::planned;
  require(word == "refused", "compat.tsv: '{}' is no verdict", word);
  return CompatRow::Verdict::refused;
}

CompatRow read_row(std::string_view line) {
  std::array<std::string_view, 6> columns;
  std::string_view rest = line;
  for (std::string_view& column : columns) {
    column = take(rest, "\t");
    require(!column.empty(), "compat.tsv: a column is missing in '{}'", line);
    if (column == "-") column = {};
  }
  const auto [keys, flags, words, defaults, verdict, text] = columns;
  return {keys, flags, words == "+" ? -1 : words == "1" ? 1 : 0, defaults, read_verdict(verdict), text};
}

struct Table {
  std::vector<CompatRow> rows;
  std::unordered_map<std::string, CompatFlag> flags;
  std::unordered_map<std::string_view, const CompatRow*> keys;
  std::vector<std::pair<std::string_view, const CompatRow*>> prefixes;  // of keys that end with a star

  Table() {
    for (std::string_view rest = compat_table; !rest.empty();)
      if (const std::string_view line = take(rest, "\n"); !line.starts_with('#'))
        rows.push_back(read_row(line));
    for (const CompatRow& row : rows) {
      for_each_word(row.keys, [&](std::string_view key) {
        if (key.ends_with('*')) return void(prefixes.emplace_back(key.substr(0, key.size() - 1), &row));
        require(keys.emplace(key, &row).second, "compat.tsv: {} stands twice", key);
      });
      bool first = true;
      for_each_word(row.flags, [&](std::string_view flag) {
        const bool on = !flag.starts_with('!');
        if (!on) flag.remove_prefix(1);
        add_flag(std::string(flag), {&row, on});
        if (on && first && row.is_switch())
          for (const char* prefix : {"--no-", "--disable-"})
            add_flag(prefix + std::string(flag.substr(2)), {&row, false});
        first = false;
      });
    }
  }

  void add_flag(std::string flag, CompatFlag meaning) {
    require(flags.emplace(std::move(flag), meaning).second, "compat.tsv: a flag of '{}' stands twice",
            meaning.row->flags);
  }
};

const Table& table() {
  static const Table all;
  return all;
}

}  // namespace

bool CompatRow::is_default(const Json& value) const {
  if (value.is_null()) return true;
  const std::string shown = show_value(value);
  for (std::string_view rest = defaults; !rest.empty();) {
    const std::string_view one = take(rest, " or ");
    if (one == shown || one == "[" + shown + "]") return true;  // one value may stand for a list of it
  }
  return false;
}

std::span<const CompatRow> compat_rows() { return table().rows; }

CompatFlag find_compat_flag(std::string_view flag) {
  const auto found = table().flags.find(canonical_flag(flag));
  return found == table().flags.end() ? CompatFlag{} : found->second;
}

const CompatRow* find_compat_key(std::string_view key) {
  for (const auto& [prefix, row] : table().prefixes)
    if (key.starts_with(prefix)) return row;
  while (true) {
    if (const auto found = table().keys.find(key); found != table().keys.end()) return found->second;
    if (key.find('.') == std::string_view::npos) return nullptr;
    key = key.substr(0, key.rfind('.'));
  }
}

bool is_compat_section(std::string_view name) {
  for (const auto& [key, row] : table().keys)
    if (key.starts_with(name) && (key.size() == name.size() || key[name.size()] == '.')) return true;
  return false;
}

std::string_view verdict_text(CompatRow::Verdict verdict) {
  switch (verdict) {
    case CompatRow::Verdict::ignored:
      return "accepted, no effect here";
    case CompatRow::Verdict::planned:
      return "not available yet in this build";
    case CompatRow::Verdict::refused:
      return "not part of this program";
  }
  return "";
}

}  // namespace megatron
