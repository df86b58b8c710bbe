#include "megatron/cli/bench/bench_parts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "megatron/autotune/measure/op_pricer.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/progress.h"
#include "megatron/cli/bench/bench_cases.h"
#include "megatron/cli/bench/node_timer.h"
#include "megatron/cli/bench/process_age.h"
#include "megatron/cli/bench/step_profile.h"
#include "megatron/cli/commands/autotune_parts.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/version.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/profiler.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/run/run.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {
namespace {

struct Settings {
  BenchRun run;
  std::string ops, name, predict;
  bool json = false, trace = false;
};

std::vector<Flag> flags(Settings& s) {
  return {
      int_flag("--steps", "measured steps (10)", s.run.steps, 1),
      int_flag("--warmup", "steps before them (3)", s.run.warmup),
      int_flag("--tensor-model-parallel-size", "ranks that share each layer (1)", s.run.tensor_parallel, 1),
      int_flag("--pipeline-model-parallel-size", "ranks that share the layers among them (1)",
               s.run.pipeline_parallel, 1),
      int_flag("--data-parallel-size", "ranks that share the batch (1)", s.run.data_parallel, 1),
      int_flag("--micro-batches", "pieces that the batch of a data-parallel rank is cut into (the case's)",
               s.run.micro_batches, 1),
      text_flag("--device", "cpu|cuda", "where to compute (cuda where a GPU is there)", s.run.device),
      text_flag("--precision", "fp32|bf16|fp8|fp8-delayed|fp8-block",
                "of weights and activations (fp32 on the CPU, bf16 on a GPU); fp8: bf16 with fp8 GEMMs, "
                "scaled by what is at hand, by the last 16 steps or block by block (all e4m3)",
                s.run.precision),
      switch_flag("--deterministic", "only kernels that give the same bits each run; GEMMs are not autotuned",
                  s.run.deterministic),
      text_flag("--moments", "fp32|bf16", "of Adam (fp32)", s.run.moments),
      text_flag("--gradients", "bf16|fp32", "of bf16 weights (bf16, as PyTorch has them)", s.run.gradients),
      text_flag("--recompute", "MODULES|auto|none",
                "make these again in the backward pass, as in layernorm,mlp_act; auto: the cheapest, until "
                "--memory-gib suffice (what the case says)",
                s.run.recompute),
      text_flag("--memory-gib", "N", "of a rank, for --recompute auto (nine tenths of the device's)",
                s.run.memory_gib),
      switch_flag("--graphs", "record forward and backward once and replay them (one rank)", s.run.graphs),
      switch_flag("--nvtx-ranges", "name ranges of work for a profiler (Nsight Systems)", s.run.nvtx),
      switch_flag("--trace", "where the time of a step goes, node by node", s.trace),
      text_flag("--ops", "FILE", "database that takes the time of every op of a step (one rank)", s.ops),
      text_flag("--predict", "FILE",
                "what a step would take by a database of measured ops, or by that of h200; nothing is run",
                s.predict),
      switch_flag("--json", "one JSON document", s.json),
  };
}

// Times the steps of rank 0 and keeps what it held.
class Measure final : public Callback {
 public:
  Measure(const Settings& settings, const Log& log) : settings_(settings), log_(log) {}

  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::train_start) {
      config = view.config;
      progress_ = std::make_unique<Progress>(log_, "steps", settings_.run.warmup + settings_.run.steps);
    }
    if (event == RunEvent::step_end) step(view);
    if (event == RunEvent::train_end) finish(view);
  }

  std::vector<double> seconds;
  double loss = 0;
  double start_up = 0;      // from the command on until the first step was finished
  MemoryStatistics memory;  // of rank 0
  std::string trace;
  autotune::StepDatabase ops;
  Config config;  // that was run

 private:
  void step(RunView& view) {
    const IterationReport& report = *view.report;
    if (report.iteration == 1) {
      start_up = process_age();
      reserved_ = view.ctx.allocator->statistics().peak_reserved;
    }
    if (report.iteration > settings_.run.warmup) seconds.push_back(report.milliseconds * 1e-3);
    loss = report.loss;
    progress_->update(report.iteration,
                      report.iteration <= settings_.run.warmup ? "warming up" : "measuring");
  }

  void finish(RunView& view) {
    progress_.reset();
    memory = view.ctx.allocator->statistics();
    memory.peak_reserved = std::max(reserved_, memory.peak_reserved);
    if (!settings_.ops.empty()) ops.steps = {profile_steps(view, settings_.name, 0.5)};
    if (!settings_.trace) return;
    const auto source = random_rows(config);
    const Shares shares = Shares::even(config.train.global_batch_size, config.train.micro_batch_size, 1);
    const std::vector<Batch> batches = source->step({0, 0, shares.of_replica[0]});
    NodeTimer timer(view.ctx);
    constexpr int steps = 5;
    for (int step = 0; step < steps; ++step) {
      timer.start_step();
      view.trainer.step(view.ctx, batches, 1e-3);
      timer.end_step();
    }
    trace = timer.table();
  }

  const Settings& settings_;
  Log log_;
  std::unique_ptr<Progress> progress_;
  size_t reserved_ = 0;  // in the first step, which autotunes GEMMs
};

// How near a run comes to what the device could do at most, in per cent.
struct Standing {
  double mfu;    // the model's arithmetic against the device's
  double light;  // the time of every op at full speed, nothing else between, against the time of a step
};

std::string text_of(const std::optional<Standing>& standing, const std::string& gpu) {
  if (standing)
    return fmt::format("  MFU {:.1f} %  {:.1f} % of the speed of light", standing->mfu, standing->light);
  return gpu.empty() ? "" : fmt::format("  MFU and speed of light: unknown peak of {}", gpu);
}

}  // namespace

std::string bench_train_help() {
  Settings unused;
  std::string text =
      "usage: megatron bench train CASE [options] [section.key=value ...]\n"
      "\n"
      "Trains a named case on random tokens and tells its speed, its memory, and the time from the command\n"
      "on until the first step was finished. Where the maker's figures of the GPU are known, it tells MFU,\n"
      "the model's FLOP/s over those of dense GEMMs of the precision, and the share of the speed of\n"
      "light: the time that the ops of a step need at full arithmetic or bandwidth, over that of the step.\n"
      "\n"
      "cases:\n";
  return text + case_list() + "\n" + flags_help(flags(unused));
}

namespace {

// Tells what the case would take by a database of measured ops.
int predict_case(Invocation& invocation, const TrainCase& chosen, const Settings& settings, bool cuda) {
  const Config config =
      resolve(sources_of(chosen, settings.run), {.purpose = Purpose::model, .allow_unavailable = true})
          .config;
  const autotune::StepDatabase database = autotune_step_database(settings.predict);
  const PlannedStep step = planned_step(config, cuda);
  const autotune::StepPrice price = autotune::OpPricer(database).price(step.ops);
  const double tokens = static_cast<double>(config.train.global_batch_size * config.model.seq_length);
  const double gib = static_cast<double>(step.memory.total.peak) / (1 << 30);
  if (settings.json) {
    Json json;
    json["case"] = chosen.name;
    json["tokens_per_second"] = tokens / price.seconds;
    json["iteration_ms"] = price.seconds * 1e3;
    json["host_ms"] = price.host * 1e3;
    json["memory_gib"] = gib;
    json["unknown_percent"] = 100 * price.unknown;
    Json& families = json["families_ms"] = Json::object();
    for (const auto& [family, seconds] : price.by_family) families[family] = seconds * 1e3;
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  fmt::print(invocation.out,
             "predicted by ops of {}: {:.0f} tokens/s  {:.1f} ms a step (host {:.1f})  {:.2f} GiB a rank  "
             "clock {:+.1f} %  {:.1f} % by ops that it does not know\n",
             database.device, tokens / price.seconds, price.seconds * 1e3, price.host * 1e3, gib,
             100 * std::expm1(price.clock), 100 * price.unknown);
  return 0;
}

}  // namespace

int bench_train(Invocation& invocation) {
  Settings settings;
  const TrainCase& chosen =
      find_case("bench train", parse_flags("bench train", invocation.args, flags(settings)), &settings.run);
  BenchRun& layout = settings.run;
  settings.name = std::string(chosen.name);
  const bool alone = layout.ranks() == 1;
  if ((settings.trace || !settings.ops.empty()) && !alone)
    throw UsageError("bench train: --trace and --ops are for one rank");
  if (layout.graphs && !alone)
    throw UsageError(
        "bench train: --graphs is for one rank; megatron pretrain records several that NCCL connects");
  if (settings.trace && layout.graphs)
    throw UsageError("bench train: --trace times nodes one by one, which --graphs runs as one");
  const bool cuda = layout.choose_device();
  if (!settings.predict.empty()) return predict_case(invocation, chosen, settings, cuda);
  RunSpec spec;
  spec.sources = sources_of(chosen, layout);
  spec.log = invocation.log;
  spec.out = nullptr;
  spec.data = [](const Config& config) { return RunData{.train = random_rows(config)}; };
  const auto measured_by = std::make_shared<Measure>(settings, invocation.log);
  spec.callbacks = {measured_by};
  invocation.log.info("{}: {:.1f}M parameters, {} on {}, tp {} x pp {} x dp {}", chosen.name,
                      static_cast<double>(parameter_count(model_of(chosen))) / 1e6, layout.precision,
                      cuda ? "cuda" : "cpu", layout.tensor_parallel, layout.pipeline_parallel,
                      layout.data_parallel);
  if (const RunEnd end = run(spec); end.reason != RunEnd::Reason::finished)
    throw Error("bench train: " + end.text());
  Measure& measured = *measured_by;
  if (!settings.ops.empty()) {
    measured.ops.device = cuda ? gpu_name(0) : "CPU";
    measured.ops.library = std::string(build_info().version);
    write_file_atomically(settings.ops, measured.ops.text());
  }
  const Config& config = measured.config;
  const DType dtype = model_dtype(config);
  const ParallelSizes sizes = parallel_sizes(config, config.run.ranks);
  const std::string gpu = cuda ? gpu_name(0) : "";
  const std::optional<DeviceSpeed> peak = peak_speed(gpu, dtype);
  const RunPlan plan = plan_run(config, sizes, dtype, peak.value_or(DeviceSpeed{}));
  const double predicted = plan.ranks[0].bytes() / (1 << 30);
  std::sort(measured.seconds.begin(), measured.seconds.end());
  double median = measured.seconds[measured.seconds.size() / 2];
  const int64_t length = config.model.seq_length;
  double rate = static_cast<double>(config.train.global_batch_size * length) / median;
  double tflops = rate * model_flops_per_token(config.model, length, sizes.tp) / 1e12;
  std::optional<Standing> standing;
  if (peak) {
    const double flops = fp8_recipe(layout.precision) ? peak->fp8_flops : peak->flops;
    const double floor = plan.seconds() * sizes.world / sizes.pp;  // of all ranks, which share the device
    standing = {.mfu = 100 * tflops * 1e12 / flops, .light = 100 * floor / median};
  }
  double gib = static_cast<double>(measured.memory.total.peak) / (1 << 30);
  double reserved = static_cast<double>(measured.memory.peak_reserved) / (1 << 30);
  if (settings.json) {
    Json json;
    json["case"] = chosen.name;
    json["tokens_per_second"] = rate;
    json["model_tflops"] = tflops;
    if (standing) {
      json["mfu_percent"] = standing->mfu;
      json["light_percent"] = standing->light;
    }
    json["iteration_ms"] = median * 1e3;
    json["first_step_seconds"] = measured.start_up;
    json["memory_gib"] = gib;
    json["predicted_memory_gib"] = predicted;
    json["reserved_gib"] = reserved;
    json["loss"] = measured.loss;
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  fmt::print(
      invocation.out,
      "{:.0f} tokens/s  {:.3f} model TFLOP/s{}  {:.1f} ms a step (best {:.1f})  first step after {:.2f} s  "
      "{:.2f} GiB a rank ({:.2f} predicted, {:.2f} reserved)  loss {:.4f}\n",
      rate, tflops, text_of(standing, gpu), median * 1e3, measured.seconds[0] * 1e3, measured.start_up, gib,
      predicted, reserved, measured.loss);
  if (settings.trace) fmt::print(invocation.out, "\n{}\n{}", measured.trace, measured.memory.table());
  return 0;
}

}  // namespace megatron
