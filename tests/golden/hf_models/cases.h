#pragma once

#include <array>
#include <vector>

// The golden cases that are decoders.
namespace megatron::testing {

inline constexpr std::array kDenseCases = {"llama",
                                           "llama_bias",
                                           "llama_tied",
                                           "llama_rope_linear",
                                           "llama_rope_llama3",
                                           "llama_rope_yarn",
                                           "mistral_swa16",
                                           "ministral",
                                           "ministral3",
                                           "phi3",
                                           "qwen2",
                                           "qwen2_tied_swa",
                                           "qwen3",
                                           "qwen3_swa",
                                           "gemma",
                                           "gemma2",
                                           "gemma3_text",
                                           "glm4",
                                           "nemotron",
                                           "olmo2",
                                           "gpt2",
                                           "gpt_neox",
                                           "gpt_neox_serial",
                                           "phi"};

inline constexpr std::array kMixtureCases = {
    "mixtral",          "mixtral_swa",        "qwen2_moe",        "qwen3_moe",          "olmoe",
    "glm4_moe",         "deepseek_v2",        "deepseek_v2_lite", "deepseek_v2_groups", "deepseek_v3",
    "deepseek_v3_yarn", "deepseek_v3_groups", "gpt_oss"};

// Layers with states along the sequence, alone or among others.
inline constexpr std::array kHybridCases = {"mamba2", "nemotron_h", "qwen3_next"};

}  // namespace megatron::testing
