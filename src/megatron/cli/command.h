#pragma once

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/log.h"

namespace megatron {

// What a subcommand is given: its own arguments (the shared -q and -v already taken out), where results go,
// and where to speak to people.
struct Invocation {
  std::vector<std::string> args;
  std::FILE* out;
  Log log;
};

// Tells what was written, alone or as {"path": …}.
void print_path(const Invocation& invocation, const std::string& path, bool json);

struct Command {
  std::string_view name;
  std::string_view summary;  // one line of `megatron --help`
  std::string (*help)();     // all of `megatron NAME --help`
  int (*run)(Invocation&);   // returns the exit code; faults are thrown as Error
  // Help of `megatron NAME PART`, "" where there is no such part; null where all of it is in help().
  std::string (*part_help)(std::string_view part) = nullptr;
};

// Every command there is, in the order of `megatron --help`.
std::span<const Command> commands();

// The whole program but for the process around it: finds the command, runs it, turns an Error into a message
// on `err` and its exit code.
int run_cli(std::span<const Command> table, std::vector<std::string> args, std::FILE* out, std::FILE* err);

}  // namespace megatron
