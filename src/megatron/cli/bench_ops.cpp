#include "megatron/cli/bench_ops.h"

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/cli/bench_ceilings.h"
#include "megatron/cli/flags.h"

namespace megatron {
namespace {

struct Settings {
  int64_t threads = available_cores(), repeat = 10;
  bool json = false;
};

std::vector<Flag> flags(Settings& s) {
  return {
      int_flag("--threads", "CPU threads (all cores)", s.threads, 1),
      int_flag("--repeat", "measurements, of which the shortest counts (10)", s.repeat, 1),
      switch_flag("--json", "one JSON document", s.json),
  };
}

}  // namespace

std::string bench_ops_help() {
  Settings unused;
  return "usage: megatron bench ops [options]\n\n" + flags_help(flags(unused));
}

int run_bench_ops(Invocation& invocation) {
  Settings settings;
  auto words = parse_flags("bench ops", invocation.args, flags(settings));
  if (!words.empty()) throw UsageError(fmt::format("bench ops: '{}' is no option", words[0]));
  CpuPool pool(static_cast<int>(settings.threads));
  Ceilings ceilings(pool, settings.repeat);
  constexpr double large = 256 << 20;
  Json json = Json::object();
  json["copy_one_thread_gbs"] = ceilings.copy_rate(large, false) / 1e9;
  json["copy_gbs"] = ceilings.copy_rate(large) / 1e9;
  if (settings.json) {
    fmt::print(invocation.out, "{}\n", json.dump(2));
    return 0;
  }
  for (const auto& [name, value] : json.as_object())
    fmt::print(invocation.out, "{:<22} {:8.1f}\n", name, value.as_double());
  return 0;
}

}  // namespace megatron
