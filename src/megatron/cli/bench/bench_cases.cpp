#include "megatron/cli/bench/bench_cases.h"

#include "megatron/base/error.h"
#include "megatron/cli/bench/moe_styles.h"
#include "megatron/cli/flags.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/device/runtime.h"
#include "megatron/tensor/philox.h"

namespace megatron {
namespace {

constexpr TrainCase kCases[] = {
    {"gpt-10m", "10M parameters, for two cores", {8, 256, 8, 8, 640, 14336, 256}, 8, 1, true},
    {"gpt-124m", "GPT 124M, gated", {12, 768, 12, 12, 2048, 50304, 1024}, 32, 1, true, false, "mlp_act"},
    {"gpt2-124m", "GPT-2", {12, 768, 12, 12, 3072, 50304, 1024}, 32, 1, true, false, "", gpt2_style},
    {"llama-1b", "Llama-3.2-1B shape", {16, 2048, 32, 8, 8192, 128256, 4096}, 4, 1, true},
    {"gpt-1.7b", "1.7B, gated", {24, 2048, 16, 16, 5632, 131072, 4096}, 4, 1, false},
    {"qwen2.5-0.5b", "Qwen2.5-0.5B shape", {24, 896, 14, 2, 4864, 151936, 1024}, 512, 16, true, true},
    {"qwen2.5-1.5b", "Qwen2.5-1.5B shape", {28, 1536, 12, 2, 8960, 151936, 1024}, 512, 16, true, true},
    {"llama-8b-16", "Llama-3-8B shape, 16 layers", {16, 4096, 32, 8, 14336, 128256, 4096}, 4, 1, false},
    {"llama-8b", "Llama-3-8B shape", {32, 4096, 32, 8, 14336, 128256, 4096}, 4, 1, false},
    {"qwen3-30b-a3b-12",
     "Qwen3-30B-A3B, 12 layers, 128 experts",
     {12, 2048, 32, 4, 6144, 151936, 4096},
     16,
     16,
     false,
     false,
     "",
     qwen3_moe_style},
    {"mixtral-small",
     "Mixtral shape, 8 experts",
     {8, 2048, 32, 8, 7168, 32000, 4096},
     16,
     16,
     false,
     false,
     "",
     mixtral_style},
    {"deepseek-v3-4",
     "DeepSeek-V3, 4 layers, 16 experts, MLA, MTP",
     {4, 7168, 128, 128, 18432, 129280, 4096},
     16,
     16,
     false,
     false,
     "",
     deepseek_v3_style},
};

}  // namespace

bool BenchRun::choose_device() {
  const bool cuda = device == "cuda" || (device == "auto" && cuda_device_count() > 0);
  if (precision.empty()) precision = cuda ? "bf16" : "fp32";
  return cuda;
}

std::string case_list() {
  std::string text;
  for (const TrainCase& c : kCases)
    text += fmt::format("  {:<16}  {}: {} layers, {} wide, vocabulary {}, batch {} x {}\n", c.name, c.summary,
                        c.shape.layers, c.shape.hidden, c.shape.vocab, c.batch, c.shape.length);
  return text;
}

std::optional<Fp8Recipe> fp8_recipe(const std::string& precision) {
  if (precision == "fp8") return Fp8Recipe::tensorwise;
  if (precision == "fp8-delayed") return Fp8Recipe::delayed;
  if (precision == "fp8-block") return Fp8Recipe::blockwise;
  return {};
}

const TrainCase& find_case(std::string_view bench, std::vector<std::string> words, BenchRun* run) {
  if (run)
    std::erase_if(words, [&](const std::string& word) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos || word.find('.') > equals) return false;
      run->overrides.push_back(word);
      return true;
    });
  if (words.size() == 1)
    for (const TrainCase& c : kCases)
      if (c.name == words[0]) return c;
  std::string names;
  for (const TrainCase& c : kCases) names += fmt::format("{}{}", names.empty() ? "" : ", ", c.name);
  throw UsageError(fmt::format("{}: name one of the cases {}", bench, names));
}

ModelConfig model_of(const TrainCase& c) {
  ModelConfig model = c.style(c.shape);
  model.share_embeddings_and_output_weights = c.tied;
  model.add_qkv_bias = c.qkv_bias;
  return model;
}

Sources sources_of(const TrainCase& c, const BenchRun& s) {
  Sources sources;
  sources.hf_origin = fmt::format("the case {}", c.name);
  sources.hf = model_settings(model_of(c));
  sources.hf_has_weights = false;
  const int64_t micro_batches =
      s.micro_batches > 0 ? s.micro_batches : std::max<int64_t>(1, c.micro_batches / s.data_parallel);
  const int64_t pieces = s.data_parallel * micro_batches;
  if (c.batch % pieces != 0)
    throw ConfigError(
        fmt::format("bench train: the batch of {} sequences cannot be cut into {} x {} micro-batches",
                    c.batch, s.data_parallel, micro_batches));
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
  sources.overrides.insert(sources.overrides.end(), s.overrides.begin(), s.overrides.end());
  return sources;
}

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

}  // namespace megatron
