#include "megatron/cli/commands/autotune_calibrate.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "megatron/autotune/fit/fit.h"
#include "megatron/autotune/search/recipe.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/seconds_since.h"
#include "megatron/cli/bench/bench_cases.h"
#include "megatron/cli/flags.h"
#include "megatron/training/run/run.h"

namespace megatron {

using namespace autotune;

namespace {

// Keeps the milliseconds of rank 0's steps.
class PlanStepTimes final : public Callback {
 public:
  explicit PlanStepTimes(int64_t warmup) : warmup_(warmup) {}
  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::step_end && view.is_first_rank() && view.report->iteration > warmup_)
      seconds.push_back(view.report->milliseconds * 1e-3);
  }
  std::vector<double> seconds;

 private:
  int64_t warmup_;
};

// A small model of which a few steps are run.
struct SmallModel {
  int layers, hidden, heads, vocab, length, batch;
};

// Widths, vocabularies and lengths that tell GEMMs, elementwise work, attention and the update apart.
constexpr SmallModel kModels[] = {
    {4, 192, 6, 4096, 192, 8},
    {2, 384, 6, 2048, 384, 8},
    {6, 128, 4, 16384, 128, 8},
};

PlanSetup setup_of(const SmallModel& model, int ranks) {
  std::vector<std::string> words = {"--gpu", "CPU", "--gpus", std::to_string(ranks), "--constants", "h100"};
  const auto add = [&](const char* flag, int64_t value) {
    words.insert(words.end(), {flag, std::to_string(value)});
  };
  add("--num-layers", model.layers);
  add("--hidden-size", model.hidden);
  add("--num-attention-heads", model.heads);
  add("--vocab-size", model.vocab);
  add("--seq-length", model.length);
  // Four samples a rank, and eight at least, divide by every micro-batch of layouts_of().
  add("--global-batch-size", std::max<int64_t>(model.batch, int64_t{model.batch} / 2 * ranks));
  return autotune_plan_setup(parse_command_line(words, autotune_plan_flags()));
}

// Replicas with small and large micro-batches, with whole and shared weights; tensor ranks; stages.
std::vector<ParallelPlan> layouts_of(const PlanSetup& setup, const SmallModel& model) {
  ParallelPlan base;
  base.gpus = setup.cluster.gpus();
  base.gbs = setup.gbs;
  base.seq = setup.seq;
  base.expert_imbalance = setup.expert_imbalance;
  std::vector<ParallelPlan> plans;
  const auto add = [&](ParallelPlan plan) {
    plan.tp_overlap = plan.sequence_parallel = plan.tp > 1;
    if (illegal(setup.model, setup.cluster, plan).empty()) plans.push_back(plan);
  };
  for (const int64_t mbs : {int64_t{1}, int64_t{4}}) {
    ParallelPlan plan = base;
    plan.mbs = mbs;
    add(plan);
    if (base.gpus == 1) continue;
    plan.shards = base.gpus;
    if (mbs > 1) add(plan);
    plan.shards = 0;
    plan.tp = base.gpus;
    if (mbs > 1) add(plan);
    plan.tp = 1;
    plan.pp = base.gpus;
    if (mbs > 1 || model.layers % base.gpus != 0) continue;
    add(plan);
    plan.vpp = 2;
    if (model.layers % (2 * base.gpus) == 0 && plan.microbatches() % base.gpus == 0) add(plan);
  }
  return plans;
}

// Fewer rows than these do not determine the constants.
constexpr size_t kMinRows = 6;

}  // namespace

std::vector<CalibrationModel> calibration_models(int ranks) {
  std::vector<CalibrationModel> models;
  for (const SmallModel& model : kModels) {
    PlanSetup setup = setup_of(model, ranks);
    std::vector<ParallelPlan> plans = layouts_of(setup, model);
    models.push_back({std::move(setup), std::move(plans)});
  }
  return models;
}

double run_plan_steps(const Log& log, const std::string& recipe, int ranks, int64_t warmup, int64_t steps) {
  RunSpec spec;
  spec.sources.file = ConfigText{"recipe.yaml", recipe};
  spec.sources.overrides = {fmt::format("run.ranks={}", ranks),
                            fmt::format("train.train_iters={}", warmup + steps), "optimizer.lr=1e-4",
                            "scheduler.lr_decay_style=constant"};
  // What each run says of itself would hide what is said of all of them.
  spec.log = log.shows(LogLevel::debug) ? log : log.with_level(std::min(log.level(), LogLevel::warning));
  spec.out = nullptr;
  spec.data = [](const Config& config) { return RunData{.train = random_rows(config)}; };
  const auto times = std::make_shared<PlanStepTimes>(warmup);
  spec.callbacks = {times};
  if (const RunEnd end = run(spec); end.reason != RunEnd::Reason::finished)
    throw Error("autotune: a plan that was run here: " + end.text());
  require(!times->seconds.empty(), "autotune: no step was measured");
  std::sort(times->seconds.begin(), times->seconds.end());
  return times->seconds[times->seconds.size() / 2];
}

std::optional<Calibration> cpu_calibration(const Invocation& invocation, const Cluster& cluster) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<CalibrationModel> models = calibration_models(cluster.gpus());
  size_t count = 0;
  for (const CalibrationModel& model : models) count += model.plans.size();
  std::vector<TableRow> rows;
  if (count >= kMinRows) {
    Progress progress(invocation.log, "calibrating", static_cast<int64_t>(count));
    for (const auto& [setup, plans] : models) {
      Json given = given_settings(setup.resolved);
      given["run"]["device"] = "cpu";
      for (const ParallelPlan& plan : plans) {
        Candidate candidate;
        candidate.plan = plan;
        TableRow row;
        row.model = std::make_shared<const ModelShape>(setup.model);
        row.cluster = cluster;
        row.plan = plan;
        row.stack = &stack_named("megatron-cpp");
        row.throughput = false;
        const std::string recipe = recipe_text(given, setup.model, candidate, setup.cluster.name);
        row.measured = 1e3 * run_plan_steps(invocation.log, recipe, cluster.gpus(), 1, 5);
        rows.push_back(std::move(row));
        progress.update(static_cast<int64_t>(rows.size()), plan_text(plan));
      }
    }
    progress.clear();
  }
  if (rows.size() < kMinRows) {
    invocation.log.info("not calibrated: {} plans of small models suit {} ranks; constants are as shipped",
                        rows.size(), cluster.gpus());
    return std::nullopt;
  }
  std::vector<const TableRow*> all;
  for (const TableRow& row : rows) all.push_back(&row);
  const Calibration result = fit_constants(all, cpu_constants(), cpu_fitted_constants(), false);
  std::vector<double> errors;
  for (const TableRow& row : rows) errors.push_back(std::abs(row.predicted(result) / row.measured - 1));
  std::sort(errors.begin(), errors.end());
  invocation.log.info(
      "calibrated by {} plans of small models on {} ranks here, {:.1f} s, to {:.0f} % in the median",
      rows.size(), cluster.gpus(), seconds_since(begin), 100 * errors[errors.size() / 2]);
  return result;
}

void calibrate_cpu_ranks(const Invocation& invocation, const CommandLine& line, PlanSetup& setup) {
  if (setup.cluster.gpu.name != "CPU" || line.has("--constants")) return;
  const int ranks = setup.cluster.gpus();
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (line.has("--resume")) {
    // Fitted constants differ from run to run, and a search goes on by the same ones alone.
    invocation.log.info("not calibrated: --resume keeps constants as shipped; --constants FILE gives others");
  } else if (ranks > cores) {
    invocation.log.info("not calibrated: {} ranks share {} cores; constants are as shipped", ranks, cores);
  } else if (std::optional<Calibration> fitted = cpu_calibration(invocation, setup.cluster)) {
    setup.calibration = std::move(*fitted);
  }
}

std::vector<CommandFlag> autotune_calibrated_flags() {
  std::vector<CommandFlag> flags(autotune_plan_flags().begin(), autotune_plan_flags().end());
  for (CommandFlag& flag : flags)
    if (std::string_view(flag.name) == "--constants")
      flag.help = "FILE, h100 or a100 [h100; CPU: measured first, see above]";
  return flags;
}

}  // namespace megatron
