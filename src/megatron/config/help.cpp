#include "megatron/config/help.h"

#include <fmt/core.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"
#include "megatron/config/rules/rules.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/shorthand.h"
#include "megatron/config/sources/string_list.h"

namespace megatron {
namespace {

// What stands after the flag in help: " N", " {a,b}", nothing for a switch.
std::string placeholder(const Setting& setting) {
  if (setting.is_boolean()) return "";
  if (setting.is_pattern) return " N|LIST";
  switch (setting.type) {
    case ValueType::integer:
    case ValueType::optional_integer:
      return " N";
    case ValueType::real:
    case ValueType::optional_real:
      return " X";
    case ValueType::integers:
      return " N...";
    case ValueType::reals:
      return " X...";
    case ValueType::texts:
      return " TEXT...";
    case ValueType::choice:
    case ValueType::text:
      break;
    default:
      return " VALUE";
  }
  if (setting.choices.empty()) return " TEXT";
  std::string names;
  for (std::string_view choice : setting.choices) names += (names.empty() ? " {" : ",") + std::string(choice);
  return names + "}";
}

std::string shown_default(const Catalog::Entry& entry) {
  if (!entry.setting->unset.empty()) return std::string(entry.setting->unset);
  return show_value(default_value(entry));
}

// What of a setting this build does not have, for lists of settings; "" where all of it acts.
std::string missing_part(const Setting& setting) {
  if (!setting.limit) return "";
  std::string which;
  for (std::string_view value : setting.limit->values)
    which += (which.empty() ? ": " : ", ") + std::string(value);
  return fmt::format(" (not available yet{})", which);
}

// Limits of kernels depend on many settings; they are a rule of the one that would be refused.
bool concerns(const Rule& rule, const Setting& setting) {
  constexpr std::string_view kDevice = "run.device ";
  std::string_view keys = rule.keys;
  if (keys.starts_with(kDevice) && rule.says.starts_with("on GPUs")) {
    keys.remove_prefix(kDevice.size());
    return covers_name(keys.substr(0, keys.find(' ')), setting.name());
  }
  return covers_name(rule.keys, setting.name());
}

struct FlagHelp {
  std::string flag, help;
};

// The flag that changes the default, and what it does.
FlagHelp help_of(const Setting& setting) {
  const Catalog::Entry& entry = *Catalog::all().find(setting.name());
  const bool is_on = setting.is_boolean() && default_value(entry) == Json(true);
  const std::vector<std::string>& flags = is_on ? setting.off_flags : setting.flags;
  return {flags.empty() ? setting.name() + "=" : flags.front() + placeholder(setting),
          fmt::format("{}{}{}{}", is_on ? "off: " : "", setting.help,
                      setting.is_boolean() ? "" : fmt::format(" [{}]", shown_default(entry)),
                      missing_part(setting))};
}

// A key may come with its section or without.
std::vector<std::string> nearest_settings(std::string_view name) {
  const Catalog& catalog = Catalog::all();
  if (name.find('.') != std::string_view::npos) return nearest(name, catalog.names());
  std::vector<std::string> keys, full;
  for (const Catalog::Entry& entry : catalog.entries()) keys.emplace_back(entry.setting->key);
  for (const std::string& key : nearest(name, keys))
    for (const Catalog::Entry& entry : catalog.entries())
      if (entry.setting->key == key && std::ranges::find(full, entry.setting->name()) == full.end())
        full.push_back(entry.setting->name());
  return full;
}

const Catalog::Entry& find_setting(std::string_view name) {
  const Catalog& catalog = Catalog::all();
  if (name.starts_with('-')) {
    if (const Catalog::Flag* flag = catalog.find_flag(name)) return *flag->entry;
  } else if (const Catalog::Entry* entry = catalog.find(name)) {
    return *entry;
  }
  std::vector<std::string> same;
  for (const Catalog::Entry& entry : catalog.entries())
    if (entry.setting->key == name) same.push_back(entry.setting->name());
  if (same.size() == 1) return *catalog.find(same.front());
  if (same.empty() && name.starts_with('-')) same = nearest(name, catalog.flags());
  if (same.empty() && !name.starts_with('-')) same = nearest_settings(name);
  throw ConfigError(fmt::format("there is no setting '{}': {}", name,
                                same.empty() ? "see megatron config show" : did_you_mean(same)));
}

std::string explain_section(std::string_view name) {
  std::string text;
  for (const Section& section : sections()) {
    if (section.schema->section() != name) continue;
    text += fmt::format("{}# {}\n", text.empty() ? "" : "\n", section.schema->title());
    for (const Setting& setting : section.schema->rows())
      text += fmt::format("  {}: {}\n", setting.name(), setting.help);
  }
  if (!text.empty()) return text;
  for (const CompatRow& row : compat_rows())  // a section of which nothing is built
    if (row.name().starts_with(std::string(name) + "."))
      text += fmt::format("  {}: {}: {}\n", row.name(), verdict_text(row.verdict), row.text);
  return text;
}

const CompatRow* find_compat(std::string_view name) {
  if (name.starts_with('-')) return find_compat_flag(name).row;
  if (Catalog::all().find(name)) return nullptr;
  return find_compat_key(name);
}

std::string explain_compat(const CompatRow& row, std::string_view name) {
  std::string text = fmt::format("{}\n  {}: {}\n", name, verdict_text(row.verdict), row.text);
  if (!row.defaults.empty()) text += fmt::format("  default:  {}\n", row.defaults);
  return text;
}

// What this build does with a setting that it knows.
std::string explain_limit(const Setting& setting) {
  if (!setting.limit) return "acts";
  const Limit& limit = *setting.limit;
  std::string which;
  for (std::string_view value : limit.values) which += (which.empty() ? " " : ", ") + std::string(value);
  return fmt::format("not available yet{} ({})", which, limit.feature);
}

}  // namespace

Json explain_json(std::string_view name) {
  Json result = Json::object();
  result["name"] = name;
  result["text"] = explain_setting(name);
  if (find_shorthand(name) || find_compat(name) || !explain_section(name).empty()) return result;
  const Catalog::Entry& entry = find_setting(name);
  const Setting& setting = *entry.setting;
  result["name"] = setting.name();
  result["help"] = setting.help;
  result["value"] = describe_values(setting);
  result["default"] = default_value(entry);
  const auto list = [](const std::vector<std::string>& words) {
    return Json(Json::Array(words.begin(), words.end()));
  };
  result["flags"] = list(setting.flags);
  result["off_flags"] = list(setting.off_flags);
  Json& rules = result["rules"] = Json::array();
  for (const Rule& rule : all_rules())
    if (concerns(rule, setting)) rules.push_back(rule.says);
  return result;
}

std::string settings_overview() {
  constexpr std::string_view usual =
      "model.num_layers model.hidden_size model.num_attention_heads model.seq_length "
      "tokenizer.vocab_size train.micro_batch_size train.global_batch_size train.train_iters "
      "optimizer.lr run.ranks run.device run.mixed_precision model.tensor_model_parallel_size "
      "model.sequence_parallel model.pipeline_model_parallel_size model.context_parallel_size "
      "model.expert_model_parallel_size ddp.use_distributed_optimizer checkpoint.save "
      "checkpoint.save_interval checkpoint.load logger.log_interval";
  std::string text =
      "settings by Megatron's names; the weakest source first: --hf DIR, --recipe NAME,\n"
      "--config FILE.yaml or --yaml-cfg FILE (Megatron-LM's), flags, section.key=value\n";
  for_each_word(usual, [&](std::string_view name) {
    const auto [flag, help] = help_of(*Catalog::all().find(name)->setting);
    text += fmt::format("  {:<{}}  {}\n", flag, 34, help);
  });
  size_t count = 0;
  for (const Section& section : sections()) count += section.schema->rows().size();
  return text +
         fmt::format("\nmegatron help settings lists all {}, megatron explain KEY tells more about one.\n",
                     count);
}

std::string settings_help() {
  std::string text =
      "settings, weakest source first: --hf DIR, --recipe NAME, --config FILE.yaml, flags,\n"
      "section.key=value\n"
      "(megatron explain KEY tells more about one of them)\n";
  for (const Section& section : sections()) {
    text += fmt::format("\n{} ({}.*)\n", section.schema->title(), section.schema->section());
    for (const Setting& setting : section.schema->rows()) {
      const auto [flag, help] = help_of(setting);
      text += fmt::format("  {}\n      {}\n", flag, help);
    }
  }
  text += "\nshort for several settings\n";
  for (const Shorthand& shorthand : shorthands())
    text += fmt::format("  {}\n      {}\n", shorthand.flag, shorthand.help);
  return text;
}

std::string explain_setting(std::string_view name) {
  if (const Shorthand* shorthand = find_shorthand(name))
    return fmt::format("{}\n  {}\n  short for: {}\n", name, shorthand->help, shorthand->settings);
  if (const CompatRow* row = find_compat(name)) return explain_compat(*row, name);
  if (std::string section = explain_section(name); !section.empty()) return section;
  const Catalog::Entry& entry = find_setting(name);
  const Setting& setting = *entry.setting;
  std::string text = fmt::format("{}\n  {}\n", setting.name(), setting.help);
  text += fmt::format("  value:    {}\n", describe_values(setting));
  text += fmt::format("  default:  {}\n", shown_default(entry));
  if (!setting.flags.empty())
    text += fmt::format("  flag:     {}{}\n", joined(setting.flags, ", "), placeholder(setting));
  if (!setting.off_flags.empty()) text += fmt::format("  off:      {}\n", joined(setting.off_flags, ", "));
  if (!setting.aliases.empty())
    text +=
        fmt::format("  also:     {}\n",
                    joined(std::vector<std::string>(setting.aliases.begin(), setting.aliases.end()), ", "));
  if (!setting.search.empty())
    text += fmt::format("  tuned:    {}\n", show_value(Json(Json::Array(setting.search))));
  text += fmt::format("  build:    {}\n", explain_limit(setting));
  if (setting.condition) text += fmt::format("  needs:    {}\n", setting.condition->needs);
  for (const Shorthand& shorthand : shorthands())
    if (shorthand.settings.find(setting.name() + "=") != std::string_view::npos)
      text += fmt::format("  set by:   {}\n", shorthand.flag);
  for (const Rule& rule : all_rules())
    if (concerns(rule, setting)) text += fmt::format("  rule:     {}\n", rule.says);
  return text;
}

}  // namespace megatron
