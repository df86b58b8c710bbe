#include "megatron/config/schema/catalog.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/config/schema/value.h"

namespace megatron {

namespace {

// How trainers and servers of other projects call what is the same here.
constexpr std::pair<std::string_view, std::string_view> kOtherSpellings[] = {
    {"--learning-rate", "--lr"},
    {"--adam-epsilon", "--adam-eps"},
    {"--max-grad-norm", "--clip-grad"},
    {"--warmup-steps", "--lr-warmup-iters"},
    {"--per-device-train-batch-size", "--micro-batch-size"},
    {"--train-batch-size", "--global-batch-size"},
    {"--max-seq-length", "--seq-length"},
    {"--max-seq-len", "--seq-length"},
    {"--logging-steps", "--log-interval"},
    {"--save-steps", "--save-interval"},
    {"--eval-steps", "--eval-interval"},
    {"--tensor-parallel-size", "--tensor-model-parallel-size"},
    {"--pipeline-parallel-size", "--pipeline-model-parallel-size"},
    {"--expert-parallel-size", "--expert-model-parallel-size"},
};

}  // namespace

std::string canonical_flag(std::string_view flag) {
  std::string result(flag);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

const Catalog& Catalog::all() {
  static const Catalog catalog;
  return catalog;
}

Catalog::Catalog() {
  for (const Section& section : sections())
    for (const Setting& setting : section.schema->rows())
      entries_.push_back({&setting, &section, entries_.size()});
  for (const Entry& entry : entries_) {
    const auto add_name = [&](std::string name) {
      require(by_name_.emplace(name, entry.index).second, "two settings are called {}", name);
      names_.push_back(std::move(name));
    };
    add_name(entry.setting->name());
    for (std::string_view alias : entry.setting->aliases) add_name(std::string(alias));
    const auto add_flag = [&](const std::string& flag, bool on) {
      require(by_flag_.emplace(canonical_flag(flag), Flag{&entry, on}).second,
              "two settings have the flag {}", flag);
      flags_.push_back(flag);
    };
    for (const std::string& flag : entry.setting->flags) add_flag(flag, true);
    for (const std::string& flag : entry.setting->off_flags) add_flag(flag, false);
  }
}

const Catalog::Entry* Catalog::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

const Catalog::Flag* Catalog::find_flag(std::string_view flag) const {
  std::string name = canonical_flag(flag);
  for (const auto& [other, own] : kOtherSpellings)
    if (name == other) name = own;
  const auto found = by_flag_.find(name);
  return found == by_flag_.end() ? nullptr : &found->second;
}

bool Catalog::is_section(std::string_view name) const {
  return std::any_of(names_.begin(), names_.end(), [&](const std::string& full) {
    return full == name || (full.starts_with(name) && full.size() > name.size() && full[name.size()] == '.');
  });
}

Json default_value(const Catalog::Entry& entry) {
  Config defaults;
  return read_value(*entry.setting, entry.section->object(defaults));
}

}  // namespace megatron
