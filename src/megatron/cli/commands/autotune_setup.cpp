#include "megatron/cli/commands/autotune_setup.h"

#include <algorithm>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/cli/commands/autotune_parts.h"
#include "megatron/cli/flags.h"
#include "megatron/recipes/recipe_catalogue.h"

namespace megatron {

using namespace autotune;

namespace {

constexpr CommandFlag kPlanFlags[] = {
    {"--cluster", 1, "YAML file that describes GPUs and network"},
    {"--gpu", 1, "GPU kind, instead of --cluster [H100]"},
    {"--gpus", 1, "how many of them [--world-size, else 8]"},
    {"--imbalance", 1, "rows of the fullest expert rank / mean [1.2]"},
    {"--constants", 1, "calibration: FILE, h100 or a100 [h100]"},
    {"--database", 1, "measured ops: FILE, h200 or none [h200 for H200]"},
    {"--forward-only", 0, "log-probabilities or prefill: no backward pass"},
    {"--json", 0, "one JSON document"},
};

ContextExchange exchange_of(const std::vector<std::string>& kinds) {
  if (kinds.size() == 1 && kinds[0] == "all_gather") return ContextExchange::all_gather;
  if (kinds.size() == 1 && kinds[0] == "a2a") return ContextExchange::all_to_all;
  return ContextExchange::ring;
}

Schedule schedule_of(PipelineSchedule schedule) {
  if (schedule == PipelineSchedule::zb_h1) return Schedule::zb_h1;
  return schedule == PipelineSchedule::zb_v ? Schedule::zb_v : Schedule::one_f_one_b;
}

void set_recompute(const Config& config, const ModelShape& model, ParallelPlan& plan) {
  const ExecutionConfig& e = config.execution;
  if (e.recompute_granularity == RecomputeGranularity::full) {
    plan.recompute = Recompute::full;
    const double layers = static_cast<double>(model.layers) / plan.pp / plan.vpp;
    if (e.recompute_method == RecomputeMethod::block && layers > 0)
      plan.recompute_share = std::min(1.0, static_cast<double>(e.recompute_num_layers) / layers);
  }
  if (e.recompute_granularity != RecomputeGranularity::selective) return;
  plan.recompute = Recompute::selective;
  for (const std::string& name : e.recompute_modules) {
    if (name == "core_attn") plan.recompute = Recompute::core_attn;
    for (const NamedModule& known : kRecomputeModules)
      if (known.name == name) plan.modules |= known.module;
  }
  if (plan.modules != 0) plan.recompute = Recompute::selective;
}

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

}  // namespace

PlanSetup autotune_plan_setup(const CommandLine& line) {
  Resolved resolved = resolve(read_sources(line, {.hf = read_hf_settings, .recipe = read_recipe}),
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
  const std::string database = line.get("--database", cluster.gpu.name == "H200" ? "h200" : "none");
  std::shared_ptr<const OpPricer> ops;
  if (database != "none") {
    StepDatabase measured = autotune_step_database(database);
    if (!is_of_kind(measured.device, cluster.gpu.name))
      throw ConfigError(fmt::format(
          "autotune: --database {}: holds times of {}, not of {}; give a file that autotune profile-ops "
          "--grid "
          "wrote on a GPU of the kind that is planned for, or --database none",
          database, measured.device.empty() ? "an unnamed device" : measured.device, cluster.gpu.name));
    ops = std::make_shared<const OpPricer>(std::move(measured), cluster.gpu.sms);
  }
  const double imbalance =
      line.has("--imbalance")
          ? std::max(1.0, parse_positive("autotune", "--imbalance", line.get("--imbalance"), 1e3))
          : 1.2;
  return {std::move(resolved),
          std::move(model),
          std::move(cluster),
          autotune_calibration(line, "h100"),
          gbs,
          seq,
          precision,
          imbalance,
          line.has("--forward-only"),
          std::move(ops)};
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
  plan.forward_only = setup.forward_only;
  plan.sequence_parallel = config.parallel.sequence_parallel;
  plan.tp_overlap = config.parallel.tp_comm_overlap;
  plan.dp_overlap = config.ddp.overlap_grad_reduce;
  plan.distributed_optimizer = config.ddp.use_distributed_optimizer;
  if (config.ddp.use_megatron_fsdp &&
      config.ddp.data_parallel_sharding_strategy == ShardingStrategy::optim_grads_params)
    plan.shards = plan.dp() * plan.cp;
  if (config.ddp.use_megatron_fsdp &&
      config.ddp.data_parallel_sharding_strategy == ShardingStrategy::optim_grads)
    plan.shard_grads = true;
  plan.cp_exchange = exchange_of(config.parallel.cp_comm_type);
  plan.schedule = schedule_of(config.parallel.pipeline_schedule);
  if (plan.schedule == Schedule::zb_v) plan.vpp = 1;
  set_recompute(config, setup.model, plan);
  if (config.execution.cpu_offloading)
    plan.offload_share = std::min(1.0, static_cast<double>(config.execution.cpu_offloading_num_layers) /
                                           static_cast<double>(setup.model.layers));
  plan.cuda_graphs = config.execution.cuda_graph_impl == GraphImpl::full_iteration;
  plan.last_stage_layers = static_cast<int>(config.parallel.num_layers_in_last_pipeline_stage);
  plan.tp_spares = static_cast<int>(config.parallel.tp_spares);
  plan.reduced_replicas =
      plan.tp_spares > 0
          ? static_cast<int>(std::min<int64_t>(config.parallel.num_reduced_tp_dp_ranks, plan.dp()))
          : 0;
  if (const std::string_view reason = illegal(setup.model, setup.cluster, plan); !reason.empty())
    throw ConfigError(
        fmt::format("autotune: {} (got {} on {} GPUs, {} x {} tokens); megatron autotune search finds plans",
                    reason, plan_text(plan), plan.gpus, plan.gbs, plan.seq));
  return plan;
}

SearchRequest search_request(const PlanSetup& setup, const CommandLine& line) {
  const Config& config = setup.resolved.config;
  const ParallelConfig& parallel = config.parallel;
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
  if (setup.given("train.micro_batch_size")) request.mbs = config.train.micro_batch_size;
  if (setup.given("model.cp_comm_type")) request.cp_exchange = exchange_of(parallel.cp_comm_type);
  if (setup.given("model.pipeline_schedule") && parallel.pipeline_schedule != PipelineSchedule::automatic)
    request.schedule = schedule_of(parallel.pipeline_schedule);
  if (setup.given("model.recompute_granularity")) {
    const RecomputeGranularity kind = config.execution.recompute_granularity;
    request.recompute = kind == RecomputeGranularity::full        ? Recompute::full
                        : kind == RecomputeGranularity::selective ? Recompute::selective
                                                                  : Recompute::none;
  }
  request.forward_only = line.has("--forward-only");
  request.threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 8U));
  return request;
}

std::span<const CommandFlag> autotune_plan_flags() { return kPlanFlags; }

std::string autotune_flags_text(std::span<const CommandFlag> flags) {
  std::string text = "\noptions:\n";
  for (const CommandFlag& flag : flags) text += fmt::format("  {:<17}  {}\n", flag.name, flag.help);
  return text;
}

Calibration autotune_calibration(const CommandLine& line, std::string_view shipped) {
  if (!line.has("--constants")) return shipped_calibration(shipped);
  const std::string path = line.get("--constants");
  if (path == "h100" || path == "a100") return shipped_calibration(path);
  return parse_calibration(Json::read(path), path);
}

CostInputs PlanSetup::inputs() const {
  return {model, cluster, stack_named("megatron-cpp"), calibration.constants, &calibration, ops.get()};
}

}  // namespace megatron
