#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// An option of a command that has only a few. Commands that take the whole configuration use config's schema
// instead.
struct Flag {
  std::string_view name;
  std::string_view value;  // what help calls it; "" where the flag takes none
  std::string_view help;
  std::function<void(std::string_view command, const std::string& value)> set;
  bool list = false;  // takes several words, which `set` gets as lines
};

// Flags that write to a variable of the caller.
Flag int_flag(std::string_view name, std::string_view help, int64_t& target, int64_t least = 0);
Flag text_flag(std::string_view name, std::string_view value, std::string_view help, std::string& target);
// Takes several words; each is cut at the characters of `separators` too.
Flag list_flag(std::string_view name, std::string_view value, std::string_view help,
               std::string_view separators, std::vector<std::string>& target);
Flag switch_flag(std::string_view name, std::string_view help, bool& target, bool value = true);

// The words of "a,b,c"; none of "".
std::vector<std::string_view> comma_separated(std::string_view list);
// A whole number, or a UsageError that names command and flag.
int64_t parse_int(std::string_view command, std::string_view flag, std::string_view text);
// A number above 0 and at most `most`, likewise.
double parse_positive(std::string_view command, std::string_view flag, std::string_view text,
                      double most = std::numeric_limits<double>::infinity());

// Reads "--flag value" and "--flag=value", as commands that take settings do; a UsageError names the nearest
// flags. Words that are no flags are returned.
std::vector<std::string> parse_flags(std::string_view command, std::span<const std::string> args,
                                     std::span<const Flag> flags);

// The lines of `--help` that list them.
std::string flags_help(std::span<const Flag> flags);

}  // namespace megatron
