#pragma once

#include "megatron/bridge/family.h"

// One file per group of families; family.cpp lists them all.
namespace megatron {

std::vector<Family> llama_families();    // Llama, Mistral, Ministral, Phi-3
std::vector<Family> qwen_families();     // Qwen2, Qwen3
std::vector<Family> gemma_families();    // Gemma 1 to 3
std::vector<Family> other_families();    // GLM-4, Nemotron, OLMo-2, GPT-2
std::vector<Family> vision_families();   // Qwen2-VL, Qwen2.5-VL, Gemma 3 with images
std::vector<Family> encoder_families();  // BERT, T5
std::vector<Family> hybrid_families();   // Mamba-2, Nemotron-H, Qwen3-Next

std::vector<Family> mixture_families();  // Mixtral, Qwen2/3-MoE, OLMoE, GLM-4.5, DeepSeek, gpt-oss

}  // namespace megatron
