#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/nearest.h"
#include "megatron/base/progress.h"
#include "megatron/cli/command.h"
#include "megatron/cli/help_text.h"
#include "megatron/cli/refusal_claim.h"
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
  return text.empty() ? command.help() : text;
}

// As wide as the terminal; what goes elsewhere, as wide as most of them are.
void print_help(std::FILE* out, const std::string& text) {
  constexpr size_t kUsualColumns = 80, kFewestColumns = 40;
  fmt::print(out, "{}", fill_help(text, std::max(kFewestColumns, terminal_columns(out, kUsualColumns))));
}

// A file or folder that the user named and that cannot be used is refused; other faults of files are the
// machine's.
int exit_code_of(const std::filesystem::filesystem_error& error) {
  for (const std::errc code :
       {std::errc::permission_denied, std::errc::operation_not_permitted,
        std::errc::no_such_file_or_directory, std::errc::not_a_directory, std::errc::is_a_directory,
        std::errc::filename_too_long, std::errc::too_many_symbolic_link_levels})
    if (error.code() == code) return 1;
  return 3;
}

std::string text_of(const std::filesystem::filesystem_error& error) {
  return fmt::format("{}{}{}: {}", error.path1().string(), error.path2().empty() ? "" : " and ",
                     error.path2().string(), error.code().message());
}

int dispatch(std::span<const Command> table, std::vector<std::string> args, std::FILE* out, Log log) {
  log = take_verbosity(args, log);
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || (args[0] == "help" && args.size() == 1)) {
    print_help(out, overview(table));
    return 0;
  }
  if (args[0] == "--version") {
    fmt::print(out, "{}", describe(build_info()));
    return 0;
  }
  if (args[0] == "help" && args[1] == "settings") {
    print_help(out, settings_help());
    return 0;
  }
  if (args[0] == "help") {
    print_help(out, help_of(find_command(table, args[1]), {args.begin() + 2, args.end()}));
    return 0;
  }
  const Command& command = find_command(table, args[0]);
  args.erase(args.begin());
  if (wants_help(args)) {
    print_help(out, help_of(command, args));
    return 0;
  }
  Invocation invocation{std::move(args), out, log};
  return command.run(invocation);
}

// A place that makes no sense is one of its own: it is what the refusal is about.
LaunchPlace job_place() try {
  return find_place([](const char* name) { return std::getenv(name); });
} catch (const Error&) {
  return {};
}

}  // namespace

void print_path(const Invocation& invocation, const std::string& path, bool json) {
  Json document = Json::object();
  document["path"] = path;
  fmt::print(invocation.out, "{}\n", json ? document.dump() : path);
}

int run_cli(std::span<const Command> table, std::vector<std::string> args, std::FILE* out, std::FILE* err) {
  constexpr int fault = 3;
  const auto complain = [&](const std::string& message) { fmt::print(err, "megatron: {}\n", message); };
  try {
    const int code = dispatch(table, std::move(args), out, Log(LogLevel::info, err));
    if (std::fflush(out) != 0) fail("cannot write the results: the output is full or closed");
    return code;
  } catch (const Error& error) {
    std::fflush(out);
    const LaunchPlace place = job_place();
    if (error.exit_code() > 2 || place.processes == 1) {
      complain(error.what());
    } else {  // all processes of a job are given the same words
      const RefusalClaim claim(place, error.what());
      if (claim.is_own()) complain(error.what());
    }
    return error.exit_code();
  } catch (const std::filesystem::filesystem_error& error) {
    std::fflush(out);
    complain(text_of(error));
    return exit_code_of(error);
  } catch (const std::bad_alloc&) {
    complain("out of host memory");
    return fault;
  } catch (const std::exception& error) {
    complain(error.what());
    return fault;
  }
}

}  // namespace megatron
