#pragma once

#include "megatron/models/decoder_shape.h"

namespace megatron {

// Mixtures of experts as their families have them, in these sizes.
ModelConfig qwen3_moe_style(const DecoderShape& shape);    // 128 experts of 768, eight for a token
ModelConfig mixtral_style(const DecoderShape& shape);      // 8 experts of `ffn`, two for a token
ModelConfig deepseek_v3_style(const DecoderShape& shape);  // latent attention, 16 of the 256 experts, MTP

}  // namespace megatron
