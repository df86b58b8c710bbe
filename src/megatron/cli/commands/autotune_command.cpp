#include "megatron/cli/commands.h"

#include <array>

#include "megatron/autotune/report/plan_report.h"
#include "megatron/autotune/report/table_report.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/cli/bench/step_profile.h"
#include "megatron/cli/commands/autotune_parts.h"
#include "megatron/cli/commands/autotune_setup.h"
#include "megatron/cli/flags.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"

namespace megatron {
namespace {

using namespace autotune;

constexpr CommandFlag kTableFlags[] = {
    {"--table", 1, "JSON file of measured configurations"},
    {"--draws", 1, "halves that constants are fitted on, the rest judged [20]"},
    {"--seed", 1, "of the draws [1234]"},
    {"--constants", 1, "calibration: FILE, h100 or a100"},
    {"--write-constants", 1, "write what was fitted on the whole table"},
    {"--rows", 0, "print every row"},
    {"--json", 0, "one JSON document"},
};

struct TableRun {
  std::string path;
  Table table;
  Calibration given;
  int draws;
  Evaluation evaluation;
};

TableRun evaluate_table(const CommandLine& line, std::string_view command) {
  const std::string path = line.get("--table");
  const int64_t draws = line.has("--draws") ? parse_int(command, "--draws", line.get("--draws")) : 20;
  if (draws < 0 || draws > 1000)
    throw UsageError(fmt::format("{}: --draws needs 0 to 1000 (got {})", command, draws));
  const int64_t seed = line.has("--seed") ? parse_int(command, "--seed", line.get("--seed")) : 1234;
  TableRun run{path, read_table(path), {}, static_cast<int>(draws), {}};
  run.given = autotune_calibration(line, run.table.published ? "h100" : "a100");
  run.evaluation = evaluate(run.table, run.given, run.draws, static_cast<uint64_t>(seed));
  return run;
}

int predict_table(Invocation& invocation, const CommandLine& line) {
  const TableRun run = evaluate_table(line, "autotune predict");
  if (line.has("--write-constants"))
    write_file_atomically(line.get("--write-constants"), to_json(run.evaluation.calibration).dump(1) + "\n");
  if (line.has("--json")) {
    fmt::print(invocation.out, "{}\n", predict_json(run.table, run.evaluation, run.given, run.draws).dump(1));
    return 0;
  }
  if (line.has("--rows")) fmt::print(invocation.out, "{}\n", rows_text(run.table, run.given));
  fmt::print(invocation.out, "{}", predict_text(run.path, run.table, run.evaluation, run.draws));
  return 0;
}

// A step of the trainer itself on shapes alone, priced op by op; nothing where there is no database for that
// or more than one GPU, whose exchanges the database does not know.
struct PricedStep {
  StepPrice price;
  double memory_gib = 0;
};

std::optional<PricedStep> price_by_ops(const PlanSetup& setup, const ParallelPlan& plan) {
  if (!setup.ops || plan.gpus > 1 || plan.forward_only) return {};
  Config config = setup.resolved.config;
  config.train.global_batch_size = plan.gbs;
  config.train.micro_batch_size = plan.mbs;
  config.model.seq_length = plan.seq;
  config.precision.bf16 = plan.precision != Precision::fp16;
  config.run.ranks = 1;
  const PlannedStep step = planned_step(config, setup.cluster.gpu.name != "CPU");
  return PricedStep{setup.ops->price(step.ops), static_cast<double>(step.memory.total.peak) / (1 << 30)};
}

int run_predict(Invocation& invocation) {
  const bool table = std::any_of(invocation.args.begin(), invocation.args.end(),
                                 [](const std::string& word) { return word.starts_with("--table"); });
  const CommandLine line = table ? parse_command_line(invocation.args, kTableFlags)
                                 : parse_command_line(invocation.args, autotune_plan_flags());
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune predict: cannot make sense of '{}'", line.words[0]));
  if (table) return predict_table(invocation, line);
  const PlanSetup setup = autotune_plan_setup(line);
  const ParallelPlan plan = given_plan(setup);
  const std::optional<PricedStep> step = price_by_ops(setup, plan);
  if (line.has("--json")) {
    Json json = prediction_json(setup.inputs(), plan);
    if (step) {
      Json& ops = json["by_ops"] = Json::object();
      ops["iteration_ms"] = step->price.seconds * 1e3;
      ops["host_ms"] = step->price.host * 1e3;
      ops["memory_gib"] = step->memory_gib;
      ops["unknown_percent"] = 100 * step->price.unknown;
    }
    fmt::print(invocation.out, "{}\n", json.dump(1));
    return 0;
  }
  fmt::print(invocation.out, "{}", prediction_text(setup.inputs(), plan));
  if (step)
    fmt::print(invocation.out, "\nby measured ops of a step: {:.1f} ms, {:.2f} GiB of tensors{}\n",
               step->price.seconds * 1e3, step->memory_gib,
               step->price.unknown > 0.01
                   ? fmt::format("; {:.0f} % by ops that were not measured", 100 * step->price.unknown)
                   : "");
  return 0;
}

int run_rank(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kTableFlags);
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune rank: cannot make sense of '{}'", line.words[0]));
  if (!line.has("--table")) throw UsageError("autotune rank: --table FILE is missing");
  const TableRun run = evaluate_table(line, "autotune rank");
  if (line.has("--json"))
    fmt::print(invocation.out, "{}\n", rank_json(run.table, run.evaluation, run.given, run.draws).dump(1));
  else
    fmt::print(invocation.out, "{}", rank_text(run.path, run.table, run.evaluation, run.given, run.draws));
  return 0;
}

int run_explain_plan(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, autotune_plan_flags());
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune explain: cannot make sense of '{}'", line.words[0]));
  const PlanSetup setup = autotune_plan_setup(line);
  const ParallelPlan plan = given_plan(setup);
  if (line.has("--json"))
    fmt::print(invocation.out, "{}\n", autotune::explain_json(setup.inputs(), plan).dump(1));
  else
    fmt::print(invocation.out, "{}", explain_text(setup.inputs(), plan));
  return 0;
}

std::string predict_help() {
  return "usage: megatron autotune predict --table FILE [options]\n"
         "       megatron autotune predict [settings] [--cluster FILE] [options]\n"
         "\n"
         "Prices one plan, or every row of a table of measured configurations: constants are fitted on half\n"
         "of the configurations and judged on the other.\n" +
         autotune_flags_text(kTableFlags) + autotune_flags_text(autotune_plan_flags()) + "\n" +
         settings_overview();
}

std::string rank_help() {
  return "usage: megatron autotune rank --table FILE [options]\n"
         "\n"
         "Puts measured plans of one model, GPU count and batch in predicted order, and tells what the "
         "first\n"
         "of them loses against the best measured one.\n" +
         autotune_flags_text(kTableFlags);
}

std::string explain_plan_help() {
  return "usage: megatron autotune explain [settings] [--cluster FILE] [options]\n"
         "\n"
         "Tells where the time of a plan goes, what binds it and which change would help.\n" +
         autotune_flags_text(autotune_plan_flags()) + "\n" + settings_overview();
}

constexpr std::array kParts{
    Command{"predict", "time and memory of a plan, or errors on a table of measured ones", predict_help,
            run_predict},
    Command{"rank", "measured plans in predicted order, and the loss of the first", rank_help, run_rank},
    Command{"search", "the fastest plan that fits, as a recipe", autotune_search_help, run_autotune_search},
    Command{"explain", "where the time of a plan goes and what would help", explain_plan_help,
            run_explain_plan},
    Command{"simulate", "one iteration of all ranks as events: trace and picture", autotune_simulate_help,
            run_autotune_simulate},
    Command{"validate", "runs the best plans here and corrects the constants", autotune_validate_help,
            run_autotune_validate},
    Command{"profile-ops", "times and memory of modules, beside theory", autotune_profile_ops_help,
            run_autotune_profile_ops},
    Command{"profile-comm", "times of collectives", autotune_profile_comm_help, run_autotune_profile_comm},
};

}  // namespace

std::string autotune_help() {
  std::string text =
      "usage: megatron autotune WHAT ...\n"
      "\n"
      "Estimates the speed of training plans and finds the fastest; megatron autotune WHAT --help tells "
      "more.\n"
      "\n";
  for (const Command& part : kParts) text += fmt::format("  {:<12}  {}\n", part.name, part.summary);
  return text;
}

std::string autotune_part_help(std::string_view part) {
  for (const Command& known : kParts)
    if (known.name == part) return known.help();
  return "";
}

int run_autotune(Invocation& invocation) {
  std::string names;
  for (const Command& part : kParts) {
    if (!invocation.args.empty() && part.name == invocation.args[0]) {
      invocation.args.erase(invocation.args.begin());
      return part.run(invocation);
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", part.name);
  }
  throw UsageError(fmt::format("autotune: say what to do: {}", names));
}

}  // namespace megatron
