#pragma once

#include <map>
#include <vector>

#include "megatron/nn/paged_cache.h"

namespace megatron {

// What one step of a decoder reads, on the host: the next tokens of some sequences, one or many of each.
struct StepInput {
  struct Sequence {
    std::vector<int64_t> tokens;
    int64_t first = 0;   // position of the first of them: so many came before
    int64_t logits = 0;  // of how many of them, from the last one back, logits are wanted
    int64_t slot = 0;    // of its states
    int64_t prompt = 0;  // length of its prompt, which models look at that stretch positions by length
    std::vector<int64_t> blocks;  // of its keys, those of these tokens too
  };
  std::vector<Sequence> sequences;

  int64_t tokens() const;
  int64_t logits() const;
  // The same as numbers in a row, for ranks that are told what to do.
  std::vector<int64_t> packed() const;
  static StepInput unpacked(const std::vector<int64_t>& numbers);
};

// How the rows of a convolution's inputs are put behind those kept of each sequence, and taken apart again.
struct ConvolutionRows {
  Tensor joined;  // int64: rows of [kept of all sequences, new ones], sequence by sequence
  Tensor cu;      // int32 [sequences + 1]: where they begin
  Tensor fresh;   // int64: which of the joined rows are new
  Tensor last;    // int64: which of them are kept for the next step
};

// The same step on the device.
struct SequenceBatch {
  SequenceBatch(RankContext& ctx, const StepInput& input, const CacheShapes& shapes, int64_t block_size);
  // Room for steps of one token a sequence, whose tensors stay where they are: a CUDA graph reads them. For
  // models without states, and with rotary tables that do not depend on lengths.
  SequenceBatch(RankContext& ctx, int64_t sequences, int64_t max_blocks, int64_t block_size);
  // Puts such a step in. Sequences that are missing are padding: one token that reads and writes
  // `spare_block` alone, which nobody else reads.
  void refill(RankContext& ctx, const StepInput& input, int64_t spare_block);

  Tensor ids, positions;         // int64 [tokens]
  Tensor slots;                  // int64 [tokens]: rows of the pool that take the tokens' keys
  Tensor cu_queries;             // int32 [sequences + 1]
  Tensor key_lengths, blocks;    // int32 [sequences] and [sequences, max_blocks]
  Tensor wanted;                 // int64: tokens whose logits are wanted; undefined: all
  Tensor states, states_before;  // int64 [sequences]: slots; -1 where nothing came before
  std::map<int64_t, ConvolutionRows> convolutions;  // by how many inputs are kept
  int64_t count = 0, max_queries = 0, max_keys = 0, block_size = 0;
  std::vector<int64_t> host_positions, rope_lengths;  // of tokens; the length by which positions stretch
};

}  // namespace megatron
