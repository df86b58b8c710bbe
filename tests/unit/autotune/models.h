#pragma once

#include "megatron/autotune/cost/model_shape.h"

namespace megatron::autotune {

inline ModelShape llama_8b() {
  return {.name = "8b",
          .layers = 32,
          .hidden = 4096,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .ffn = 14336,
          .vocab = 128256};
}
inline ModelShape llama_70b() {
  return {.name = "70b",
          .layers = 80,
          .hidden = 8192,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .ffn = 28672,
          .vocab = 128256};
}
inline ModelShape llama_405b() {
  return {.name = "405b",
          .layers = 126,
          .hidden = 16384,
          .heads = 128,
          .kv_heads = 8,
          .head_dim = 128,
          .ffn = 53248,
          .vocab = 128256};
}
inline ModelShape deepseek_v3() {
  ModelShape m{.name = "v3",
               .layers = 61,
               .hidden = 7168,
               .heads = 128,
               .kv_heads = 128,
               .head_dim = 128,
               .ffn = 18432,
               .vocab = 129280};
  m.experts = 256, m.topk = 8, m.moe_ffn = 2048, m.moe_layers = 58, m.shared_ffn = 2048;
  m.q_lora = 1536, m.kv_lora = 512, m.nope = 128, m.rope = 64, m.v_dim = 128;
  return m;
}
inline ModelShape qwen3_235b() {
  ModelShape m{.name = "235b",
               .layers = 94,
               .hidden = 4096,
               .heads = 64,
               .kv_heads = 4,
               .head_dim = 128,
               .ffn = 12288,
               .vocab = 151936};
  m.experts = 128, m.topk = 8, m.moe_ffn = 1536, m.moe_layers = 94;
  return m;
}
inline ModelShape gpt_oss_120b() {
  ModelShape m{.name = "gpt-oss-120b",
               .layers = 36,
               .hidden = 2880,
               .heads = 64,
               .kv_heads = 8,
               .head_dim = 64,
               .ffn = 2880,
               .vocab = 201088};
  m.experts = 128, m.topk = 4, m.moe_ffn = 2880, m.moe_layers = 36, m.window = 128, m.window_layers = 18,
  m.sinks = true;
  return m;
}

}  // namespace megatron::autotune
