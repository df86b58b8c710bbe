#include <algorithm>
#include <exception>
#include <new>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/nearest.h"
#include "megatron/cli/command.h"
#include "megatron/cli/help_text.h"
#include "megatron/cli/version.h"
#include "megatron/config/help.h"

namespace megatron {

namespace {

std::string overview(std::span<const Command> table) {
  std::string text =
      "megatron: train, convert and run large transformer models\n"
      "\n"
      "usage: megatron COMMAND [arguments]\n";
  if (!table.empty()) text += "\ncommands:\n";
  size_t width = 0;
  for (const Command& command : table) width = std::max(width, command.name.size());
  for (const Command& command : table)
    text += fmt::format("  {:<{}}  {}\n", command.name, width, command.summary);
  text +=
      "\n"
      "options:\n"
      "  --help     this text; after a command, that command's own (help settings: all settings)\n"
      "  --version  version, commit and build options\n"
      "  -q, -v     say less, say more\n";
  return text;
}

const Command& find_command(std::span<const Command> table, const std::string& name) {
  std::vector<std::string> names = {"--help", "--version"};
  for (const Command& command : table) {
    if (command.name == name) return command;
    names.emplace_back(command.name);
  }
  std::string advice = did_you_mean(nearest(name, names));
  if (advice.empty()) advice = "see megatron --help";
  throw UsageError(
      fmt::format("there is no {} '{}': {}", name.starts_with('-') ? "option" : "command", name, advice));
}

// -q and -v may stand anywhere before a "--".
Log take_verbosity(std::vector<std::string>& args, const Log& log) {
  LogLevel level = log.level();
  const auto end = std::find(args.begin(), args.end(), "--");
  const auto kept = std::remove_if(args.begin(), end, [&](const std::string& arg) {
    if (arg == "-q") level = LogLevel::warning;
    if (arg == "-v") level = LogLevel::debug;
    return arg == "-q" || arg == "-v";
  });
  args.erase(kept, end);
  return log.with_level(level);
}

bool wants_help(const std::vector<std::string>& args) {
  const auto end = std::find(args.begin(), args.end(), "--");
  return std::any_of(args.begin(), end,
                     [](const std::string& arg) { return arg == "--help" || arg == "-h"; });
}

std::string help_of(const Command& command, const std::vector<std::string>& args) {
  std::string text;
  if (command.part_help && !args.empty()) text = command.part_help(args[0]);
  return fill_help(text.empty() ? command.help() : text);
}

int dispatch(std::span<const Command> table, std::vector<std::string> args, std::FILE* out, Log log) {
  log = take_verbosity(args, log);
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || (args[0] == "help" && args.size() == 1)) {
    fmt::print(out, "{}", fill_help(overview(table)));
    return 0;
  }
  if (args[0] == "--version") {
    fmt::print(out, "{}", describe(build_info()));
    return 0;
  }
  if (args[0] == "help" && args[1] == "settings") {
    fmt::print(out, "{}", fill_help(settings_help()));
    return 0;
  }
  if (args[0] == "help") {
    fmt::print(out, "{}", help_of(find_command(table, args[1]), {args.begin() + 2, args.end()}));
    return 0;
  }
  const Command& command = find_command(table, args[0]);
  args.erase(args.begin());
  if (wants_help(args)) {
    fmt::print(out, "{}", help_of(command, args));
    return 0;
  }
  Invocation invocation{std::move(args), out, log};
  return command.run(invocation);
}

}  // namespace

void print_path(const Invocation& invocation, const std::string& path, bool json) {
  Json document = Json::object();
  document["path"] = path;
  fmt::print(invocation.out, "{}\n", json ? document.dump() : path);
}

int run_cli(std::span<const Command> table, std::vector<std::string> args, std::FILE* out, std::FILE* err) {
  constexpr int fault = 3;
  const auto complain = [&](const char* message) { fmt::print(err, "megatron: {}\n", message); };
  try {
    const int code = dispatch(table, std::move(args), out, Log(LogLevel::info, err));
    if (std::fflush(out) != 0) fail("cannot write the results: the output is full or closed");
    return code;
  } catch (const Error& error) {
    std::fflush(out);
    complain(error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    complain("out of host memory");
    return fault;
  } catch (const std::exception& error) {
    complain(error.what());
    return fault;
  }
}

}  // namespace megatron
