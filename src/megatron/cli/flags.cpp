#include "megatron/cli/flags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/config/sources/command_line.h"

namespace megatron {

std::vector<std::string_view> comma_separated(std::string_view list) {
  std::vector<std::string_view> words;
  if (list.empty()) return words;
  for (size_t at = 0; at <= list.size(); at += words.back().size() + 1)
    words.push_back(list.substr(at, list.find(',', at) - at));
  return words;
}

int64_t parse_int(std::string_view command, std::string_view flag, std::string_view text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw UsageError(fmt::format("{}: {} needs a whole number, not '{}'", command, flag, text));
  return value;
}

double parse_positive(std::string_view command, std::string_view flag, std::string_view text, double most) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value > 0 && value <= most) return value;
  throw UsageError(fmt::format("{}: {} needs a positive number{}, not '{}'", command, flag,
                               std::isinf(most) ? "" : fmt::format(" of at most {}", most), text));
}

Flag int_flag(std::string_view name, std::string_view help, int64_t& target, int64_t least) {
  return {
      name, "N", help, [name, least, &target](std::string_view command, const std::string& text) {
        target = parse_int(command, name, text);
        if (target < least)
          throw UsageError(fmt::format("{}: {} must be at least {}, not {}", command, name, least, target));
      }};
}

Flag text_flag(std::string_view name, std::string_view value, std::string_view help, std::string& target) {
  return {name, value, help, [&target](std::string_view, const std::string& text) { target = text; }};
}

Flag list_flag(std::string_view name, std::string_view value, std::string_view help,
               std::string_view separators, std::vector<std::string>& target) {
  return {name, value, help,
          [&target, ends = "\n" + std::string(separators)](std::string_view, const std::string& text) {
            target.clear();
            for (size_t at = 0; at < text.size();) {
              const size_t end = std::min(text.find_first_of(ends, at), text.size());
              if (end > at) target.push_back(text.substr(at, end - at));
              at = end + 1;
            }
          },
          true};
}

Flag switch_flag(std::string_view name, std::string_view help, bool& target, bool value) {
  return {name, "", help, [&target, value](std::string_view, const std::string&) { target = value; }};
}

std::vector<std::string> parse_flags(std::string_view command, std::span<const std::string> args,
                                     std::span<const Flag> flags) {
  std::vector<CommandFlag> own;
  for (const Flag& flag : flags)
    own.push_back({flag.name, flag.value.empty() ? 0 : flag.list ? -1 : 1, flag.help});
  CommandLine line = parse_own_flags(args, own);
  if (!line.sources.problems.empty()) {
    Problem& problem = line.sources.problems.front();
    if (problem.fix.empty()) problem.fix = fmt::format("see megatron {} --help", command);
    throw UsageError(fmt::format("{}: {}", command, problem.text()));
  }
  for (const Flag& flag : flags)
    if (const auto given = line.own.find(flag.name); given != line.own.end())
      flag.set(command, fmt::format("{}", fmt::join(given->second, "\n")));
  return std::move(line.words);
}

std::string flags_help(std::span<const Flag> flags) {
  constexpr size_t widest = 34;  // a longer name has a line of its own
  std::string text = "options:\n";
  size_t width = 0;
  const auto name_of = [](const Flag& flag) {
    return fmt::format("{}{}{}", flag.name, flag.value.empty() ? "" : " ", flag.value);
  };
  for (const Flag& flag : flags)
    if (const size_t size = name_of(flag).size(); size <= widest) width = std::max(width, size);
  for (const Flag& flag : flags) {
    const std::string name = name_of(flag);
    text += name.size() > width ? fmt::format("  {}\n  {:<{}}  {}\n", name, "", width, flag.help)
                                : fmt::format("  {:<{}}  {}\n", name, width, flag.help);
  }
  return text;
}

}  // namespace megatron
