#include "megatron/cli/commands/autotune_command.h"

#include <array>

#include "megatron/autotune/report/plan_report.h"
#include "megatron/autotune/report/table_report.h"
#include "megatron/autotune/search/recipe.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/bridge/hf_settings.h"
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
    {"--constants", 1, "calibration file instead of the shipped one"},
    {"--write-constants", 1, "write what was fitted on the whole table"},
    {"--rows", 0, "print every row"},
    {"--json", 0, "one JSON document"},
};
constexpr CommandFlag kPlanFlags[] = {
    {"--cluster", 1, "YAML file that describes GPUs and network"},
    {"--gpu", 1, "GPU kind, instead of --cluster [H100]"},
    {"--gpus", 1, "how many of them [--world-size, else 8]"},
    {"--expert-imbalance", 1, "rows of the fullest expert rank / mean [1.2]"},
    {"--constants", 1, "calibration file instead of the shipped one"},
    {"--out", 1, "search: where the recipe goes [autotune.yaml]"},
    {"--json", 0, "one JSON document"},
};

std::string flags_text(std::span<const CommandFlag> flags) {
  std::string text = "\noptions:\n";
  for (const CommandFlag& flag : flags) text += fmt::format("  {:<17}  {}\n", flag.name, flag.help);
  return text;
}

Calibration calibration_of(const CommandLine& line, std::string_view shipped) {
  if (!line.has("--constants")) return shipped_calibration(shipped);
  const std::string path = line.get("--constants");
  return parse_calibration(Json::read(path), path);
}

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
  run.given = calibration_of(line, run.table.published ? "h100" : "a100");
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

// A model, a machine and what was given of a plan.
struct PlanSetup {
  Resolved resolved;
  ModelShape model;
  Cluster cluster;
  Calibration calibration;
  int64_t gbs, seq;
  Precision precision;
  double expert_imbalance;
  CostInputs inputs() const {
    return {model, cluster, stack_named("megatron-cpp"), calibration.constants, &calibration};
  }
  bool given(std::string_view name) const { return resolved.origin(name).source >= Source::recipe; }
};

Cluster cluster_of(const CommandLine& line, std::optional<int64_t> world) {
  if (line.has("--cluster")) {
    if (line.has("--gpu") || line.has("--gpus"))
      throw UsageError("autotune: --cluster describes GPUs already; leave out --gpu and --gpus");
    return read_cluster(line.get("--cluster"));
  }
  const int64_t gpus =
      line.has("--gpus") ? parse_int("autotune", "--gpus", line.get("--gpus")) : world.value_or(8);
  if (gpus < 1 || gpus > 1'000'000)
    throw UsageError(fmt::format("autotune: --gpus needs 1 to 1000000 (got {})", gpus));
  return autotune::cluster_of(gpu_spec(line.get("--gpu", "H100")), static_cast<int>(gpus));
}

PlanSetup plan_setup(const CommandLine& line) {
  Resolved resolved = resolve(read_sources(line, {.hf = read_hf_settings, .recipe = {}}),
                              {.purpose = Purpose::inspect, .allow_unavailable = true, .rules = false});
  const Config& config = resolved.config;
  const std::optional<int64_t> world =
      config.run.world_size > 0 ? std::optional<int64_t>(config.run.world_size) : std::nullopt;
  Cluster cluster = cluster_of(line, world);
  const int64_t seq = config.model.seq_length > 0 ? config.model.seq_length : 4096;
  // About four million tokens a step, whole for every GPU.
  const int64_t usual = std::max<int64_t>(1, (int64_t{1} << 22) / seq / cluster.gpus()) * cluster.gpus();
  const int64_t gbs = config.train.global_batch_size > 0 ? config.train.global_batch_size : usual;
  const Precision precision = config.precision.fp8 != Fp8Format::none ? Precision::fp8
                              : config.precision.fp16                 ? Precision::fp16
                                                                      : Precision::bf16;
  ModelShape model = model_shape(config.model);
  const double imbalance = line.has("--expert-imbalance")
                               ? std::max(1.0, parse_positive("autotune", "--expert-imbalance",
                                                              line.get("--expert-imbalance"), 1e3))
                               : 1.2;
  return {std::move(resolved), std::move(model), std::move(cluster), calibration_of(line, "h100"), gbs, seq,
          precision,           imbalance};
}

ParallelPlan given_plan(const PlanSetup& setup) {
  const Config& config = setup.resolved.config;
  ParallelPlan plan;
  plan.gpus = setup.cluster.gpus();
  plan.tp = static_cast<int>(config.parallel.tensor_model_parallel_size);
  plan.pp = static_cast<int>(config.parallel.pipeline_model_parallel_size);
  plan.cp = static_cast<int>(config.parallel.context_parallel_size);
  plan.vpp = static_cast<int>(std::max<int64_t>(1, config.parallel.virtual_pipeline_model_parallel_size));
  plan.ep = static_cast<int>(config.parallel.expert_model_parallel_size);
  if (setup.model.moe())
    plan.etp = static_cast<int>(std::max<int64_t>(1, config.parallel.expert_tensor_parallel_size));
  plan.gbs = setup.gbs;
  plan.seq = setup.seq;
  plan.mbs = std::max<int64_t>(1, config.train.micro_batch_size);
  plan.precision = setup.precision;
  plan.expert_imbalance = setup.expert_imbalance;
  plan.sequence_parallel = config.parallel.sequence_parallel;
  plan.tp_overlap = config.parallel.tp_comm_overlap;
  plan.dp_overlap = config.ddp.overlap_grad_reduce;
  plan.distributed_optimizer = config.ddp.use_distributed_optimizer;
  if (config.ddp.use_megatron_fsdp &&
      config.ddp.data_parallel_sharding_strategy == ShardingStrategy::optim_grads_params)
    plan.shards = plan.dp() * plan.cp;
  if (config.execution.recompute_granularity == RecomputeGranularity::full) plan.recompute = Recompute::full;
  if (config.execution.recompute_granularity == RecomputeGranularity::selective)
    plan.recompute = Recompute::core_attn;
  plan.last_stage_layers = static_cast<int>(config.parallel.num_layers_in_last_pipeline_stage);
  if (const std::string_view reason = illegal(setup.model, setup.cluster, plan); !reason.empty())
    throw ConfigError(
        fmt::format("autotune: {} (got {} on {} GPUs, {} x {} tokens); megatron autotune search finds plans",
                    reason, plan_text(plan), plan.gpus, plan.gbs, plan.seq));
  return plan;
}

int run_predict(Invocation& invocation) {
  const bool table = std::any_of(invocation.args.begin(), invocation.args.end(),
                                 [](const std::string& word) { return word.starts_with("--table"); });
  const CommandLine line = table ? parse_command_line(invocation.args, kTableFlags)
                                 : parse_command_line(invocation.args, kPlanFlags);
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune predict: cannot make sense of '{}'", line.words[0]));
  if (table) return predict_table(invocation, line);
  const PlanSetup setup = plan_setup(line);
  const ParallelPlan plan = given_plan(setup);
  if (line.has("--json"))
    fmt::print(invocation.out, "{}\n", prediction_json(setup.inputs(), plan).dump(1));
  else
    fmt::print(invocation.out, "{}", prediction_text(setup.inputs(), plan));
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
  const CommandLine line = parse_command_line(invocation.args, kPlanFlags);
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune explain: cannot make sense of '{}'", line.words[0]));
  const PlanSetup setup = plan_setup(line);
  const ParallelPlan plan = given_plan(setup);
  if (line.has("--json"))
    fmt::print(invocation.out, "{}\n", autotune::explain_json(setup.inputs(), plan).dump(1));
  else
    fmt::print(invocation.out, "{}", explain_text(setup.inputs(), plan));
  return 0;
}

int run_search(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kPlanFlags);
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune search: cannot make sense of '{}'", line.words[0]));
  const PlanSetup setup = plan_setup(line);
  const ParallelConfig& parallel = setup.resolved.config.parallel;
  SearchRequest request{.in = setup.inputs(),
                        .gbs = setup.gbs,
                        .seq = setup.seq,
                        .precision = setup.precision,
                        .expert_imbalance = setup.expert_imbalance};
  const auto fixed = [&](std::string_view name, int64_t value) {
    return setup.given(name) ? std::optional<int>(static_cast<int>(value)) : std::nullopt;
  };
  request.tp = fixed("model.tensor_model_parallel_size", parallel.tensor_model_parallel_size);
  request.pp = fixed("model.pipeline_model_parallel_size", parallel.pipeline_model_parallel_size);
  request.vpp =
      fixed("model.virtual_pipeline_model_parallel_size", parallel.virtual_pipeline_model_parallel_size);
  request.cp = fixed("model.context_parallel_size", parallel.context_parallel_size);
  request.ep = fixed("model.expert_model_parallel_size", parallel.expert_model_parallel_size);
  request.etp = fixed("model.expert_tensor_parallel_size", parallel.expert_tensor_parallel_size);
  if (setup.given("train.micro_batch_size")) request.mbs = setup.resolved.config.train.micro_batch_size;
  const bool shows = invocation.log.is_terminal();
  Progress progress(invocation.log, "plans", 1 << 20);
  if (shows)
    request.progress = [&](int64_t plans) {
      progress.update(plans % (1 << 20), fmt::format("{} priced", plans));
    };
  const SearchResult result = search(request);
  progress.clear();
  const std::string path = line.get("--out", "autotune.yaml");
  if (!result.best.empty())
    write_file_atomically(
        path, recipe_text(given_settings(setup.resolved), setup.model, result.best[0], setup.cluster.name));
  if (line.has("--json")) {
    Json json = search_json(request, result);
    json["recipe"] = result.best.empty() ? Json() : Json(path);
    fmt::print(invocation.out, "{}\n", json.dump(1));
  } else {
    fmt::print(invocation.out, "{}", search_text(request, result));
    if (!result.best.empty())
      fmt::print(invocation.out, "\nrecipe of the first: megatron pretrain --config {}\n", path);
  }
  return result.best.empty() ? 1 : 0;
}

std::string predict_help() {
  return "usage: megatron autotune predict --table FILE [options]\n"
         "       megatron autotune predict [settings] [--cluster FILE] [options]\n"
         "\n"
         "Prices one plan, or every row of a table of measured configurations: constants are fitted on half\n"
         "of the configurations and judged on the other.\n" +
         flags_text(kTableFlags) + flags_text(kPlanFlags) + "\n" + settings_overview();
}

std::string rank_help() {
  return "usage: megatron autotune rank --table FILE [options]\n"
         "\n"
         "Puts measured plans of one model, GPU count and batch in predicted order, and tells what the "
         "first\n"
         "of them loses against the best measured one.\n" +
         flags_text(kTableFlags);
}

std::string search_help() {
  return "usage: megatron autotune search --hf DIR --cluster FILE [settings] [options]\n"
         "\n"
         "Prices every legal plan, prints the ten fastest that fit and why the first wins, and writes it as "
         "a\n"
         "recipe. Sizes that are given (--tensor-model-parallel-size 4) are kept.\n" +
         flags_text(kPlanFlags) + "\n" + settings_overview();
}

std::string explain_plan_help() {
  return "usage: megatron autotune explain [settings] [--cluster FILE] [options]\n"
         "\n"
         "Tells where the time of a plan goes, what binds it and which change would help.\n" +
         flags_text(kPlanFlags) + "\n" + settings_overview();
}

constexpr std::array kParts{
    Command{"predict", "time and memory of a plan, or errors on a table of measured ones", predict_help,
            run_predict},
    Command{"rank", "measured plans in predicted order, and the loss of the first", rank_help, run_rank},
    Command{"search", "the fastest plan that fits, as a recipe", search_help, run_search},
    Command{"explain", "where the time of a plan goes and what would help", explain_plan_help,
            run_explain_plan},
};

}  // namespace

std::string autotune_help() {
  std::string text =
      "usage: megatron autotune WHAT ...\n"
      "\n"
      "Estimates the speed of training plans and finds the fastest; megatron autotune WHAT --help tells "
      "more.\n"
      "\n";
  for (const Command& part : kParts) text += fmt::format("  {:<8}  {}\n", part.name, part.summary);
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
