#include "megatron/cli/commands/autotune_parts.h"

#include <algorithm>

#include "megatron/autotune/report/simulation_report.h"
#include "megatron/autotune/simulate/stage_layout.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/writable_folder.h"
#include "megatron/cli/commands/autotune_setup.h"
#include "megatron/cli/flags.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/pipeline_layout.h"

namespace megatron {

using namespace autotune;

namespace {

constexpr CommandFlag kSimulateFlags[] = {
    {"--trace", 1, "FILE.json for Perfetto: ranks, messages, collectives"},
    {"--trace-replicas", 1, "pipelines in it, of all that are alike [1]"},
    {"--picture", 1, "FILE.svg: the stages over time"},
    {"--slow", 1, "RANK:FACTOR, as in 37:1.2: a GPU that is slower"},
};

std::vector<CommandFlag> simulate_flags() {
  std::vector<CommandFlag> flags(autotune_plan_flags().begin(), autotune_plan_flags().end());
  flags.insert(flags.end(), std::begin(kSimulateFlags), std::end(kSimulateFlags));
  return flags;
}

// Layers of each chunk that a given layout says; empty without one.
std::vector<int> given_layout(const PlanSetup& setup, ParallelPlan& plan) {
  const std::string& layout = setup.resolved.config.parallel.pipeline_model_parallel_layout;
  if (layout.empty()) return best_stage_layers(setup.inputs(), plan);
  std::vector<int> layers;
  for (const auto& stage : parse_pipeline_layout(layout))
    layers.push_back(static_cast<int>(std::count(stage.begin(), stage.end(), LayerKind::decoder)));
  plan.vpp = std::max(1, static_cast<int>(layers.size()) / plan.pp);
  return layers;
}

struct SlowRank {
  int64_t rank = -1;
  double factor = 1;
};

SlowRank slow_rank(const CommandLine& line, int ranks) {
  if (!line.has("--slow")) return {};
  const std::string text = line.get("--slow");
  const size_t colon = text.find(':');
  if (colon == std::string::npos)
    throw UsageError(fmt::format("autotune simulate: --slow needs RANK:FACTOR, as in 37:1.2 (got {})", text));
  SlowRank slow{parse_int("autotune simulate", "--slow", text.substr(0, colon)),
                parse_positive("autotune simulate", "--slow", text.substr(colon + 1), 1e3)};
  if (slow.rank < 0 || slow.rank >= ranks)
    throw UsageError(fmt::format("autotune simulate: --slow: there is no rank {} of {}", slow.rank, ranks));
  return slow;
}

}  // namespace

std::string autotune_simulate_help() {
  return "usage: megatron autotune simulate [settings] [--cluster FILE] [options]\n"
         "\n"
         "Runs one iteration of all ranks as events: passes in the order of the schedule, messages between\n"
         "stages, weights and gradients on the links, the update. Ranks that do the same are simulated\n"
         "once, so that 16,384 take no longer than one pipeline.\n" +
         autotune_flags_text(simulate_flags()) + "\n" + settings_overview();
}

int run_autotune_simulate(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, simulate_flags());
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune simulate: cannot make sense of '{}'", line.words[0]));
  for (const char* flag : {"--trace", "--picture"})
    if (line.has(flag)) require_file_place(flag, line.get(flag));
  const PlanSetup setup = autotune_plan_setup(line);
  ParallelPlan plan = given_plan(setup);
  SimulationOptions options;
  options.chunk_layers = given_layout(setup, plan);
  const SimulatedIteration run = simulate_iteration(setup.inputs(), plan, options);
  std::string more;
  Json slowed;
  if (const SlowRank slow = slow_rank(line, plan.gpus); slow.rank >= 0) {
    // Its pipeline takes longer; all others wait for it when gradients are reduced.
    options.slow_stage = static_cast<int>(slow.rank / run.ranks_per_stage);
    options.slowdown = slow.factor;
    const double seconds = simulate_iteration(setup.inputs(), plan, options).seconds;
    more = fmt::format("\nwith rank {} (stage {}) at {:.2f} of its time: {:.1f} ms, {:+.1f} %\n", slow.rank,
                       options.slow_stage, slow.factor, seconds * 1e3, 100 * (seconds / run.seconds - 1));
    slowed = seconds * 1e3;
  }
  if (line.has("--trace")) {
    const int64_t replicas = line.has("--trace-replicas") ? parse_int("autotune simulate", "--trace-replicas",
                                                                      line.get("--trace-replicas"))
                                                          : 1;
    write_file_atomically(line.get("--trace"),
                          report::chrome_trace(simulation_trace(run, static_cast<int>(replicas))));
  }
  if (line.has("--picture"))
    write_file_atomically(
        line.get("--picture"),
        simulation_svg(run, fmt::format("{} on {}: {:.1f} ms, bubble {:.1f} %", plan_text(plan),
                                        setup.cluster.name, run.seconds * 1e3, 100 * run.bubble)));
  if (line.has("--json")) {
    Json json = simulation_json(plan, run);
    json["closed_form_ms"] = predict(setup.inputs(), plan).seconds * 1e3;
    if (!slowed.is_null()) json["slowed_iter_ms"] = slowed;
    fmt::print(invocation.out, "{}\n", json.dump(1));
    return 0;
  }
  fmt::print(invocation.out, "{}{}", simulation_text(setup.inputs(), plan, run), more);
  for (const char* flag : {"--trace", "--picture"})
    if (line.has(flag)) fmt::print(invocation.out, "{} is written\n", line.get(flag));
  return 0;
}

}  // namespace megatron
