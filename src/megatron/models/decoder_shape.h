#pragma once

#include "megatron/config/schema/model_config.h"

namespace megatron {

// The sizes of a decoder.
struct DecoderShape {
  int64_t layers = 2, hidden = 64, heads = 4, groups = 4, ffn = 128, vocab = 256, length = 64;
};

// The usual modern decoder of these sizes: rotary positions, RMSNorm, SwiGLU, no biases, no dropout, tied
// embeddings.
ModelConfig llama_style(const DecoderShape& shape);
// GPT-2's: learned positions, LayerNorm, GELU by its tanh form, biases everywhere; no dropout either.
ModelConfig gpt2_style(const DecoderShape& shape);

}  // namespace megatron
