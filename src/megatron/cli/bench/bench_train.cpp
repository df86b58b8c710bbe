#include "megatron/cli/bench/bench_train.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/progress.h"
#include "megatron/cli/bench/node_timer.h"
#include "megatron/cli/bench/process_age.h"
#include "megatron/cli/flags.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/profiler.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/run/run.h"
#include "megatron/training/setup/parallel_setup.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {
namespace {

// A named training run. bench/peers holds the PyTorch counterpart of each.
struct Case {
  std::string_view name, summary;
  DecoderShape shape;
  int64_t batch;
  bool tied, qkv_bias = false;
  std::string_view recompute = "";  // modules, where memory should be saved
  ModelConfig (*style)(const DecoderShape&) = llama_style;
};

constexpr Case kCases[] = {
    {"gpt-10m", "10M parameters, for two cores", {8, 256, 8, 8, 640, 14336, 256}, 8, true},
    {"gpt-124m", "GPT 124M, gated", {12, 768, 12, 12, 2048, 50304, 1024}, 32, true, false, "mlp_act"},
    {"gpt2-124m", "GPT-2", {12, 768, 12, 12, 3072, 50304, 1024}, 32, true, false, "", gpt2_style},
    {"llama-1b", "Llama-3.2-1B shape", {16, 2048, 32, 8, 8192, 128256, 4096}, 4, true},
    {"gpt-1.7b", "1.7B, gated", {24, 2048, 16, 16, 5632, 131072, 4096}, 4, false},
    {"qwen2.5-0.5b", "Qwen2.5-0.5B shape", {24, 896, 14, 2, 4864, 151936, 1024}, 512, true, true},
    {"qwen2.5-1.5b", "Qwen2.5-1.5B shape", {28, 1536, 12, 2, 8960, 151936, 1024}, 512, true, true},
    {"llama-8b-16", "Llama-3-8B shape, 16 layers", {16, 4096, 32, 8, 14336, 128256, 4096}, 4, false},
};

struct Settings {
  int64_t steps = 10, warmup = 3, tensor_parallel = 1, pipeline_parallel = 1, data_parallel = 1;
  int64_t micro_batches = 1;
  std::string device = "auto", precision, gradients = "bf16", moments = "fp32", recompute, memory_gib;
  bool json = false, trace = false, deterministic = false, graphs = false, nvtx = false;
};

std::vector<Flag> flags(Settings& s) {
  return {
      int_flag("--steps", "measured steps (10)", s.steps, 1),
      int_flag("--warmup", "steps before them (3)", s.warmup),
      int_flag("--tensor-model-parallel-size", "ranks that share each layer (1)", s.tensor_parallel, 1),
      int_flag("--pipeline-model-parallel-size", "ranks that share the layers among them (1)",
               s.pipeline_parallel, 1),
      int_flag("--data-parallel-size", "ranks that share the batch (1)", s.data_parallel, 1),
      int_flag("--micro-batches", "pieces that the batch of a data-parallel rank is cut into (1)",
               s.micro_batches, 1),
      text_flag("--device", "cpu|cuda", "where to compute (cuda where a GPU is there)", s.device),
      text_flag("--precision", "fp32|bf16|fp8|fp8-delayed|fp8-block",
                "of weights and activations (fp32 on the CPU, bf16 on a GPU); fp8: bf16 with fp8 GEMMs, "
                "scaled by what is at hand, by the last 16 steps or block by block (all e4m3)",
                s.precision),
      switch_flag("--deterministic", "only kernels that give the same bits each run; GEMMs are not autotuned",
                  s.deterministic),
      text_flag("--moments", "fp32|bf16", "of Adam (fp32)", s.moments),
      text_flag("--gradients", "bf16|fp32", "of bf16 weights (bf16, as PyTorch has them)", s.gradients),
      text_flag("--recompute", "MODULES|auto|none",
                "make these again in the backward pass, as in layernorm,mlp_act; auto: the cheapest, until "
                "--memory-gib suffice (what the case says)",
                s.recompute),
      text_flag("--memory-gib", "N", "of a rank, for --recompute auto (nine tenths of the device's)",
                s.memory_gib),
      switch_flag("--graphs", "record forward and backward once and replay them (one rank)", s.graphs),
      switch_flag("--nvtx-ranges", "name ranges of work for a profiler (Nsight Systems)", s.nvtx),
      switch_flag("--trace", "where the time of a step goes, node by node", s.trace),
      switch_flag("--json", "one JSON document", s.json),
  };
}

std::optional<Fp8Recipe> fp8_recipe(const std::string& precision) {
  if (precision == "fp8") return Fp8Recipe::tensorwise;
  if (precision == "fp8-delayed") return Fp8Recipe::delayed;
  if (precision == "fp8-block") return Fp8Recipe::blockwise;
  return {};
}

const Case& find_case(const std::vector<std::string>& words) {
  if (words.size() == 1)
    for (const Case& c : kCases)
      if (c.name == words[0]) return c;
  std::string names;
  for (const Case& c : kCases) names += fmt::format("{}{}", names.empty() ? "" : ", ", c.name);
  throw UsageError(fmt::format("bench train: name one of the cases {}", names));
}

ModelConfig model_of(const Case& c) {
  ModelConfig model = c.style(c.shape);
  model.share_embeddings_and_output_weights = c.tied;
  model.add_qkv_bias = c.qkv_bias;
  return model;
}

// The settings of a case, as a command line would give them.
Sources sources_of(const Case& c, const Settings& s) {
  Sources sources;
  sources.hf_origin = fmt::format("the case {}", c.name);
  sources.hf = model_settings(model_of(c));
  const int64_t pieces = s.data_parallel * s.micro_batches;
  if (c.batch % pieces != 0)
    throw ConfigError(
        fmt::format("bench train: the batch of {} sequences cannot be cut into {} x {} micro-batches",
                    c.batch, s.data_parallel, s.micro_batches));
  if (s.gradients != "bf16" && s.gradients != "fp32")
    throw UsageError(fmt::format("bench train: --gradients {} is neither bf16 nor fp32", s.gradients));
  const auto set = [&](std::string_view key, const auto& value) {
    sources.overrides.push_back(fmt::format("{}={}", key, value));
  };
  set("run.ranks", s.tensor_parallel * s.pipeline_parallel * s.data_parallel);
  if (s.device != "auto") set("run.device", s.device);
  set("train.global_batch_size", c.batch);
  set("train.micro_batch_size", c.batch / pieces);
  set("train.train_iters", s.warmup + s.steps);
  set("model.deterministic_mode", s.deterministic);
  set("optimizer.lr", "1e-3");
  set("scheduler.lr_decay_style", "constant");
  set("optimizer.use_precision_aware_optimizer", true);  // what its masters hold is fp32 all the same
  set("optimizer.exp_avg_dtype", s.moments);
  set("optimizer.exp_avg_sq_dtype", s.moments);
  set("optimizer.adam_beta2", 0.95);
  set("optimizer.weight_decay", 0.1);
  set("profiling.nvtx_ranges", s.nvtx);
  sources.flags = {{"--tensor-model-parallel-size", {std::to_string(s.tensor_parallel)}},
                   {"--pipeline-model-parallel-size", {std::to_string(s.pipeline_parallel)}}};
  if (s.tensor_parallel > 1) sources.flags.push_back({"--sequence-parallel", {}});
  const std::optional<Fp8Recipe> fp8 = fp8_recipe(s.precision);
  if (fp8 || s.precision == "bf16") set("model.bf16", true);
  set("ddp.grad_reduce_in_fp32", s.gradients == "fp32");
  if (fp8) {
    set("model.fp8", name_of(*fp8 == Fp8Recipe::blockwise ? Fp8Format::e4m3 : Fp8Format::hybrid));
    set("model.fp8_recipe", name_of(*fp8));
    if (*fp8 == Fp8Recipe::delayed) {
      set("model.fp8_amax_history_len", 16);
      set("model.fp8_amax_compute_algo", "max");
    }
  }
  std::string_view modules = s.recompute;
  if (modules.empty()) modules = fp8 ? "none" : c.recompute;
  if (modules == "none") modules = {};
  for (std::string_view module : comma_separated(modules))
    if (module != "core_attn" && module != "layernorm" && module != "mlp_act" && module != "mlp" &&
        modules != "auto")
      throw UsageError(
          fmt::format("bench train: --recompute takes core_attn, layernorm, mlp_act and mlp, auto or none, "
                      "not {}",
                      module));
  if (!modules.empty()) {
    const auto words = comma_separated(modules);
    sources.flags.push_back({"--recompute-granularity", {"selective"}});
    sources.flags.push_back({"--recompute-modules", {words.begin(), words.end()}});
  }
  if (!s.memory_gib.empty()) {
    if (modules != "auto") throw UsageError("bench train: --memory-gib is for --recompute auto");
    set("model.recompute_memory_gib", parse_positive("bench train", "--memory-gib", s.memory_gib));
  }
  if (s.graphs) {
    sources.flags.push_back({"--cuda-graph-impl", {"full_iteration"}});
    set("model.cuda_graph_warmup_steps", 2);
  }
  return sources;
}

// The same random rows in every step.
std::shared_ptr<const BatchSource> random_rows(const Config& config) {
  const int64_t row = config.model.seq_length + 1;
  auto tokens = std::make_shared<std::vector<int64_t>>();
  for (int64_t i = 0; i < config.train.global_batch_size * row; ++i)
    tokens->push_back(static_cast<int64_t>(Philox::at({99, 0}, static_cast<uint64_t>(i)).word[0] %
                                           static_cast<uint64_t>(config.model.vocab_size)));
  return token_source(config.model.seq_length, -1, [tokens, row](int64_t, int64_t, int64_t index) {
    return std::vector<int64_t>(tokens->begin() + index * row, tokens->begin() + (index + 1) * row);
  });
}

// Times the steps of rank 0 and keeps what it held.
class Measure final : public Callback {
 public:
  Measure(const Settings& settings, const Log& log) : settings_(settings), log_(log) {}

  void on(RunEvent event, RunView& view) override {
    if (!view.is_first_rank()) return;
    if (event == RunEvent::train_start) {
      config = view.config;
      progress_ = std::make_unique<Progress>(log_, "steps", settings_.warmup + settings_.steps);
    }
    if (event == RunEvent::step_end) step(view);
    if (event == RunEvent::train_end) finish(view);
  }

  std::vector<double> seconds;
  double loss = 0;
  double start_up = 0;      // from the command on until the first step was finished
  MemoryStatistics memory;  // of rank 0
  std::string trace;
  Config config;  // that was run

 private:
  void step(RunView& view) {
    const IterationReport& report = *view.report;
    if (report.iteration == 1) {
      start_up = process_age();
      reserved_ = view.ctx.allocator->statistics().peak_reserved;
    }
    if (report.iteration > settings_.warmup) seconds.push_back(report.milliseconds * 1e-3);
    loss = report.loss;
    progress_->update(report.iteration, report.iteration <= settings_.warmup ? "warming up" : "measuring");
  }

  void finish(RunView& view) {
    progress_.reset();
    memory = view.ctx.allocator->statistics();
    memory.peak_reserved = std::max(reserved_, memory.peak_reserved);
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
      "usage: megatron bench train CASE [options]\n"
      "\n"
      "Trains a named case on random tokens and tells its speed, its memory, and the time from the command\n"
      "on until the first step was finished. Where the maker's figures of the GPU are known, it tells MFU,\n"
      "the model's FLOP/s over those of dense GEMMs of the precision, and the share of the speed of\n"
      "light: the time that the ops of a step need at full arithmetic or bandwidth, over that of the step.\n"
      "\n"
      "cases:\n";
  for (const Case& c : kCases)
    text += fmt::format("  {:<12}  {}: {} layers, {} wide, vocabulary {}, batch {} x {}\n", c.name, c.summary,
                        c.shape.layers, c.shape.hidden, c.shape.vocab, c.batch, c.shape.length);
  return text + "\n" + flags_help(flags(unused));
}

int bench_train(Invocation& invocation) {
  Settings settings;
  const Case& chosen = find_case(parse_flags("bench train", invocation.args, flags(settings)));
  const bool alone = settings.tensor_parallel * settings.pipeline_parallel * settings.data_parallel == 1;
  if (settings.trace && !alone) throw UsageError("bench train: --trace is for one rank");
  if (settings.graphs && !alone)
    throw UsageError(
        "bench train: --graphs is for one rank; megatron pretrain records several that NCCL connects");
  if (settings.trace && settings.graphs)
    throw UsageError("bench train: --trace times nodes one by one, which --graphs runs as one");
  const bool cuda = settings.device == "cuda" || (settings.device == "auto" && cuda_device_count() > 0);
  if (settings.precision.empty()) settings.precision = cuda ? "bf16" : "fp32";
  RunSpec spec;
  spec.sources = sources_of(chosen, settings);
  spec.log = invocation.log;
  spec.out = nullptr;
  spec.data = [](const Config& config) { return RunData{.train = random_rows(config)}; };
  const auto measured_by = std::make_shared<Measure>(settings, invocation.log);
  spec.callbacks = {measured_by};
  invocation.log.info("{}: {:.1f}M parameters, {} on {}, tp {} x pp {} x dp {}", chosen.name,
                      static_cast<double>(parameter_count(model_of(chosen))) / 1e6, settings.precision,
                      cuda ? "cuda" : "cpu", settings.tensor_parallel, settings.pipeline_parallel,
                      settings.data_parallel);
  if (const RunEnd end = run(spec); end.reason != RunEnd::Reason::finished)
    throw Error("bench train: " + end.text());
  Measure& measured = *measured_by;
  const Config& config = measured.config;
  const DType dtype = model_dtype(config);
  const ParallelSizes sizes = parallel_sizes(config, config.run.ranks);
  const std::string gpu = cuda ? gpu_name(0) : "";
  const std::optional<DeviceSpeed> peak = peak_speed(gpu, dtype);
  const RunPlan plan = plan_run(config, sizes, dtype, peak.value_or(DeviceSpeed{}));
  const double predicted = plan.ranks[0].bytes() / (1 << 30);
  std::sort(measured.seconds.begin(), measured.seconds.end());
  double median = measured.seconds[measured.seconds.size() / 2];
  double rate = static_cast<double>(chosen.batch * chosen.shape.length) / median;
  double tflops = rate * model_flops_per_token(config.model, chosen.shape.length, sizes.tp) / 1e12;
  std::optional<Standing> standing;
  if (peak) {
    const double flops = fp8_recipe(settings.precision) ? peak->fp8_flops : peak->flops;
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
