#include "megatron/cli/commands.h"

#include "megatron/autotune/machine/gpu_spec.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/counted.h"
#include "megatron/base/json.h"
#include "megatron/base/progress.h"
#include "megatron/base/writable_folder.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/cli/commands/plan_page.h"
#include "megatron/cli/flags.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/parallel/pipeline/timeline.h"
#include "megatron/parallel/replica_layout.h"
#include "megatron/recipes/recipe_catalogue.h"
#include "megatron/report/svg.h"
#include "megatron/training/log/run_summary.h"
#include "megatron/training/plan/launch_problems.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/plan/recompute_setup.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

constexpr CommandFlag kFlags[] = {
    {"--memory-gib", 1,
     "refuse a plan that needs more than this on a rank, and say what helps; --recompute-modules auto makes "
     "it fit"},
    {"--width", 1, "columns of the pipeline's timeline (those of the terminal, else 160)"},
    {"--report", 1, "FILE.html: memory, arithmetic, traffic and schedule as pictures"},
    {"--svg", 1, "FILE.svg: layout, schedule and memory as one picture"},
    {"--json", 0, "one JSON document"},
    {"--fake-process-group", 0, "changes nothing: a plan starts no ranks"},
};
constexpr double kGib = 1 << 30, kMib = 1 << 20;

std::string holds(const RankPlan& rank, int64_t predictions) {
  std::string text;
  for (const ModelSlice& slice : rank.chunks) {
    std::string part = slice.embedding ? "embedding " : "";
    if (slice.layers == 1)
      part += fmt::format("layer {} ", slice.first_layer);
    else if (slice.layers > 1)
      part += fmt::format("layers {}-{} ", slice.first_layer, slice.first_layer + slice.layers - 1);
    if (slice.mtp && predictions > 0) part += counted(predictions, "MTP layer") + " ";
    if (slice.head) part += "loss ";
    if (part.empty()) part = "nothing ";
    part.pop_back();
    text += (text.empty() ? "" : " | ") + part;
  }
  return text;
}

size_t peak(const RankPlan& rank, MemoryTag tag) { return rank.memory.by_tag[static_cast<size_t>(tag)].peak; }

constexpr MemoryTag kShown[] = {MemoryTag::Parameter, MemoryTag::Gradient, MemoryTag::Optimizer,
                                MemoryTag::Activation, MemoryTag::Communication};

std::string sharing(const Config& config) {
  constexpr std::string_view shared[] = {"", "optimizer states", "optimizer states and gradients",
                                         "optimizer states, gradients and parameters"};
  const DdpConfig& ddp = config.ddp;
  if (!ddp.use_distributed_optimizer && !ddp.use_megatron_fsdp) return {};
  const auto level = std::max<size_t>(1, static_cast<size_t>(ddp.data_parallel_sharding_strategy));
  const int64_t copies = ddp.num_distributed_optimizer_instances;
  return fmt::format(" sharing {}{}", shared[level], copies > 1 ? fmt::format(", {} copies", copies) : "");
}

void print_text(std::FILE* out, const Config& config, const RunPlan& plan, int width) {
  const ParallelSizes& s = plan.sizes;
  const PipelineShape& p = plan.pipeline;
  fmt::print(out, "{}: tp {}{}, pp {}{}, cp {}, {}dp {}{}\n", counted(s.world, "rank"), s.tp,
             config.parallel.sequence_parallel ? " with sequence parallelism" : "", s.pp,
             p.vpp > 1 ? fmt::format(" of {} chunks", p.vpp) : "", s.cp,
             config.model.num_moe_experts > 0 ? fmt::format("ep {}, etp {}, ", s.ep, s.expert_tp()) : "",
             s.dp(), sharing(config));
  if (!s.inactive.empty()) {
    const ReplicaLayout layout(s);
    fmt::print(out, "\n{}", layout.picture());
    fmt::print(
        out,
        "gradients of replicas meet at {} positions; ranks behind a bar fold theirs into them, and get "
        "{} back\n",
        layout.sync(), config.ddp.use_distributed_optimizer ? "parameters" : "sums");
    const Shares shares = unequal_shares(config, layout.tp_sizes(), config.train.global_batch_size,
                                         config.train.micro_batch_size);
    fmt::print(out, "micro-batches of a step, by the speed of each replica:");
    for (const std::vector<Share>& own : shares.of_replica) fmt::print(out, " {}", own.size());
    fmt::print(out, "\n\n");
  }
  fmt::print(out, "{} parameters; a step is {} of {} x {} tokens, {:.3g} model TFLOP\n\n",
             count_text(static_cast<double>(plan.parameters)), counted(p.microbatches, "micro-batch"),
             config.train.micro_batch_size, config.model.seq_length, plan.flops_per_step / 1e12);

  fmt::print(out, "{:>4} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n", "rank", "parameters",
             "param MiB", "grad", "optim", "act", "comm", "total", "TFLOP", "holds");
  for (const RankPlan& rank : plan.ranks) {
    fmt::print(out, "{:>4} {:>12}", rank.rank, rank.parameters);
    for (MemoryTag tag : kShown) fmt::print(out, " {:>9.1f}", static_cast<double>(peak(rank, tag)) / kMib);
    fmt::print(out, " {:>9.1f} {:>9.3g}  {}\n", rank.bytes() / kMib,
               (rank.flops[0] + rank.flops[1] + rank.flops[2]) / 1e12,
               holds(rank, config.model.mtp_num_layers));
  }

  if (!s.inactive.empty())
    fmt::print(out, "of each size of replica a rank with peers in the others, and one without\n");
  else if (s.world > s.pp)
    fmt::print(out, "the ranks of one pipeline; each of the others is like one of these\n");

  bool communicates = false;
  for (const RankPlan& rank : plan.ranks) communicates |= !rank.traffic.by_group.empty();
  if (communicates) {
    fmt::print(out, "\nwhat leaves a rank in one step\n{:>4} {:<10} {:>5} {:<15} {:>8} {:>10}\n", "rank",
               "group", "ranks", "operation", "times", "MiB");
    for (const RankPlan& rank : plan.ranks)
      for (const auto& [key, entry] : rank.traffic.by_group)
        fmt::print(out, "{:>4} {:<10} {:>5} {:<15} {:>8} {:>10.2f}\n", rank.rank, key.first, entry.group_size,
                   key.second, entry.operations, entry.bytes / kMib);
  }
  if (p.pp == 1) return;
  fmt::print(out, "\npipeline {}: {:.1f} % of the time is spent waiting where F, B and W cost the same\n{}",
             pipeline_kind_name(p.kind), 100 * plan.simulation.bubble,
             pipeline_timeline(p, plan.simulation, width));
}

Json to_json(const Config& config, const RunPlan& plan) {
  Json json = Json::object();
  const ParallelSizes& s = plan.sizes;
  Json& layout = json["layout"] = Json::object();
  layout["world"] = s.world;
  layout["tp"] = s.tp;
  layout["pp"] = s.pp;
  layout["vpp"] = plan.pipeline.vpp;
  layout["cp"] = s.cp;
  layout["ep"] = s.ep;
  layout["etp"] = s.expert_tp();
  layout["dp"] = s.dp();
  if (!s.inactive.empty()) {
    const ReplicaLayout replicas(s);
    Json& list = layout["replicas"] = Json::array();
    for (int size : replicas.tp_sizes()) list.push_back(size);
    layout["sync_positions"] = replicas.sync();
    Json& counts = layout["replica_micro_batches"] = Json::array();
    for (const std::vector<Share>& own :
         unequal_shares(config, replicas.tp_sizes(), config.train.global_batch_size,
                        config.train.micro_batch_size)
             .of_replica)
      counts.push_back(std::ssize(own));
    Json& idle = layout["idle_ranks"] = Json::array();
    for (int rank : replicas.idle()) idle.push_back(rank);
  }
  json["schedule"] = pipeline_kind_name(plan.pipeline.kind);
  json["micro_batches"] = plan.pipeline.microbatches;
  json["bubble"] = plan.simulation.bubble;
  json["parameters"] = plan.parameters;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["model_flops_per_step"] = plan.flops_per_step;
  Json& ranks = json["ranks"] = Json::array();
  for (const RankPlan& rank : plan.ranks) {
    Json row = Json::object();
    row["rank"] = rank.rank;
    row["pipeline_rank"] = rank.pipeline_rank;
    row["holds"] = holds(rank, config.model.mtp_num_layers);
    row["parameters"] = rank.parameters;
    Json& memory = row["memory_bytes"] = Json::object();
    for (MemoryTag tag : kShown) memory[std::string(name_of(tag))] = static_cast<int64_t>(peak(rank, tag));
    memory["total"] = static_cast<int64_t>(rank.memory.total.peak);
    Json& flops = row["flops"] = Json::object();
    flops["forward"] = rank.flops[0];
    flops["backward"] = rank.flops[1];
    flops["weight"] = rank.flops[2];
    Json& traffic = row["communication"] = Json::array();
    for (const auto& [key, entry] : rank.traffic.by_group) {
      Json use = Json::object();
      use["group"] = key.first;
      use["ranks"] = entry.group_size;
      use["operation"] = key.second;
      use["times"] = entry.operations;
      use["bytes"] = entry.bytes;
      traffic.push_back(std::move(use));
    }
    ranks.push_back(std::move(row));
  }
  return json;
}

// The GPUs that a recipe was laid out for.
struct RecipeGpus {
  int64_t count = 1;
  bool decide_world = false;  // no other setting says how many ranks there are
  double bytes = 0;           // of memory of each
};

std::optional<RecipeGpus> recipe_gpus(const CommandLine& line, const Sources& sources) {
  if (!sources.recipe) return {};
  const Recipe recipe = find_recipe(line.recipe_name);
  if (recipe.gpu == "cpu") return {};
  const Resolved sizes =
      resolve(sources, {.purpose = Purpose::inspect, .allow_unavailable = true, .rules = false});
  return RecipeGpus{recipe.gpus, !sizes.world_size, autotune::gpu_spec(recipe.gpu).memory_gib * kGib};
}

Json to_json(const RecomputeChoice& choice) {
  Json json = Json::object();
  json["limit_bytes"] = choice.limit;
  json["bytes_keeping_all"] = choice.kept_bytes;
  json["bytes"] = choice.bytes;
  json["more_time"] = choice.seconds / choice.kept_seconds - 1;
  Json& modules = json["modules"] = Json::array();
  for (const RecomputeChoice::Module& module : choice.modules) {
    Json row = Json::object();
    row["name"] = module.name;
    row["saved_bytes"] = module.saved_bytes;
    row["seconds"] = module.seconds;
    row["layers"] = module.layers;
    modules.push_back(std::move(row));
  }
  return json;
}

}  // namespace

std::string plan_help() {
  std::string text =
      "usage: megatron plan [settings] [options]\n"
      "\n"
      "Tells what a run will need before anything is launched: parameters, memory, arithmetic and\n"
      "communication of each rank of a pipeline, its schedule and the time that it waits. One step of the\n"
      "real trainer runs on a device that has shapes but no data.\n"
      "\n"
      "options:\n";
  for (const CommandFlag& flag : kFlags) text += fmt::format("  {:<20}  {}\n", flag.name, flag.help);
  return text + "\n" + settings_overview();
}

int run_plan(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  if (!line.words.empty()) throw UsageError(fmt::format("plan: cannot make sense of '{}'", line.words[0]));
  const auto columns = static_cast<int64_t>(std::max<size_t>(20, terminal_columns(invocation.out, 160)));
  const int64_t width = line.has("--width") ? parse_int("plan", "--width", line.get("--width")) : columns;
  if (width < 20 || width > 100000)
    throw UsageError(fmt::format("plan: --width needs 20 to 100000 columns, not {}", width));
  Sources sources = read_sources(line, {.hf = read_hf_settings, .recipe = read_recipe});
  const std::optional<RecipeGpus> named = recipe_gpus(line, sources);
  if (named && named->decide_world) sources.processes = named->count;
  Resolved resolved = resolve(sources, {.purpose = Purpose::model, .vocabulary = vocabulary_size});
  check_gpus(resolved);
  Config& config = resolved.config;
  const int64_t model_ranks = config.parallel.tensor_model_parallel_size *
                              config.parallel.pipeline_model_parallel_size *
                              config.parallel.context_parallel_size;
  const ParallelSizes sizes = parallel_sizes(config, resolved.world_size.value_or(model_ranks));
  check_parallel(sizes);
  if (config.train.micro_batch_size == 0) config.train.micro_batch_size = 1;
  if (config.train.global_batch_size == 0)
    config.train.global_batch_size = config.train.micro_batch_size * sizes.dp();
  const DType dtype = config.precision.bf16 ? DType::BF16 : config.precision.fp16 ? DType::F16 : DType::F32;
  double limit = 0;
  if (line.has("--memory-gib"))
    limit = parse_positive("plan", "--memory-gib", line.get("--memory-gib")) * kGib;
  else if (named)
    limit = named->bytes;
  if (chooses_recompute(config) && limit > 0 && !config.execution.recompute_memory_gib)
    config.execution.recompute_memory_gib = limit / kGib;
  const std::optional<RecomputeChoice> choice = settle_recompute(config, sizes, dtype, DeviceType::Cuda, 1);
  const RunPlan plan = plan_run(config, sizes, dtype, {}, {}, resolved.gpus);
  check_launches(resolved, plan.refusals);
  if (line.has("--json")) {
    Json json = to_json(config, plan);
    if (choice) json["recompute"] = to_json(*choice);
    fmt::print(invocation.out, "{}\n", json.dump(2));
  } else {
    if (choice) fmt::print(invocation.out, "{}\n", choice->table());
    print_text(invocation.out, config, plan, static_cast<int>(width));
  }
  for (const char* flag : {"--report", "--svg"}) {
    if (!line.has(flag)) continue;
    std::vector<std::string> held;
    for (const RankPlan& rank : plan.ranks) held.push_back(holds(rank, config.model.mtp_num_layers));
    const std::string path = line.get(flag);
    require_file_place(flag, path);
    const report::Page page =
        plan_page(plan, held, line.recipe_name.empty() ? "Plan" : line.recipe_name, limit);
    write_file_atomically(
        path, flag == std::string_view("--svg") ? report::render_svg(page) : report::render(page));
    invocation.log.info("{} is written", path);
  }
  for (const std::string& note : resolved.notes) invocation.log.info("{}", note);
  if (limit > 0) check_fits(config, plan, limit);
  return 0;
}

}  // namespace megatron
