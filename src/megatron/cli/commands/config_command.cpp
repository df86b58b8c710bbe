#include "megatron/cli/commands.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/config/schema/value.h"
#include "megatron/inference/model_source.h"
#include "megatron/recipes/recipe_catalogue.h"

namespace megatron {
namespace {

constexpr CommandFlag own_flags[] = {
    {"--json", 0, "one JSON document: config, origins, notes, unavailable"},
    {"--changed", 0, "only what was given, not what was derived"},
};

// One section as a table of setting, value and origin.
std::string show_section(const Section& section, const Resolved& resolved, bool changed_only) {
  struct Line {
    std::string name, value, origin;
  };
  std::vector<Line> lines;
  Config& config = const_cast<Config&>(resolved.config);  // only read
  for (const Setting& setting : section.schema->rows()) {
    const Origin& origin = resolved.origin(setting.name());
    if (changed_only && origin.source <= Source::derived) continue;
    lines.push_back(
        {setting.name(), show_value(read_value(setting, section.object(config))), show_origin(origin)});
  }
  if (lines.empty()) return "";
  size_t name_width = 0, value_width = 0;
  for (const Line& line : lines) {
    name_width = std::max(name_width, line.name.size());
    if (line.value.size() <= 40) value_width = std::max(value_width, line.value.size());
  }
  std::string text = fmt::format("# {}\n", section.schema->title());
  for (const Line& line : lines)
    text += fmt::format("{:<{}}  {:<{}}  {}\n", line.name, name_width, line.value, value_width, line.origin);
  return text + "\n";
}

}  // namespace

std::string config_help() {
  std::string text =
      "usage: megatron config show [settings] [options]\n"
      "\n"
      "prints the configuration that the settings give, and where each value came from\n"
      "\n"
      "options:\n";
  for (const CommandFlag& flag : own_flags) text += fmt::format("  {:<9}  {}\n", flag.name, flag.help);
  return text + "\n" + settings_overview();
}

int run_config(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, own_flags);
  if (line.words != std::vector<std::string>{"show"})
    throw UsageError(line.words.empty()
                         ? "config: say what to do: megatron config show [settings]"
                         : fmt::format("config: cannot make sense of '{}': write megatron config show "
                                       "[settings], each setting as --flag value or section.key=value",
                                       line.words.front() == "show" ? line.words[1] : line.words.front()));
  auto read_hf = [](const std::string& directory) {
    return ModelSource::hugging_face(directory).model_settings();
  };
  const Resolved resolved = resolve(read_sources(line, {.hf = read_hf, .recipe = read_recipe}),
                                    {.purpose = Purpose::inspect, .allow_unavailable = true});
  if (line.has("--json")) {
    fmt::print(invocation.out, "{}\n", resolved.to_json().dump(2));
    return 0;
  }
  for (const Section& section : sections())
    fmt::print(invocation.out, "{}", show_section(section, resolved, line.has("--changed")));
  if (resolved.data_parallel_size)
    fmt::print(invocation.out, "{} ranks, data-parallel size {}\n", *resolved.world_size,
               *resolved.data_parallel_size);
  for (const std::string& note : resolved.notes) invocation.log.info("{}", note);
  for (const Problem& problem : resolved.unavailable) invocation.log.warning("{}", problem.text());
  return 0;
}

}  // namespace megatron
