#include "megatron/config/sources/merge.h"

#include <fmt/format.h>
#include <algorithm>

#include <charconv>

#include "megatron/base/nearest.h"
#include "megatron/config/config.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/interpolate.h"
#include "megatron/config/sources/presets.h"
#include "megatron/config/sources/shorthand.h"
#include "megatron/config/sources/value_parser.h"
#include "megatron/config/sources/yaml.h"
#include "megatron/config/sources/yaml_arguments.h"

namespace megatron {
namespace {

// A name split into the setting it begins with and the path inside that setting's value.
struct Target {
  const Catalog::Entry* entry = nullptr;
  std::vector<std::string> path;
};

Target find_target(std::string_view name) {
  Target target;
  while (true) {
    target.entry = Catalog::all().find(name);
    const size_t dot = name.rfind('.');
    if (target.entry || dot == std::string_view::npos) return target;
    target.path.insert(target.path.begin(), std::string(name.substr(dot + 1)));
    name = name.substr(0, dot);
  }
}

// Rows that are no matter of the model: how images are cut and written in the text, what learns, and that the
// run of a checkpoint began with a dense model.
bool is_of_the_run(std::string_view key) {
  constexpr std::string_view kKeys[] = {"dynamic_resolution",
                                        "dynamic_resolution_min_patches",
                                        "dynamic_resolution_max_patches",
                                        "use_tiling",
                                        "max_num_tiles",
                                        "use_thumbnail",
                                        "use_area_weighted_aspect_ratio",
                                        "use_tile_tags",
                                        "image_tag_type",
                                        "tokenizer_prompt_format",
                                        "force_system_message",
                                        "prompt_path",
                                        "image_processor",
                                        "recompute_vision",
                                        "freeze_language_model",
                                        "freeze_vision_model",
                                        "freeze_vision_projection",
                                        "moe_use_upcycling",
                                        "moe_upcycling_granularity"};
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

class Merger {
 public:
  explicit Merger(const Sources& sources) : sources_(sources), catalog_(Catalog::all()) {
    merged_.values.resize(catalog_.entries().size());
    merged_.origins.resize(catalog_.entries().size());
    merged_.problems = sources.problems;
  }

  Merged run() {
    hf();
    if (sources_.recipe) yaml(*sources_.recipe, Source::recipe);
    if (sources_.file) yaml(*sources_.file, Source::file);
    for (const FlagUse& use : sources_.flags) flag(use);
    for (const std::string& text : sources_.overrides) override_text(text);
    for (const FlagUse& use : sources_.flags)
      if (const Shorthand* shorthand = find_shorthand(use.name); shorthand && shorthand->yields)
        expand(*shorthand, use);
    checkpoint();
    interpolate(merged_);
    preset();
    report_compat();
    return std::move(merged_);
  }

 private:
  void hf() {
    if (sources_.hf.is_null()) return;
    for (const auto& [key, value] : sources_.hf.as_object())
      assign("model." + key, value, {Source::hf, sources_.hf_origin});
  }

  // What model it is, a checkpoint knows better than anybody else. The length of sequences is the run's own,
  // and the vocabulary its tokenizer's.
  void checkpoint() {
    if (sources_.checkpoint.is_null()) return;
    for (const Schema* rows : {&schema<ModelConfig>(), &schema<MoeConfig>(), &schema<VisionConfig>()})
      for (const Setting& setting : rows->rows()) {
        const Catalog::Entry& entry = *catalog_.find(setting.name());
        const Json* saved = sources_.checkpoint.find(setting.key);
        const std::optional<Json>& given = merged_.values[entry.index];
        const bool given_counts = setting.key == "seq_length" || setting.key == "vocab_size";
        if ((!saved && !given) || (given && given_counts) || is_of_the_run(setting.key)) continue;
        const Json value = saved ? *saved : default_value(entry);
        // By whom it is known what --seq-length counts: see add_image_tokens().
        if (setting.key == "vision_image_size" && given && *given == value) continue;
        if (given && !(*given == value))
          note(fmt::format("{}: the checkpoint {} has {}", merged_.origins[entry.index].where,
                           sources_.checkpoint_origin, show_value(value)));
        set(entry, value, {Source::checkpoint, sources_.checkpoint_origin});
      }
    if (sources_.checkpoint_layout.is_null()) return;
    for (const auto& [key, value] : sources_.checkpoint_layout.as_object())
      set(*catalog_.find("model." + key), value, {Source::checkpoint, sources_.checkpoint_origin});
  }

  void yaml(const ConfigText& file, Source source) {
    std::vector<YamlEntry> entries;
    try {
      entries = read_yaml(file.text, file.name);
    } catch (const ConfigError& error) {
      // It begins with the file's name, and the line where there is one.
      const std::string text = error.what();
      const size_t colon = text.find(": ", file.name.size());
      merged_.problems.push_back({text.substr(0, colon), "", "", text.substr(colon + 2), ""});
      return;
    }
    const bool arguments = names_arguments(entries);
    for (const YamlEntry& entry : entries) {
      const Origin origin = {source, fmt::format("{}:{}", file.name, entry.line)};
      if (arguments) {
        argument(entry, origin);
        continue;
      }
      if (entry.name.ends_with("._target_") || entry.name.ends_with("._partial_") ||
          entry.name.ends_with("._call_")) {
        note(fmt::format("{} ({}): a section has one kind here", entry.name, origin.where));
      } else if (entry.name.find('.') == std::string::npos && !catalog_.find(entry.name) &&
                 (catalog_.is_section(entry.name) || is_compat_section(entry.name))) {
        if (!entry.value.is_null())
          problem(entry.name, show_value(entry.value), origin, "a section is a mapping",
                  "write its settings below it, indented");
      } else {
        assign(entry.name, entry.value, origin);
      }
    }
  }

  // A line of a file that names Megatron-LM's flags.
  void argument(const YamlEntry& entry, const Origin& origin) {
    YamlArgument found;
    try {
      found = yaml_argument(entry);
    } catch (const ConfigError& error) {
      return problem(entry.name, show_value(entry.value), origin, error.what(), "");
    }
    if (found.left_out) return;
    for (auto& [name, value] : found.settings) assign(name, std::move(value), origin);
    if (found.row) return use_compat(*found.row, entry.name, entry.value, origin);
    if (!found.settings.empty()) return;
    const std::string key = entry.name.substr(entry.name.find('.') + 1);
    problem(entry.name, "", origin, "there is no such setting",
            did_you_mean(nearest("model." + key, catalog_.names())));
  }

  void expand(const Shorthand& shorthand, const FlagUse& use) {
    const Origin origin = {Source::flag, use.text()};
    const Json given = shorthand.values() > 0 ? parse_scalar(use.values.front()) : Json();
    for (auto& [name, value] : settings_of(shorthand, given))
      if (!shorthand.yields || !merged_.values[catalog_.find(name)->index])
        assign(name, std::move(value), origin);
  }

  void flag(const FlagUse& use) {
    const Origin origin = {Source::flag, use.text()};
    if (const Shorthand* shorthand = find_shorthand(use.name)) {
      if (!shorthand->yields) expand(*shorthand, use);
    } else if (const Catalog::Flag* found = catalog_.find_flag(use.name)) {
      const Setting& setting = *found->entry->setting;
      if (setting.is_boolean() && use.values.empty()) return set(*found->entry, Json(found->on), origin);
      const ParsedValue parsed = parse_flag_values(setting, use.values);
      if (parsed.error)
        return problem(setting.name(), show_words(use), origin, parsed.error.reason, parsed.error.fix);
      set(*found->entry, parsed.value, origin);
    } else if (const CompatFlag compat = find_compat_flag(use.name); compat.row) {
      use_compat(*compat.row, use.text(), compat_value(compat, use.values), origin);
    }
  }

  static Json compat_value(const CompatFlag& flag, const std::vector<std::string>& words) {
    if (words.empty()) return Json(flag.on);
    if (words.size() == 1) {
      const ParsedValue one = parse_override_value(words.front());
      return one.error ? Json(words.front()) : one.value;
    }
    Json list = Json::array();
    for (const std::string& word : words) list.push_back(parse_scalar(word));
    return list;
  }

  static std::string show_words(const FlagUse& use) {
    std::string text;
    for (const std::string& value : use.values) text += (text.empty() ? "" : " ") + value;
    return text;
  }

  void override_text(const std::string& text) {
    const Origin origin = {Source::override_value, text};
    std::string_view rest = text;
    const bool remove = rest.starts_with('~');
    const bool add_or_set = rest.starts_with("++");
    const bool add = rest.starts_with('+') && !add_or_set;
    rest.remove_prefix(add_or_set ? 2 : (add || remove ? 1 : 0));
    const size_t equals = std::min(rest.find('='), rest.size());
    const std::string name(rest.substr(0, equals));
    const Target target = find_target(name);
    ParsedValue parsed;
    if (equals < rest.size()) {
      const std::string_view value = rest.substr(equals + 1);
      if (target.entry && target.entry->setting->is_pattern) parsed = parse_pattern(value);
      if (parsed.value.is_null()) parsed = parse_override_value(value);
    }
    if (parsed.error)
      return problem(name, std::string(rest.substr(equals + 1)), origin, parsed.error.reason,
                     parsed.error.fix);
    if (remove) return remove_value(name, equals < rest.size() ? &parsed.value : nullptr, origin);
    if (add && target.entry && target.path.empty())
      return problem(name, "", origin, "the setting exists already",
                     fmt::format("leave out the +: {}", rest));
    assign(name, parsed.value, origin, add || add_or_set);
  }

  // ~a.b: back to the default, whatever weaker sources said; ~a.b=value only if that is the value.
  void remove_value(const std::string& name, const Json* expected, const Origin& origin) {
    const Target target = find_target(name);
    if (const CompatRow* row = target.entry ? nullptr : find_compat_key(name)) {
      std::erase_if(compat_, [&](const CompatUse& use) { return use.row == row; });
      return;
    }
    if (!target.entry) return unknown(name, origin);
    std::optional<Json>& value = merged_.values[target.entry->index];
    const Json current = value ? *value : default_value(*target.entry);
    if (target.path.empty()) {
      if (expected && !(current == *expected))
        return problem(name, show_value(current), origin, fmt::format("it is not {}", show_value(*expected)),
                       "leave the value out to remove it in any case");
      value.reset();
      merged_.origins[target.entry->index] = {};
      return;
    }
    Json whole = current;
    Json* parent = &whole;
    for (size_t i = 0; i + 1 < target.path.size() && parent; ++i) parent = child(*parent, target.path[i]);
    const Json* old = parent && parent->is_object() ? parent->find(target.path.back()) : nullptr;
    if (!old) return problem(name, "", origin, "there is no such entry to remove", "");
    if (expected && !(*old == *expected))
      return problem(name, show_value(*old), origin, fmt::format("it is not {}", show_value(*expected)),
                     "leave the value out to remove it in any case");
    std::erase_if(parent->as_object(),
                  [&](const auto& member) { return member.first == target.path.back(); });
    set(*target.entry, whole, origin);
  }

  static Json* child(Json& parent, const std::string& step) {
    if (parent.is_object()) return const_cast<Json*>(parent.find(step));
    size_t index = 0;
    const auto [stop, error] = std::from_chars(step.data(), step.data() + step.size(), index);
    const bool inside = parent.is_array() && error == std::errc() && stop == step.data() + step.size() &&
                        index < parent.size();
    return inside ? &parent[index] : nullptr;
  }

  // `may_add`: a path inside a mapping need not exist yet.
  void assign(const std::string& name, Json value, const Origin& origin, bool may_add = false) {
    const Target target = find_target(name);
    if (!target.entry) {
      if (const CompatRow* row = find_compat_key(name))
        return use_compat(*row, name, std::move(value), origin);
      return unknown(name, origin);
    }
    const Setting& setting = *target.entry->setting;
    if (target.path.empty()) {
      const bool as_words =
          value.is_string() &&
          (setting.is_pattern || setting.type == ValueType::integers || setting.type == ValueType::reals) &&
          value.as_string().find("${") == std::string::npos;
      if (!as_words) return set(*target.entry, std::move(value), origin);
      const std::string word = value.as_string();
      const ParsedValue parsed = parse_flag_values(setting, std::span(&word, 1));
      if (parsed.error) return problem(name, word, origin, parsed.error.reason, parsed.error.fix);
      return set(*target.entry, parsed.value, origin);
    }
    if (setting.type != ValueType::json && !setting.is_list()) return unknown(name, origin);
    const std::optional<Json>& old = merged_.values[target.entry->index];
    Json whole = old ? *old : default_value(*target.entry);
    Json* place = &whole;
    for (size_t i = 0; i < target.path.size(); ++i) {
      Json* next = child(*place, target.path[i]);
      const bool mapping = place->is_object() || place->is_null();
      if (!next && mapping && (may_add || setting.key == "env_vars" || place->is_null()))
        next = &(*place)[target.path[i]];
      if (!next)
        return problem(name, show_value(value), origin, fmt::format("there is no entry {}", target.path[i]),
                       mapping ? fmt::format("write +{} to add it", name) : "give the whole list");
      place = next;
    }
    *place = std::move(value);
    set(*target.entry, std::move(whole), origin);
  }

  // A flag that repeats what the model says of its projector changes nothing.
  bool repeats_model(const Catalog::Entry& entry, const Json& value, const Origin& origin) const {
    const std::string_view key = entry.setting->key;
    return (key == "vision_pixel_shuffle" || key == "language_model_type") && origin.source > Source::hf &&
           merged_.origins[entry.index].source == Source::hf && merged_.values[entry.index] == value;
  }

  void set(const Catalog::Entry& entry, Json value, const Origin& origin) {
    if (repeats_model(entry, value, origin)) return;
    merged_.values[entry.index] = std::move(value);
    merged_.origins[entry.index] = origin;
  }

  // A stronger source's value of a key replaces a weaker one's; flags without a key stand for themselves.
  void use_compat(const CompatRow& row, std::string given, Json value, const Origin& origin) {
    const auto old = std::find_if(compat_.begin(), compat_.end(), [&](const CompatUse& use) {
      return use.row == &row && (!row.defaults.empty() || use.given == given);
    });
    if (old != compat_.end()) compat_.erase(old);
    compat_.push_back({&row, std::move(given), std::move(value), origin});
  }

  void report_compat() {
    for (const auto& [row, given, value, origin] : compat_) {
      if (row->is_default(value)) {
        if (row->keys.empty() && !row->defaults.empty())
          note(given + ": the model is described by its settings");
        continue;
      }
      const std::string reason(verdict_text(row->verdict)), text(row->text);
      switch (row->verdict) {
        case CompatRow::Verdict::ignored:
          note(given == origin.where ? fmt::format("{}: {}", given, text)
                                     : fmt::format("{} ({}): {}", given, origin.where, text));
          break;
        case CompatRow::Verdict::planned:
          merged_.unavailable.push_back({std::string(row->name()), show_value(value), origin.where,
                                         fmt::format("{}: {}", reason, text), "leave it out"});
          break;
        case CompatRow::Verdict::refused:
          problem(given, "", origin, reason, text);
      }
    }
  }

  void unknown(const std::string& name, const Origin& origin) {
    std::vector<std::string> candidates = catalog_.names();
    // A key without its section, or in the wrong one, is found by its last part.
    const std::string last = name.substr(name.rfind('.') + 1);
    std::vector<std::string> same;
    for (const std::string& candidate : candidates)
      if (candidate.ends_with("." + last)) same.push_back(candidate);
    problem(name, "", origin, "there is no such setting",
            did_you_mean(same.empty() ? nearest(name, candidates) : same));
  }

  void problem(std::string name, std::string value, const Origin& origin, std::string reason,
               std::string fix) {
    merged_.problems.push_back(
        {std::move(name), std::move(value), origin.where, std::move(reason), std::move(fix)});
  }

  void note(std::string text) {
    std::vector<std::string>& notes = merged_.notes;
    text = "accepted, no effect here: " + text;
    if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(std::move(text));
  }

  // A precision preset speaks with the strength of whoever named it, but below single settings of that
  // strength.
  void preset() {
    const Catalog::Entry& entry = *catalog_.find("run.mixed_precision");
    const std::optional<Json>& value = merged_.values[entry.index];
    // A list is refused when it is stored; a number would be stored as text.
    if (!value || value->is_null() || value->is_array() || value->is_object()) return;
    const std::string name = show_value(*value);
    if (name.empty()) return;
    const Origin origin = merged_.origins[entry.index];
    const PrecisionPreset* found = find_precision_preset(name);
    if (!found) {
      const std::vector<std::string> names = precision_preset_names();
      const std::string near = did_you_mean(nearest(name, names));
      return problem("mixed_precision", name, origin, "there is no such preset",
                     near.empty() ? fmt::format("use one of {}", fmt::join(names, ", ")) : near);
    }
    if (!found->lacks.empty())
      merged_.unavailable.push_back({"mixed_precision", name, origin.where,
                                     fmt::format("not available yet in this build: {}", found->lacks),
                                     "use bf16 or fp8"});
    if (found->fp8_param)
      note(fmt::format("fp8_param of {} ({}): parameters are kept in 16 bits", found->name, origin.where));
    for (const auto& [name, preset_value] : found->settings) {
      const Catalog::Entry& target = *catalog_.find(name);
      const bool stronger =
          merged_.values[target.index] && merged_.origins[target.index].source >= origin.source;
      if (!stronger)
        set(target, preset_value, {origin.source, fmt::format("{} ({})", origin.where, found->name)});
    }
  }

  // A row of compat.tsv that a source gave.
  struct CompatUse {
    const CompatRow* row;
    std::string given;
    Json value;
    Origin origin;
  };

  const Sources& sources_;
  const Catalog& catalog_;
  std::vector<CompatUse> compat_;
  Merged merged_;
};

}  // namespace

Merged merge(const Sources& sources) { return Merger(sources).run(); }

}  // namespace megatron
