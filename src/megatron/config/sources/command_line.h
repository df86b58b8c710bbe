#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/sources/sources.h"

namespace megatron {

// A flag of one command, beside the settings that every command takes.
struct CommandFlag {
  std::string_view name;  // "--prompt"
  int values;             // words that follow it; -1: any number
  std::string_view help;
  bool no_effect = false;  // taken so that scripts of others run; the help says why nothing comes of it
};

// The arguments of a command, sorted.
struct CommandLine {
  std::map<std::string, std::vector<std::string>, std::less<>> own;  // the command's flags that were given
  std::string hf_dir;
  std::string recipe_name;
  std::string config_path;
  Sources sources;                 // flags and overrides; read_sources() adds the rest; problems too
  std::vector<std::string> words;  // what is neither flag nor override

  bool has(std::string_view flag) const { return own.contains(flag); }
  std::string get(std::string_view flag, std::string_view fallback = "") const;
};

CommandLine parse_command_line(std::span<const std::string> args, std::span<const CommandFlag> own = {});
// The same of a command that takes no settings: it has no other flags than its own, and key=value is a word.
CommandLine parse_own_flags(std::span<const std::string> args, std::span<const CommandFlag> own);

}  // namespace megatron
