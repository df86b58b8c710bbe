#pragma once

#include <string>
#include <vector>

#include "megatron/autotune/measure/op_database.h"
#include "megatron/config/config.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/report/trace.h"

namespace megatron {

// One input of the operator test bench.
struct ModuleCase {
  int64_t batch_size = 1, micro_batch_size = 1, seqlen = 1024;
  int64_t max_token_len = 0;  // packed: tokens of a micro-batch; 0: rows of equal length
  int64_t tokens() const { return max_token_len > 0 ? max_token_len : micro_batch_size * seqlen; }
};

// What one module did with one case on one rank.
struct ModuleFigures {
  double forward = 0, backward = 0;  // seconds, the mean of the measured passes
  double activation_bytes = 0;       // that the forward pass left for the backward pass
  double weight_bytes = 0;
  double forward_flops = 0, backward_flops = 0;
  double forward_bytes = 0, backward_bytes = 0;  // read and written
  std::vector<report::TraceSpan> spans;          // of the last measured pass, where they were asked for
};

// Modules that the bench knows and a model has: Embedding, Decoder, Postprocess, GPTModel, TransformerLayer,
// SelfAttention or MLA, MLPDense, MoELayer, LayerNorm.
std::vector<std::string> bench_modules(const ModelConfig& model);

struct ModuleBench {
  int warmup = 2, iterations = 2;
  bool spans = false;
  autotune::OpDatabase* database = nullptr;  // takes every op of the measured passes; null: none
};

// Runs a module forward and backward on this rank; all ranks of the groups do so together. On the meta device
// times are 0 and the rest is what the module needs in theory.
ModuleFigures bench_module(RankContext& ctx, const Config& config, const ParallelContext& parallel,
                           DType dtype, const std::string& module, const ModuleCase& one,
                           const ModuleBench& bench);

}  // namespace megatron
