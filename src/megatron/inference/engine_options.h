#pragma once

#include "megatron/config/config.h"

namespace megatron {

using RequestId = uint64_t;

struct EngineOptions {
  // Tokens of a block. 64 keys are a tile of the attention kernels, so a tile never leaves its block; larger
  // blocks waste more at the end of each sequence and share fewer prefixes.
  int64_t block_size = 64;
  bool fp8_cache = false;                  // keys and values in e4m3, with a scale for each head of a token
  int64_t cache_bytes = int64_t{1} << 30;  // of keys, values and states on each rank
  // The share of it that states along the sequence have, the rest being for keys and values; none: as much as
  // max_requests need, at most half.
  std::optional<double> state_ratio = {};
  int64_t max_requests = 256;   // running at once
  int64_t max_tokens = 2048;    // of one step, prompts and new tokens together
  int64_t max_length = 0;       // tokens of a sequence that are read; 0: what the model has positions for
  bool chunked_prefill = true;  // a prompt may be read in several steps
  bool prefix_caching = true;   // prompts that begin alike share blocks
  PrefixEviction eviction = PrefixEviction::lru;
  bool batch_invariant = false;  // in any precision: an answer's bits do not depend on the other requests
  LogprobsMode logprobs = LogprobsMode::raw_logprobs;  // of every request
  // Each finished request tells the experts of its tokens. Prompts share no blocks then, for what is not
  // computed is not routed. Needs --moe-enable-routing-replay.
  bool record_routing = false;
  // Tokens that are guessed behind each text and read with it; those that would have been chosen anyway
  // stand, so that answers are the same with fewer steps. 0: none.
  int64_t speculative_tokens = 0;
  // Steps in which every text grows by a token are CUDA graphs, where the device and the model allow it.
  bool cuda_graphs = true;
  // On a CPU Engine::run() gives back idle memory beyond these bytes, and all of it where it rests.
  int64_t idle_bytes = int64_t{256} << 20;
  bool time_steps = false;  // EngineStats tell the GPU's time; every step then waits for the GPU
};

// As settings say.
EngineOptions engine_options(const Config& settings);

struct EngineStats {
  int64_t running = 0, waiting = 0;           // requests
  int64_t used_blocks = 0, total_blocks = 0;  // used: by running requests
  int64_t cached_blocks = 0;                  // of those not used: they hold prefixes
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;      // tokens of prompts: looked up, found
  int64_t evictions = 0;                            // running requests that gave their blocks up
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // of speculative decoding
  int64_t cuda_graphs = 0, graph_bytes = 0;         // that steps were captured in, and their memory
  std::string graph_fault;                          // why a step could not be; none is then any more
  double gpu_seconds = 0;                           // of the last step, where EngineOptions::time_steps
};

}  // namespace megatron
