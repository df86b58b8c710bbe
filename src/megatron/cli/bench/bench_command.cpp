#include "megatron/cli/commands.h"

#include <array>

#include "megatron/base/error.h"
#include "megatron/cli/bench/bench_parts.h"

namespace megatron {
namespace {

constexpr std::array kBenches{
    Command{"ops", "every kernel against this machine's ceilings", bench_ops_help, run_bench_ops},
    Command{"train", "tokens per second of a named model", bench_train_help, bench_train},
    Command{"ckpt", "saving and loading a named model against the speed of the disk", bench_ckpt_help,
            bench_ckpt},
    Command{"data", "megabytes of text that a tokenizer encodes", bench_data_help, bench_data},
    Command{"generate", "tokens per second that a named model writes", bench_generate_help, bench_generate},
    Command{"serve", "latencies of a server under load", bench_serve_help, bench_serve},
    Command{"comm", "every collective against the speed of a copy", bench_comm_help, bench_comm},
};

}  // namespace

std::string bench_help() {
  std::string text =
      "usage: megatron bench WHAT ...\n"
      "\n"
      "Measures speed on this machine; megatron bench WHAT --help tells more.\n"
      "\n";
  for (const Command& bench : kBenches) text += fmt::format("  {:<8}  {}\n", bench.name, bench.summary);
  return text;
}

std::string bench_part_help(std::string_view part) {
  for (const Command& bench : kBenches)
    if (bench.name == part) return bench.help();
  return "";
}

int run_bench(Invocation& invocation) {
  std::string names;
  for (const Command& bench : kBenches) {
    if (!invocation.args.empty() && bench.name == invocation.args[0]) {
      invocation.args.erase(invocation.args.begin());
      return bench.run(invocation);
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", bench.name);
  }
  throw UsageError(fmt::format("bench: say what to measure: {}", names));
}

}  // namespace megatron
