#include "megatron/training/plan/plan.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/models/parallel_setup.h"
#include "megatron/parallel/replica_layout.h"
#include "megatron/training/plan/blank_batches.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/run/teacher_source.h"
#include "megatron/training/setup/run_settings.h"
#include "megatron/training/step/rank_trainer.h"

namespace megatron {
namespace {

// The batch of a step, smaller where the configuration allows it and `step` sequences do not divide it.
int64_t whole_batch(const Config& config, int64_t step) {
  const int64_t batch = config.train.global_batch_size;
  return config.train.decrease_batch_size_if_needed ? batch / step * step : batch;
}

class CountCosts final : public Tracer {
 public:
  CountCosts(RankPlan& plan, const DeviceSpeed& speed) : plan_(plan), speed_(speed) {}
  void op(const char* name, Phase phase, const Cost& cost) override {
    if (phase != Phase::Other) plan_.flops[static_cast<size_t>(phase)] += cost.flops;
    const double rate = std::string_view(name).ends_with("fp8_linear") ? speed_.fp8_flops : speed_.flops;
    plan_.seconds += std::max(cost.flops / rate, cost.bytes / speed_.bytes);
  }

 private:
  RankPlan& plan_;
  DeviceSpeed speed_;
};

RankPlan plan_rank(const Config& config, const ParallelSizes& sizes, const PipelineShape& shape, int rank,
                   DType dtype, const DeviceSpeed& speed, const TrainerOptions& options,
                   LaunchCheck& launches) {
  RankPlan plan;
  plan.rank = rank;
  auto log = std::make_shared<TrafficLog>();
  RankContext ctx(kMeta, 1, rank);
  ParallelContext parallel = ParallelContext::from_sizes(planned_world(sizes, rank, log), sizes);
  plan.pipeline_rank = parallel.rank(Axis::pp);
  log->by_group.clear();  // what sets the groups up is no part of a step
  RankTrainer trainer(ctx, config, parallel, dtype, options);
  std::optional<Teacher> reference;  // beside the model that learns from rewards
  if (config.rl.has_reference())
    reference.emplace(ctx, teacher_config(config, config.model), parallel, dtype);
  for (int chunk = 0; chunk < shape.vpp; ++chunk)
    plan.chunks.push_back(model_slice(config, shape, plan.pipeline_rank, chunk));
  for (const Parameter* parameter : trainer.parameters())
    plan.parameters += parameter->shard.local_shape.numel();
  // Replicas of different sizes have different numbers of micro-batches.
  int64_t microbatches = shape.microbatches;
  if (parallel.unequal())
    microbatches = static_cast<int64_t>(
        batch_shares(config, parallel, whole_batch(config, config.train.micro_batch_size))
            .of_replica[static_cast<size_t>(parallel.replica())]
            .size());
  CountCosts count(plan, speed);
  ctx.tracer = &count;
  ctx.launches = &launches;
  trainer.step(ctx, blank_batches(config, microbatches), 0);
  plan.memory = ctx.allocator->statistics();
  plan.traffic = *log;
  return plan;
}

// The ranks of a pipeline: all others are like them. Where replicas differ in size, those of each size, and
// of its positions that have peers in other replicas or none.
std::vector<int> planned_ranks(const ParallelSizes& sizes) {
  if (sizes.inactive.empty()) {
    for (const GroupRanks& group : parallel_groups(sizes))
      if (group.axis == Axis::pp && group.ranks[0] == sizes.rank_offset) return group.ranks;
    return {};
  }
  check_parallel(sizes);
  const ReplicaLayout layout(sizes);
  std::vector<int> ranks, seen;
  for (int replica = 0; replica < layout.replicas(); ++replica) {
    const int size = layout.tp_sizes()[static_cast<size_t>(replica)];
    if (std::find(seen.begin(), seen.end(), size) != seen.end()) continue;
    seen.push_back(size);
    for (int stage = 0; stage < sizes.pp; ++stage) {
      const std::vector<int>& own = layout.ranks(replica, 0, stage);
      ranks.push_back(own.front());
      if (size > layout.sync()) ranks.push_back(own.back());
    }
  }
  return ranks;
}

}  // namespace

const RankPlan& RunPlan::largest() const {
  return *std::max_element(ranks.begin(), ranks.end(),
                           [](const RankPlan& a, const RankPlan& b) { return a.bytes() < b.bytes(); });
}

double RunPlan::seconds() const {
  double sum = 0;
  for (const RankPlan& rank : ranks) sum += rank.seconds;
  return sum;
}

std::string RunPlan::memory_table() const {
  const bool small = largest().bytes() < (1 << 30);
  const double unit = small ? 1 << 20 : 1 << 30;
  constexpr std::string_view what[kMemoryTags] = {"parameters",  "gradients", "optimizer",
                                                  "activations", "comm",      "workspace"};
  const RankPlan& rank = largest();
  std::string names, figures;
  const auto add = [&](std::string_view name, size_t bytes) {
    const size_t width = std::max<size_t>(name.size(), 7);
    names += fmt::format("  {:>{}}", name, width);
    figures += fmt::format("  {:>{}.3f}", static_cast<double>(bytes) / unit, width);
  };
  for (size_t tag = 0; tag < kMemoryTags; ++tag) add(what[tag], rank.memory.by_tag[tag].peak);
  add("at once", rank.memory.total.peak);
  return fmt::format("planned memory in {}, at most{}\n{}\n{}", small ? "MiB" : "GiB",
                     sizes.world > 1 ? fmt::format(", of rank {}, which needs the most", rank.rank) : "",
                     names, figures);
}

MemoryStatistics trace_step(const Config& config, const ParallelSizes& sizes, int rank, DType dtype,
                            Tracer& tracer) {
  RankContext ctx(kMeta, 1, rank);
  const ParallelContext parallel =
      ParallelContext::from_sizes(planned_world(sizes, rank, std::make_shared<TrafficLog>()), sizes);
  RankTrainer trainer(ctx, config, parallel, dtype);
  const int64_t passes =
      config.train.global_batch_size / (config.train.micro_batch_size * static_cast<int64_t>(sizes.dp()));
  ctx.tracer = &tracer;
  trainer.step(ctx, blank_batches(config, passes), 0);
  ctx.tracer = nullptr;
  return ctx.allocator->statistics();
}

RunPlan plan_memory(Config config, const ParallelSizes& sizes, DType dtype, const TrainerOptions& options,
                    std::span<const GpuFacts> gpus) {
  const int64_t per_pass = config.train.micro_batch_size * sizes.dp();
  const PipelineShape shape = pipeline_shape(config, 1);
  const int64_t group = std::max(shape.pp, shape.group), most = 4 * group;
  const int64_t microbatches = per_pass > 0 ? config.train.global_batch_size / per_pass : 0;
  // What a teacher makes of all micro-batches is there at once.
  const bool grows = shape.kind == PipelineKind::gpipe || options.teacher || config.distill.has_teacher();
  if (!grows && microbatches > most + group)
    config.train.global_batch_size -= (microbatches - most) / group * group * per_pass;
  return plan_run(config, sizes, dtype, {}, options, gpus);
}

RunPlan plan_run(const Config& config, const ParallelSizes& sizes, DType dtype, const DeviceSpeed& speed,
                 const TrainerOptions& given, std::span<const GpuFacts> gpus) {
  TrainerOptions options = given;
  if (!options.teacher) options.teacher = TeacherSource::of(config).model;
  RunPlan plan;
  plan.sizes = sizes;
  int64_t batch = config.train.global_batch_size, per_pass = config.train.micro_batch_size * sizes.dp();
  // Unequal replicas need not share it evenly.
  const int64_t step = sizes.inactive.empty() ? per_pass : config.train.micro_batch_size;
  if (step > 0) batch = whole_batch(config, step);
  if (per_pass == 0 || batch < per_pass || batch % step != 0)
    throw ConfigError(fmt::format(
        "plan: a global batch of {} cannot be cut into micro-batches of {} on {} data-parallel ranks", batch,
        config.train.micro_batch_size, sizes.dp()));
  plan.pipeline = pipeline_shape(config, batch / per_pass);
  plan.simulation = simulate(plan.pipeline, schedules(plan.pipeline));
  plan.parameters = parameter_count(config.model);
  plan.tokens_per_step = batch * config.model.seq_length;
  plan.flops_per_step =
      static_cast<double>(plan.tokens_per_step) * step_flops_per_token(config, options.teacher.get());
  LaunchCheck launches{{gpus.begin(), gpus.end()}, {}};
  for (int rank : planned_ranks(sizes))
    plan.ranks.push_back(plan_rank(config, sizes, plan.pipeline, rank, dtype, speed, options, launches));
  plan.refusals = std::move(launches.refusals);
  return plan;
}

RunPlan plan_run(const Resolved& resolved) {
  Config config = resolved.config;
  const int64_t model_ranks = config.parallel.tensor_model_parallel_size *
                              config.parallel.pipeline_model_parallel_size *
                              config.parallel.context_parallel_size;
  const ParallelSizes sizes = parallel_sizes(config, resolved.world_size.value_or(model_ranks));
  TrainConfig& train = config.train;
  if (train.micro_batch_size == 0) train.micro_batch_size = 1;
  if (train.global_batch_size == 0) train.global_batch_size = train.micro_batch_size * sizes.dp();
  return plan_run(config, sizes, model_dtype(config), {}, {}, resolved.gpus);
}

std::vector<Refusal> forward_refusals(Config config, const ParallelSizes& sizes, DType dtype,
                                      std::span<const GpuFacts> gpus) {
  // Long enough for a tile of every kernel, and an even number of tokens for each rank that shares them.
  const int64_t most = 1024 * sizes.cp;
  ModelConfig& model = config.model;
  model.seq_length = model.seq_length > 0 ? std::min(model.seq_length, most) : most;
  model.decoder_seq_length = model.seq_length;
  const int64_t microbatches = sizes.pp;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = microbatches * sizes.dp();
  LaunchCheck launches{{gpus.begin(), gpus.end()}, {}};
  for (int rank : planned_ranks(sizes)) {
    RankContext ctx(kMeta, 1, rank);
    const ParallelContext parallel =
        ParallelContext::from_sizes(planned_world(sizes, rank, std::make_shared<TrafficLog>()), sizes);
    RankTrainer trainer(ctx, config, parallel, dtype);
    ctx.launches = &launches;
    trainer.evaluate(ctx, blank_batches(config, microbatches));
  }
  return std::move(launches.refusals);
}

std::string what_saves_memory(const Config& config, const RunPlan& plan, double bytes) {
  const RankPlan& rank = plan.largest();
  std::vector<std::string> knobs;
  auto of = [&](MemoryTag tag) {
    return static_cast<double>(rank.memory.by_tag[static_cast<size_t>(tag)].peak);
  };
  if (of(MemoryTag::Activation) > bytes / 3) {
    if (config.execution.recompute_granularity != RecomputeGranularity::full)
      knobs.push_back("--recompute-granularity full");
    if (config.train.micro_batch_size > 1) knobs.push_back("a smaller --micro-batch-size");
    if (config.parallel.tensor_model_parallel_size > 1 && !config.parallel.sequence_parallel)
      knobs.push_back("--sequence-parallel");
  }
  if (of(MemoryTag::Optimizer) > bytes / 3 && plan.sizes.dp() > 1 && !config.ddp.use_distributed_optimizer)
    knobs.push_back("--use-distributed-optimizer");
  knobs.push_back("a larger --tensor-model-parallel-size or --pipeline-model-parallel-size");
  return fmt::format("{}", fmt::join(knobs, ", or "));
}

void check_fits(const Config& config, const RunPlan& plan, double bytes) {
  const RankPlan& rank = plan.largest();
  if (rank.bytes() <= bytes) return;
  constexpr double gib = 1 << 30;
  throw ConfigError(fmt::format("memory: rank {} needs {:.2f} GiB and {:.2f} are there; use {}", rank.rank,
                                rank.bytes() / gib, bytes / gib, what_saves_memory(config, plan, bytes)));
}

}  // namespace megatron
