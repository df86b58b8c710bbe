#include "megatron/cli/bench/bench_train.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

#include "megatron/base/cache_folder.h"
#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/progress.h"
#include "megatron/cli/bench/node_timer.h"
#include "megatron/cli/bench/process_age.h"
#include "megatron/cli/common/check_layout.h"
#include "megatron/cli/flags.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/profiler.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/log/profiling.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/plan/recompute_setup.h"
#include "megatron/training/step/gemm_autotune_cache.h"
#include "megatron/training/step/rank_trainer.h"

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
  int64_t steps = 10, warmup = 3, tensor_parallel = 1, pipeline_parallel = 1, data_parallel = 1, threads = 0;
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
      int_flag("--threads", "CPU threads of the whole run (every core)", s.threads),
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

Config config_of(const Case& c, const Settings& s) {
  Config config;
  config.model = c.style(c.shape);
  config.model.share_embeddings_and_output_weights = c.tied;
  config.model.add_qkv_bias = c.qkv_bias;
  config.parallel.tensor_model_parallel_size = s.tensor_parallel;
  config.parallel.pipeline_model_parallel_size = s.pipeline_parallel;
  config.parallel.sequence_parallel = s.tensor_parallel > 1;
  int64_t pieces = s.data_parallel * s.micro_batches;
  if (c.batch % pieces != 0)
    throw ConfigError(
        fmt::format("bench train: the batch of {} sequences cannot be cut into {} x {} micro-batches",
                    c.batch, s.data_parallel, s.micro_batches));
  config.train.global_batch_size = c.batch;
  config.train.micro_batch_size = c.batch / pieces;
  config.precision.deterministic_mode = s.deterministic;
  if (auto recipe = fp8_recipe(s.precision)) {
    config.precision.fp8 = *recipe == Fp8Recipe::blockwise ? Fp8Format::e4m3 : Fp8Format::hybrid;
    config.precision.fp8_recipe = *recipe;
    config.precision.fp8_amax_history_len = 16;
    config.precision.fp8_amax_compute_algo = AmaxAlgorithm::max;
  }
  if (s.gradients != "bf16" && s.gradients != "fp32")
    throw UsageError(fmt::format("bench train: --gradients {} is neither bf16 nor fp32", s.gradients));
  config.ddp.grad_reduce_in_fp32 = s.gradients == "fp32";
  const bool fp8 = config.precision.fp8 != Fp8Format::none;
  std::string_view modules = s.recompute;
  if (modules.empty()) modules = fp8 ? "none" : c.recompute;
  if (modules == "none") modules = {};
  for (std::string_view module : comma_separated(modules)) {
    if (module != "core_attn" && module != "layernorm" && module != "mlp_act" && module != "mlp" &&
        modules != "auto")
      throw UsageError(
          fmt::format("bench train: --recompute takes core_attn, layernorm, mlp_act and mlp, auto or none, "
                      "not {}",
                      module));
    config.execution.recompute_granularity = RecomputeGranularity::selective;
    config.execution.recompute_modules.emplace_back(module);
  }
  config.profiling.nvtx_ranges = s.nvtx;
  if (s.graphs) config.execution.cuda_graph_impl = GraphImpl::full_iteration;
  config.execution.cuda_graph_warmup_steps = 2;
  config.optimizer.use_precision_aware_optimizer = true;  // what its masters hold is fp32 all the same
  config.optimizer.exp_avg_dtype = config.optimizer.exp_avg_sq_dtype = s.moments;
  config.optimizer.adam_beta2 = 0.95;
  config.optimizer.weight_decay = 0.1;
  return config;
}

ParallelSizes sizes_of(const Settings& s) {
  return {.world = static_cast<int>(s.tensor_parallel * s.pipeline_parallel * s.data_parallel),
          .tp = static_cast<int>(s.tensor_parallel),
          .pp = static_cast<int>(s.pipeline_parallel)};
}

struct Measured {
  std::vector<double> seconds;
  double loss = 0;
  double start_up = 0;      // from the command on until the first step was finished
  MemoryStatistics memory;  // of rank 0
  std::string trace;
};

Measured measure(const Config& config, const Settings& s, Device device, DType dtype, const Log& log) {
  using Clock = std::chrono::steady_clock;
  auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const ParallelSizes sizes = sizes_of(s);
  int threads = s.threads > 0 ? static_cast<int>(s.threads) : available_cores();
  Measured result;
  run_ranks(sizes.world, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(device, std::max(1, threads / sizes.world), rank);
    world.attach(ctx);
    ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    GemmAutotuneCache autotune(ctx, world, s.deterministic ? "" : cache_folder());
    RankTrainer trainer(ctx, config, parallel, dtype);
    const Profiling profiling(ctx, config.profiling);
    int64_t sequences = config.train.global_batch_size / s.data_parallel;
    std::vector<int64_t> tokens(static_cast<size_t>(sequences * (config.model.seq_length + 1)));
    auto stream = static_cast<uint64_t>(parallel.rank(Axis::dp));
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = Philox::at({99, stream}, i).word[0] % static_cast<uint64_t>(config.model.vocab_size);
    size_t reserved = 0;
    std::unique_ptr<Progress> progress;
    if (rank == 0) progress = std::make_unique<Progress>(log, "steps", s.warmup + s.steps);
    for (int64_t step = 0; step < s.warmup + s.steps; ++step) {
      auto start = Clock::now();
      double loss = trainer.step(ctx, tokens, 1e-3).loss;
      if (step == 0) {
        if (rank == 0) result.start_up = process_age();
        autotune.finish_first_step();
      }
      if (rank != 0) continue;
      if (step == 0) {
        reserved = ctx.allocator->statistics().peak_reserved;
        // Autotuning GEMMs takes memory, once.
        if (s.warmup + s.steps > 1) ctx.allocator->reset_peaks();
      }
      if (step >= s.warmup) result.seconds.push_back(since(start));
      result.loss = loss;
      progress->update(step + 1, step < s.warmup ? "warming up" : "measuring");
    }
    progress.reset();
    if (rank != 0) return;
    result.memory = ctx.allocator->statistics();
    result.memory.peak_reserved = std::max(reserved, result.memory.peak_reserved);
    if (!s.trace) return;
    NodeTimer timer(ctx);
    constexpr int steps = 5;
    for (int step = 0; step < steps; ++step) {
      timer.start_step();
      trainer.step(ctx, tokens, 1e-3);
      timer.end_step();
    }
    result.trace = timer.table();
  });
  return result;
}

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
  Config config = config_of(chosen, settings);
  const bool alone = settings.tensor_parallel * settings.pipeline_parallel * settings.data_parallel == 1;
  if (settings.trace && !alone) throw UsageError("bench train: --trace is for one rank");
  if (settings.graphs && !alone)
    throw UsageError(
        "bench train: --graphs is for one rank; megatron pretrain records several that NCCL connects");
  if (settings.trace && settings.graphs)
    throw UsageError("bench train: --trace times nodes one by one, which --graphs runs as one");
  if (settings.nvtx && !has_profiler())
    invocation.log.warning("--nvtx-ranges tells nobody: this is a build without CUDA");
  check_layout(config, settings.data_parallel);
  bool cuda = settings.device == "cuda" || (settings.device == "auto" && cuda_device_count() > 0);
  if (settings.precision.empty()) settings.precision = cuda ? "bf16" : "fp32";
  Device device = cuda ? Device{DeviceType::Cuda, 0} : kCpu;
  invocation.log.info("{}: {:.1f}M parameters, {} on {}, tp {} x pp {} x dp {}", chosen.name,
                      static_cast<double>(parameter_count(config.model)) / 1e6, settings.precision, device,
                      settings.tensor_parallel, settings.pipeline_parallel, settings.data_parallel);
  const DType dtype = dtype_from_name(fp8_recipe(settings.precision) ? "bf16" : settings.precision);
  if (!settings.memory_gib.empty()) {
    if (!chooses_recompute(config)) throw UsageError("bench train: --memory-gib is for --recompute auto");
    config.execution.recompute_memory_gib =
        parse_positive("bench train", "--memory-gib", settings.memory_gib);
  }
  const ParallelSizes sizes = sizes_of(settings);
  if (const auto choice = settle_recompute(config, sizes, dtype, device.type, sizes.world))
    invocation.log.info("{}", choice->table());
  const std::string gpu = cuda ? gpu_name(device.index) : "";
  const std::optional<DeviceSpeed> peak = peak_speed(gpu, dtype);
  const RunPlan plan = plan_run(config, sizes, dtype, peak.value_or(DeviceSpeed{}));
  const double predicted = plan.ranks[0].bytes() / (1 << 30);
  Measured measured = measure(config, settings, device, dtype, invocation.log);
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
