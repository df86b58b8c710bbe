#pragma once

#include "megatron/comm/process_group.h"

namespace megatron {

// The tokens of a micro-batch that a rank routes: a run of those that its TP group has, which may again be a
// part of the micro-batch.
struct MicrobatchShare {
  int64_t begin = 0, rows = 0;  // of the tokens of this TP group
  int64_t max_rows = 0;         // of a rank
  int64_t tokens = 0;           // of the TP group
  int64_t sequences = 1;        // that these tokens are of
  ProcessGroup group;           // all ranks that hold tokens of the micro-batch
  int64_t parts = 1;            // TP groups among them

  int64_t all_tokens() const { return tokens * parts; }
  int64_t per_sequence() const { return tokens / sequences; }  // of the TP group
};

}  // namespace megatron
