#include "megatron/cli/bench/profile_grid.h"

#include <fmt/core.h>

#include "megatron/cli/bench/moe_styles.h"

namespace megatron {
namespace {

using Style = ModelConfig (*)(const DecoderShape&);

struct Row {
  DecoderShape shape;
  int64_t batch, micro_batches = 1;
  Style style = llama_style;
  const char* precision = "bf16";
  const char* recompute = "none";
  std::vector<std::string> overrides = {};
};

std::vector<Row> gpu_rows() {
  const auto experts = [](int count, int topk, int ffn) {
    return std::vector<std::string>{fmt::format("model.num_moe_experts={}", count),
                                    fmt::format("model.moe_router_topk={}", topk),
                                    fmt::format("model.moe_ffn_hidden_size={}", ffn)};
  };
  // Layers, width, heads, KV heads, feed-forward width, vocabulary, length; sequences, micro-batches.
  return {
      {{2, 512, 8, 8, 1536, 32768, 1024}, 32},
      {{2, 640, 10, 10, 2560, 40960, 2048}, 8},
      {{2, 1024, 16, 8, 2816, 65536, 2048}, 8},
      {{2, 1024, 8, 8, 4096, 32768, 4096}, 2},
      {{2, 1280, 20, 4, 5120, 100352, 1024}, 64, 2},
      {{2, 1792, 14, 2, 7168, 163840, 1024}, 16},
      {{2, 1792, 28, 4, 4864, 50176, 4096}, 8},
      {{2, 2560, 20, 4, 6912, 98304, 2048}, 8},
      {{2, 2560, 40, 8, 10240, 114688, 8192}, 2},
      {{2, 3072, 24, 8, 8192, 147456, 8192}, 1},
      {{2, 3072, 48, 8, 12288, 65536, 16384}, 1},
      {{2, 3584, 28, 4, 18944, 163840, 4096}, 4},
      {{2, 5120, 40, 8, 13824, 40960, 4096}, 2},
      {{2, 5120, 40, 8, 17408, 81920, 2048}, 8},
      {{2, 2560, 20, 20, 5120, 32768, 32768}, 1},
      {{2, 1280, 20, 20, 3456, 32768, 16384}, 1},
      {{2, 1408, 11, 11, 3840, 32768, 1024}, 8, 2},
      {{2, 640, 10, 10, 2560, 40960, 1024}, 32, 1, gpt2_style},
      {{2, 1024, 16, 16, 4096, 65536, 1024}, 32, 1, gpt2_style},
      {{2, 1280, 20, 20, 5120, 32768, 2048}, 8, 1, gpt2_style},
      {{2, 1792, 14, 2, 7168, 50176, 2048}, 8, 1, llama_style, "bf16", "mlp_act"},
      {{2, 3072, 24, 8, 8192, 65536, 4096}, 4, 1, llama_style, "bf16", "layernorm,mlp_act"},
      {{2, 2560, 20, 4, 6912, 32768, 4096}, 4, 1, llama_style, "bf16", "core_attn,mlp"},
      {{2, 1792, 14, 2, 7168, 65536, 4096}, 4, 1, llama_style, "fp8"},
      {{2, 2560, 20, 4, 6912, 98304, 2048}, 8, 1, llama_style, "fp8"},
      {{2, 3072, 24, 8, 12288, 65536, 4096}, 4, 1, llama_style, "fp8"},
      {{2, 5120, 40, 8, 13824, 40960, 4096}, 2, 1, llama_style, "fp8"},
      {{2, 1792, 28, 4, 4864, 32768, 4096}, 4, 4, mixtral_style},
      {{2, 2560, 20, 4, 6912, 40960, 4096}, 4, 2, mixtral_style},
      {{2, 3072, 24, 8, 9216, 32768, 4096}, 4, 2, mixtral_style},
      {{2, 2560, 40, 8, 6912, 32768, 4096}, 4, 4, mixtral_style, "fp8"},
      {{2, 1792, 28, 4, 5120, 65536, 4096}, 4, 4, qwen3_moe_style, "bf16", "none", experts(96, 6, 640)},
      {{2, 2560, 40, 4, 7680, 32768, 4096}, 4, 4, qwen3_moe_style, "bf16", "none", experts(64, 8, 1024)},
      {{2, 1792, 28, 4, 6144, 32768, 4096}, 4, 4, mixtral_style, "fp8"},
      {{2, 3072, 24, 8, 9216, 32768, 4096}, 4, 2, mixtral_style, "fp8"},
      {{2, 1536, 24, 4, 4608, 98304, 4096}, 4, 4, qwen3_moe_style, "bf16", "none", experts(128, 8, 896)},
      {{2, 2560, 20, 4, 7168, 65536, 2048}, 8, 8, mixtral_style},
      {{2, 896, 14, 14, 3584, 40960, 1024}, 32, 1, gpt2_style},
  };
}

std::vector<Row> cpu_rows() {
  return {
      {{2, 192, 6, 6, 512, 4096, 128}, 4, 1, llama_style, "fp32"},
      {{2, 320, 5, 5, 896, 8192, 256}, 2, 1, llama_style, "fp32"},
      {{2, 384, 6, 3, 1024, 12288, 512}, 1, 1, llama_style, "fp32"},
      {{2, 192, 6, 6, 768, 4096, 192}, 4, 1, gpt2_style},
      {{2, 320, 5, 5, 1280, 8192, 256}, 2, 1, gpt2_style},
      {{2, 384, 6, 3, 1024, 12288, 512}, 1, 1, llama_style},
  };
}

}  // namespace

std::string GridCase::name() const {
  const DecoderShape& s = train.shape;
  return fmt::format("{}x{} {}/{} {} {} {}x{} {}{}{}", s.layers, s.hidden, s.heads, s.groups, s.ffn, s.vocab,
                     train.batch, s.length, run.precision, run.recompute == "none" ? "" : " " + run.recompute,
                     run.overrides.empty() ? "" : " " + run.overrides[0]);
}

std::vector<GridCase> profile_grid(bool cuda) {
  std::vector<GridCase> cases;
  for (const Row& row : cuda ? gpu_rows() : cpu_rows()) {
    GridCase one{{"profile", "", row.shape, row.batch, row.micro_batches, true, false, "", row.style}, {}};
    one.run.device = cuda ? "cuda" : "cpu";
    one.run.precision = row.precision;
    one.run.recompute = row.recompute;
    one.run.overrides = row.overrides;
    one.run.steps = 1, one.run.warmup = 1;
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace megatron
