#include "megatron/cli/bench/bench_parts.h"

#include <algorithm>
#include <chrono>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/median.h"
#include "megatron/base/seconds_since.h"
#include "megatron/cli/bench/bench_cases.h"
#include "megatron/cli/bench/read_speed.h"
#include "megatron/cli/common/model_arguments.h"
#include "megatron/cli/flags.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/inference/engine.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/nn/quantize_parameter.h"
#include "megatron/tensor/philox.h"
#include "megatron/training/run/rank_launch.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {
namespace {

struct GenerateBench {
  BenchRun run;
  int64_t batch = 1, prompt = 32, tokens = 64;
  int64_t requests = 0, step_tokens = 0, shared = 0;
  std::string quantization, kv_cache_dtype;
  bool first_token = false, no_cuda_graphs = false, json = false;
};

std::vector<Flag> generate_bench_flags(GenerateBench& s) {
  return {
      int_flag("--batch", "sequences at once [1]", s.batch, 1),
      int_flag("--prompt", "tokens of each prompt [32]", s.prompt, 1),
      int_flag("--tokens", "measured tokens of each answer [64]", s.tokens, 1),
      int_flag("--tensor-model-parallel-size", "ranks that share each layer [1]", s.run.tensor_parallel, 1),
      int_flag("--pipeline-model-parallel-size", "ranks that share the layers among them [1]",
               s.run.pipeline_parallel, 1),
      text_flag("--device", "cpu|cuda", "where to compute [cuda where a GPU is there]", s.run.device),
      text_flag("--precision", "fp32|bf16", "of weights and cache [fp32 on the CPU, bf16 on a GPU]",
                s.run.precision),
      text_flag("--quantization", "int8|int4|fp8", "of weights; int4 on the CPU, fp8 on a GPU [none]",
                s.quantization),
      text_flag("--kv-cache-dtype", "auto|fp8", "of keys and values [auto: --precision]", s.kv_cache_dtype),
      int_flag("--requests", "answer so many in all, --batch at once", s.requests),
      int_flag("--step-tokens", "of prompts and answers in one step [2048]", s.step_tokens),
      switch_flag("--first-token", "time from a prompt to its first token", s.first_token),
      int_flag("--shared-prefix", "--first-token again, with as many shared", s.shared),
      switch_flag("--no-cuda-graphs", "on a GPU, launch every kernel by itself", s.no_cuda_graphs),
      switch_flag("--json", "one JSON document", s.json),
  };
}

// The figures of all ranks together.
struct GenerateFigures {
  double parameters = 0, weight_bytes = 0;  // bytes: of what every step reads
  double cache_bytes = 0;                   // that a step in the middle of the answers reads
  double prefill_seconds = 0;
  std::vector<double> steps, reads;  // seconds: of a step, and of reading as many bytes of plain memory
  std::vector<double> gpu;           // seconds of the steps on the GPU
  EngineStats end;                   // when all is answered
  double all_seconds = 0;            // of --requests, prompts and answers
  std::vector<double> first_tokens, shared_tokens;  // seconds: of a prompt, and of one with its prefix
};

// Weights that a token passes through; of a table of embeddings it reads one row.
double bytes_read(Model& model) {
  double bytes = 0;
  for (Parameter* parameter : model.parameters()) {
    const bool table = parameter->name.starts_with("embedding."),
               serves_as_head = parameter->name == "embedding.word_embeddings.weight" &&
                                model.config().share_embeddings_and_output_weights;
    if (!table || serves_as_head) {
      bytes += static_cast<double>(parameter->value.bytes());
      if (parameter->scale) bytes += static_cast<double>(parameter->scale.bytes());
    }
  }
  return bytes;
}

class GenerateMeasure {
 public:
  GenerateMeasure(const GenerateBench& settings, const Config& config)
      : settings_(settings), config_(config), quantized_(quantized_dtype(settings.quantization, config)) {}

  void run(RankContext& ctx, const ProcessGroup& world) {
    const auto parallel = ParallelContext::from_sizes(world, parallel_sizes(config_, world.size()));
    const DType dtype = model_dtype(config_);
    Model model(config_, parallel, dtype);
    double parameters = 0;
    for (Parameter* parameter : model.parameters()) {
      parameter->allocate(ctx, dtype);
      parameter->initialize(ctx, 7);
      parameters += static_cast<double>(parameter->value.numel());
      if (quantized_) quantize_parameter(ctx, *parameter, *quantized_);
    }
    Tensor sums = ctx.from_vector(std::vector<double>{parameters, bytes_read(model)}, {2});
    world.all_reduce(sums, ReduceOp::Sum).wait();
    const std::vector<double> all = ctx.to_vector<double>(sums);
    figures.parameters = all[0];
    figures.weight_bytes = all[1];

    EngineOptions options{.max_requests = settings_.batch};
    options.max_length = settings_.prompt + settings_.tokens + 1;
    options.max_tokens = std::max<int64_t>(
        settings_.step_tokens > 0 ? settings_.step_tokens : options.max_tokens, settings_.batch);
    options.prefix_caching = settings_.shared > 0;
    options.fp8_cache = fp8_cache(settings_.kv_cache_dtype);
    options.cuda_graphs = !settings_.no_cuda_graphs;
    options.time_steps = settings_.requests == 0 && !settings_.first_token;
    options.cache_bytes = int64_t{1} << 40;  // as many blocks as these requests need
    const CacheShapes shapes = model.cache_shapes();
    const double token_bytes =
        static_cast<double>(PagedCache::block_bytes(shapes, options.fp8_cache ? DType::F8E4M3 : dtype, 1)) *
        static_cast<double>(world.size());
    figures.cache_bytes = token_bytes * static_cast<double>(settings_.batch) *
                          static_cast<double>(settings_.prompt + settings_.tokens / 2);
    Engine engine(ctx, world, model, options);
    if (world.rank() != 0) return engine.run();
    answer(engine, settings_.requests > 0 ? 1 : settings_.batch, 2, nullptr);  // fills caches, wakes threads
    if (settings_.requests > 0) {
      answer_all(engine);
    } else if (settings_.first_token) {
      time_first_tokens(engine);
    } else {
      ReadSpeed reader(ctx, figures.weight_bytes + figures.cache_bytes);
      answer(engine, settings_.batch, settings_.tokens + 1,
             ctx.device == kCpu && world.size() == 1 ? &reader : nullptr);
    }
    engine.stop();
    engine.run();
  }

  GenerateFigures figures;  // of the last answers

 private:
  // Random tokens, of which `shared` are those of prompt `like`.
  Request request_of(const Engine& engine, int64_t index, int64_t tokens, int64_t shared = 0,
                     int64_t like = 0) const {
    Request request{.prompt = {}, .max_tokens = tokens};
    for (int64_t at = 0; at < settings_.prompt; ++at)
      request.prompt.push_back(static_cast<int64_t>(
          Philox::at({5, static_cast<uint64_t>(at < shared ? like : index)}, static_cast<uint64_t>(at))
              .word[0] %
          static_cast<uint64_t>(engine.vocab_size())));
    return request;
  }

  // All requests at once: the engine takes them in as others end.
  void answer_all(Engine& engine) {
    int64_t done = 0;
    for (int64_t i = 0; i < settings_.requests; ++i)
      engine.submit(request_of(engine, i, settings_.tokens), [&done](const RequestUpdate& update) {
        if (!update.finish) return;
        require(*update.finish == FinishReason::length,
                "bench generate: a request did not end by its length");
        ++done;
      });
    const auto start = std::chrono::steady_clock::now();
    while (done < settings_.requests) engine.step();
    figures.all_seconds = seconds_since(start);
    figures.end = engine.stats();
  }

  double seconds_to_first(Engine& engine, Request request) {
    bool done = false;
    const auto start = std::chrono::steady_clock::now();
    engine.submit(std::move(request),
                  [&done](const RequestUpdate& update) { done = !update.tokens.empty(); });
    while (!done) engine.step();
    const double seconds = seconds_since(start);
    engine.step();  // what is finished leaves
    return seconds;
  }

  void time_first_tokens(Engine& engine) {
    for (int64_t i = 0; i < 7; ++i) {
      const int64_t own = 1000 + 2 * i;
      figures.first_tokens.push_back(seconds_to_first(engine, request_of(engine, own, 1)));
      if (settings_.shared > 0)
        figures.shared_tokens.push_back(
            seconds_to_first(engine, request_of(engine, own + 1, 1, settings_.shared, own)));
    }
    figures.end = engine.stats();
  }

  void answer(Engine& engine, int64_t count, int64_t tokens, ReadSpeed* reader) {
    int64_t begun = 0;
    for (int64_t i = 0; i < count; ++i) {
      engine.submit(request_of(engine, i, tokens),
                    [&begun, first = true](const RequestUpdate& update) mutable {
                      if (first && !update.tokens.empty()) ++begun;
                      first = false;
                    });
    }
    figures.steps.clear();
    figures.reads.clear();
    figures.gpu.clear();
    const auto start = std::chrono::steady_clock::now();
    while (begun < count) engine.step();
    figures.prefill_seconds = seconds_since(start);
    for (int64_t i = 1; i < tokens; ++i) {
      const auto step = std::chrono::steady_clock::now();
      engine.step();
      figures.steps.push_back(seconds_since(step));
      figures.gpu.push_back(engine.stats().gpu_seconds);
      if (reader) figures.reads.push_back(reader->seconds());
    }
    figures.end = engine.stats();
    engine.step();  // what is finished leaves
  }

  const GenerateBench& settings_;
  const Config& config_;
  std::optional<DType> quantized_;
};

Config config_of(const TrainCase& chosen, const GenerateBench& s) {
  Sources sources;
  sources.hf_origin = fmt::format("the case {}", chosen.name);
  sources.hf = model_settings(model_of(chosen));
  const int64_t ranks = s.run.tensor_parallel * s.run.pipeline_parallel;
  sources.overrides = {fmt::format("run.ranks={}", ranks)};
  if (s.run.device != "auto") sources.overrides.push_back("run.device=" + s.run.device);
  if (s.run.precision == "bf16") sources.overrides.push_back("model.bf16=true");
  sources.flags = {{"--tensor-model-parallel-size", {std::to_string(s.run.tensor_parallel)}},
                   {"--pipeline-model-parallel-size", {std::to_string(s.run.pipeline_parallel)}}};
  return resolve(sources, {.purpose = Purpose::forward}).config;
}

// The figures of --requests and --first-token.
void tell_load(Invocation& invocation, std::string_view name, const GenerateBench& settings,
               const GenerateFigures& figures) {
  Json json;
  json["case"] = std::string(name);
  json["precision"] = settings.run.precision;
  json["quantization"] = settings.quantization.empty() ? "none" : settings.quantization;
  json["kv_cache_dtype"] = settings.kv_cache_dtype.empty() ? "auto" : settings.kv_cache_dtype;
  json["prompt"] = settings.prompt;
  if (settings.requests > 0) {
    const double answers = static_cast<double>(settings.requests * settings.tokens) / figures.all_seconds,
                 prompts = static_cast<double>(settings.requests * settings.prompt) / figures.all_seconds;
    json["requests"] = settings.requests;
    json["batch"] = settings.batch;
    json["tokens"] = settings.tokens;
    json["seconds"] = figures.all_seconds;
    json["tokens_per_second"] = answers;
    json["prompt_tokens_per_second"] = prompts;
    json["evictions"] = figures.end.evictions;
    if (!settings.json)
      fmt::print(invocation.out,
                 "{} requests of {} and {} tokens, {} at once: {:.2f} s, answers {:.0f} tokens/s, prompts "
                 "{:.0f} tokens/s beside them\n",
                 settings.requests, settings.prompt, settings.tokens, settings.batch, figures.all_seconds,
                 answers, prompts);
  } else {
    const double first = median(figures.first_tokens), best = *std::ranges::min_element(figures.first_tokens);
    json["first_token_ms"] = first * 1e3;
    json["best_first_token_ms"] = best * 1e3;
    std::string shared;
    if (!figures.shared_tokens.empty()) {
      const double again = median(figures.shared_tokens);
      json["shared_prefix"] = settings.shared;
      json["shared_first_token_ms"] = again * 1e3;
      json["shared_percent"] = 100 * again / first;
      shared = fmt::format("; with {} tokens shared {:.2f} ms, {:.1f} %", settings.shared, again * 1e3,
                           100 * again / first);
    }
    if (!settings.json)
      fmt::print(
          invocation.out, "first token of a prompt of {}: {:.2f} ms (best {:.2f}), {:.0f} tokens/s{}\n",
          settings.prompt, first * 1e3, best * 1e3, static_cast<double>(settings.prompt) / first, shared);
  }
  if (settings.json) fmt::print(invocation.out, "{}\n", json.dump());
}

}  // namespace

std::string bench_generate_help() {
  GenerateBench unused;
  return "usage: megatron bench generate CASE [options]\n"
         "\n"
         "Lets a named case with random weights answer random prompts, and tells the speed of prompts and "
         "of\n"
         "steps that write one token of each sequence. On one rank of the CPU each step is measured beside "
         "a\n"
         "read of as many bytes of memory as it reads: the speed that memory allows. --requests and\n"
         "--first-token measure whole answers and prompts instead.\n"
         "\n"
         "cases:\n" +
         case_list() + "\n" + flags_help(generate_bench_flags(unused));
}

int bench_generate(Invocation& invocation) {
  GenerateBench settings;
  const TrainCase& chosen = find_case(
      "bench generate", parse_flags("bench generate", invocation.args, generate_bench_flags(settings)));
  settings.run.choose_device();
  if (settings.run.precision != "fp32" && settings.run.precision != "bf16")
    throw UsageError(
        fmt::format("bench generate: --precision {} is neither fp32 nor bf16", settings.run.precision));
  if (settings.prompt + settings.tokens + 1 > chosen.shape.length)
    throw UsageError(
        fmt::format("bench generate: {} reads {} tokens at most, {} of a prompt and {} more are too "
                    "many; lower --prompt or --tokens",
                    chosen.name, chosen.shape.length, settings.prompt, settings.tokens + 1));
  if (settings.shared > 0 && (!settings.first_token || settings.shared >= settings.prompt))
    throw UsageError(
        "bench generate: --shared-prefix is for --first-token, and shorter than the prompt; lower it");
  fp8_cache(settings.kv_cache_dtype);
  const Config config = config_of(chosen, settings);
  quantized_dtype(settings.quantization, config);
  GenerateFigures figures;
  run_on_ranks(config, launch_place(), invocation.log, [&](RankContext& ctx, const ProcessGroup& world) {
    GenerateMeasure measure(settings, config);
    measure.run(ctx, world);
    if (world.rank() == 0) figures = measure.figures;
  });
  if (settings.requests > 0 || settings.first_token) {
    tell_load(invocation, chosen.name, settings, figures);
    return 0;
  }
  const double step = median(figures.steps), best = *std::ranges::min_element(figures.steps);
  const double rate = static_cast<double>(settings.batch) / step;
  const double prefill = static_cast<double>(settings.batch * settings.prompt) / figures.prefill_seconds;
  const double bytes = figures.weight_bytes + figures.cache_bytes;
  const bool beside = !figures.reads.empty(), on_gpu = figures.end.gpu_seconds > 0;
  const double gpu = median(figures.gpu);
  const double read = beside ? median(figures.reads) : 0,
               best_read = beside ? *std::ranges::min_element(figures.reads) : 0;
  if (settings.json) {
    Json json;
    json["case"] = chosen.name;
    json["precision"] = settings.run.precision;
    json["batch"] = settings.batch;
    json["prompt_tokens_per_second"] = prefill;
    json["tokens_per_second"] = rate;
    json["step_ms"] = step * 1e3;
    json["best_step_ms"] = best * 1e3;
    json["gigabytes_per_step"] = bytes / 1e9;
    json["gigabytes_per_second"] = bytes / step / 1e9;
    if (beside) {
      json["read_gigabytes_per_second"] = bytes / read / 1e9;
      json["percent_of_read"] = 100 * read / step;
      json["best_percent_of_read"] = 100 * best_read / best;
    }
    if (on_gpu) {
      json["gpu_step_ms"] = gpu * 1e3;
      json["host_step_ms"] = (step - gpu) * 1e3;
      json["cuda_graphs"] = figures.end.cuda_graphs;
      json["cuda_graph_bytes"] = figures.end.graph_bytes;
      if (!figures.end.graph_fault.empty()) json["cuda_graph_fault"] = figures.end.graph_fault;
    }
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  fmt::print(
      invocation.out,
      "{:.1f}M parameters, {}: prompts {:.0f} tokens/s  answers {:.1f} tokens/s  {:.3f} ms a step (best "
      "{:.3f})  {:.1f} GB/s",
      figures.parameters / 1e6, settings.run.precision, prefill, rate, step * 1e3, best * 1e3,
      bytes / step / 1e9);
  if (beside)
    fmt::print(invocation.out, ", {:.1f} % of reading memory at {:.1f} GB/s (best of each {:.1f} %)",
               100 * read / step, bytes / read / 1e9, 100 * best_read / best);
  fmt::print(invocation.out, "\n");
  if (on_gpu)
    fmt::print(invocation.out,
               "a step: GPU {:.3f} ms, host alone {:.3f} ms; {} CUDA graphs with {:.1f} MB{}\n", gpu * 1e3,
               (step - gpu) * 1e3, figures.end.cuda_graphs,
               static_cast<double>(figures.end.graph_bytes) / 1e6,
               figures.end.graph_fault.empty() ? "" : "; " + figures.end.graph_fault);
  return 0;
}

}  // namespace megatron
