#pragma once

#include <functional>
#include <span>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/inference/sampling.h"
#include "megatron/models/model.h"

namespace megatron {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  Sampling sampling;
  std::vector<int64_t> end_tokens;              // any of them is the last
  int64_t speculative_tokens = 0;               // as EngineOptions has them
  bool cuda_graphs = true;                      // as EngineOptions has it
  bool use_cache = true;                        // else every token reads all before it again
  const Images* images = nullptr;               // that the prompt speaks of; then there is no cache
  int64_t start_token = 0;                      // of a decoder that reads the prompt through its encoder
  std::function<void(int64_t token)> on_token;  // told on the first rank
};

// Tokens that a model sees at most: what it has positions for, however short the sequences of its last run.
int64_t longest_context(const ModelConfig& model);

// Continues a prompt of one sequence, or answers it where the model has an encoder; returns the new tokens.
// All ranks of `world` call it alike and get the same.
std::vector<int64_t> generate(RankContext& ctx, const ProcessGroup& world, Model& model,
                              std::span<const int64_t> prompt, const GenerateOptions& options);

}  // namespace megatron
