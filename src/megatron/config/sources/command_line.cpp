#include "megatron/config/sources/command_line.h"

#include <algorithm>

#include "megatron/base/nearest.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/shorthand.h"

namespace megatron {
namespace {

constexpr int any_number = -1;

bool is_number(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         (std::isdigit(static_cast<unsigned char>(word[1])) || word[1] == '.');
}

bool is_flag(std::string_view word) { return word.size() > 1 && word[0] == '-' && !is_number(word); }

bool is_name(std::string_view text) {
  if (text.empty() || (!std::isalpha(static_cast<unsigned char>(text[0])) && text[0] != '_')) return false;
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
}

bool is_truth(std::string_view word) {
  return word == "true" || word == "false" || word == "True" || word == "False";
}

// model.x=1, +a.b=2, ++a.b=2, ~a.b, ~a.b=3
bool is_override(std::string_view word) {
  const bool removal = word.starts_with('~');
  while (word.starts_with('+') || word.starts_with('~')) word.remove_prefix(1);
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) return removal && is_name(word);
  return is_name(word.substr(0, equals));
}

// Only a known section ends a list of values: data prefixes may hold '='.
bool is_override_of_a_section(std::string_view word) {
  if (!is_override(word)) return false;
  while (word.starts_with('+') || word.starts_with('~')) word.remove_prefix(1);
  const std::string_view section = word.substr(0, word.find_first_of(".="));
  return Catalog::all().is_section(section) || is_compat_section(section);
}

class Parser {
 public:
  Parser(std::span<const std::string> args, std::span<const CommandFlag> own, bool settings)
      : args_(args), own_(own), settings_(settings) {}

  CommandLine parse() {
    while (at_ < args_.size()) {
      const std::string& word = args_[at_++];
      if (word == "--") {
        line_.words.insert(line_.words.end(), args_.begin() + static_cast<std::ptrdiff_t>(at_), args_.end());
        break;
      }
      if (is_flag(word)) {
        flag(word);
      } else if (settings_ && is_override(word)) {
        line_.sources.overrides.push_back(word);
      } else {
        line_.words.push_back(word);
      }
    }
    return std::move(line_);
  }

 private:
  void flag(const std::string& word) {
    const size_t equals = word.find('=');
    FlagUse use;
    use.name = word.substr(0, equals);
    use.attached = equals != std::string::npos;
    if (use.attached) use.values = {word.substr(equals + 1)};
    if (std::string* place = settings_ ? source_flag(use.name) : nullptr) {
      if (take_values(use, 1)) *place = use.values.front();
      return;
    }
    if (const CommandFlag* own = own_flag(use.name)) {
      if (!take_values(use, own->values)) return;
      std::vector<std::string>& values = line_.own[std::string(own->name)];
      if (own->values != any_number) values.clear();  // a list goes on where its flag is repeated
      values.insert(values.end(), use.values.begin(), use.values.end());
      return;
    }
    const std::optional<int> count = settings_ ? setting_values(use) : std::nullopt;
    if (!count) return unknown(use);
    if (!take_values(use, *count)) return;
    if (use.name == "--spec" && !use.values.empty())
      if (const std::string_view known = flag_of_spec(use.values.back()); !known.empty())
        use = {.name = std::string(known)};
    line_.sources.flags.push_back(std::move(use));
  }

  std::string* source_flag(std::string_view name) {
    if (name == "--hf" || canonical_flag(name) == "--model-name-or-path") return &line_.hf_dir;
    if (name == "--recipe") return &line_.recipe_name;
    if (name == "--config" || canonical_flag(name) == "--yaml-cfg") return &line_.config_path;
    return nullptr;
  }

  const CommandFlag* own_flag(std::string_view name) const {
    for (const CommandFlag& flag : own_)
      if (canonical_flag(name) == flag.name) return &flag;
    return nullptr;
  }

  // How many words follow the flag of a setting; nothing where there is no such flag.
  std::optional<int> setting_values(const FlagUse& use) const {
    if (const Shorthand* shorthand = find_shorthand(use.name)) return shorthand->values();
    if (const Catalog::Flag* flag = Catalog::all().find_flag(use.name)) {
      if (flag->entry->setting->is_boolean()) return use.attached && flag->on ? 1 : 0;
      return flag->entry->setting->is_list() ? any_number : 1;
    }
    if (const CompatFlag compat = find_compat_flag(use.name); compat.row)
      return compat.row->is_switch() && use.attached && compat.on ? 1 : compat.row->words;
    return {};
  }

  // Gathers the flag's words; false where they are missing or too many.
  bool take_values(FlagUse& use, int count) {
    if (count == 0 && !use.attached && at_ < args_.size() && is_truth(args_[at_])) {
      const std::string word = args_[at_++];
      return reject(use, fmt::format("'{}' cannot stand apart from a switch", word),
                    fmt::format("write {}, or {}={}", use.name, use.name, word));
    }
    if (use.attached) {
      if (count != 0) return true;
      return reject(use, "takes no value", fmt::format("write {} alone, or leave it out", use.name));
    }
    while (at_ < args_.size() && (count == any_number || static_cast<int>(use.values.size()) < count)) {
      const std::string& word = args_[at_];
      if (is_flag(word) || (settings_ && count == any_number && is_override_of_a_section(word))) break;
      use.values.push_back(word);
      ++at_;
    }
    const size_t needed = count == any_number ? 1 : static_cast<size_t>(count);
    if (use.values.size() >= needed) return true;
    return reject(use, "needs a value",
                  fmt::format("write {} VALUE, or {}=VALUE where it begins with a dash", use.name, use.name));
  }

  bool reject(const FlagUse& use, std::string reason, std::string fix) {
    line_.sources.problems.push_back({use.text(), "", "", std::move(reason), std::move(fix), true});
    return false;
  }

  void unknown(const FlagUse& use) {
    std::vector<std::string> names;
    if (settings_) {
      names = Catalog::all().flags();
      for (const Shorthand& shorthand : shorthands()) names.emplace_back(shorthand.flag);
      names.insert(names.end(), {"--hf", "--config"});
    }
    for (const CommandFlag& flag : own_) names.emplace_back(flag.name);
    reject(use, "there is no such flag", did_you_mean(nearest(canonical_flag(use.name), names)));
    // What follows belonged to it, most likely.
    while (at_ < args_.size() && !is_flag(args_[at_]) && !is_override(args_[at_])) ++at_;
  }

  std::span<const std::string> args_;
  std::span<const CommandFlag> own_;
  bool settings_;  // the command takes settings beside its own flags
  size_t at_ = 0;
  CommandLine line_;
};

}  // namespace

std::string FlagUse::text() const {
  std::string text = name;
  if (attached) return text + "=" + values.front();
  for (const std::string& value : values) text += " " + value;
  return text;
}

std::string CommandLine::get(std::string_view flag, std::string_view fallback) const {
  const auto found = own.find(flag);
  return found == own.end() || found->second.empty() ? std::string(fallback) : found->second.front();
}

CommandLine parse_command_line(std::span<const std::string> args, std::span<const CommandFlag> own) {
  return Parser(args, own, true).parse();
}

CommandLine parse_own_flags(std::span<const std::string> args, std::span<const CommandFlag> own) {
  return Parser(args, own, false).parse();
}

}  // namespace megatron
