#pragma once

#include "megatron/comm/process_group.h"
#include "megatron/inference/engine_options.h"
#include "megatron/models/model.h"

namespace megatron {

// How large an engine's cache is, the same on every rank.
struct CacheSize {
  int64_t blocks = 0;        // that requests get
  int64_t spare = 0;         // a further one, which pads captured steps; 0: steps are not captured
  int64_t slots = 1;         // for states along the sequence
  int64_t max_requests = 0;  // that run at once
  int64_t max_length = 0;    // tokens of a sequence that may be read
  int64_t depths = 0;        // of MTP layers that guess, each with a cache of its own
};

// Divides EngineOptions::cache_bytes. Ranks agree on the smallest of theirs: all call it alike. A ConfigError
// where the cache has no room for a block.
CacheSize cache_size(RankContext& ctx, const ProcessGroup& world, Model& model, const EngineOptions& options);

}  // namespace megatron
