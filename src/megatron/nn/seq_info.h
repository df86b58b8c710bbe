#pragma once

#include <map>
#include <memory>

#include "megatron/kernels/attention.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class PagedCache;
struct ElasticWidths;
class RoutingRecord;
struct SequenceBatch;

// A rearrangement of rows and its inverse, int64: new row i is old row forward[i]. Undefined: none.
struct RowOrder {
  Tensor forward, inverse;
};

// Sequences cut in zigzag over n ranks: each into 2n chunks, of which rank r holds chunks r and 2n − 1 − r.
struct ZigzagSlice {
  int64_t sequences = 0;
  Tensor cu_chunks;       // int32 [sequences + 1]: one chunk of each, where they are packed
  int64_t max_chunk = 0;  // the longest of them
  RowOrder chunk_major;   // from all chunks of a sequence together to the first, then the second of all
};

// How a context-parallel group shares the sequences of a micro-batch.
struct ContextSlices {
  ZigzagSlice slice, outer_slice;  // over the group; over the outer of its two levels
  RowOrder whole, inner;  // from the ranks' tokens in turn to sequences: of the group, of its inner level
  Tensor cu_whole;        // int32 [sequences + 1] where packed
  int64_t max_whole = 0;
};

// How the tokens of a micro-batch are grouped into sequences, handed to every block beside the activations
// [tokens, hidden]. Training, packing and decoding differ only in this.
struct SeqInfo {
  int64_t batch = 1, length = 1;             // tokens = batch · length unless packed; of this rank
  int64_t row_length = 1;                    // tokens of one row of the batch, over all ranks
  Tensor cu_seqlens;                         // int32 [sequences + 1] where packed, else undefined
  int64_t max_length = 0;                    // of the packed sequences
  Tensor positions;                          // int64 [tokens]
  Tensor token_index;                        // int64 [tokens], in the whole micro-batch; undefined: in turn
  ContextSlices context;                     // where sequences are split over ranks
  Tensor rope_cos, rope_sin;                 // [tokens, rotary frequencies], made once per micro-batch
  Tensor local_cos, local_sin;               // the same for layers with a window, where their base differs
  Tensor query_scale;                        // [tokens, 1, 1], where queries grow with their position
  PagedCache* cache = nullptr;               // decoding: what came before these tokens; takes theirs too
  const SequenceBatch* sequences = nullptr;  // and which blocks and slots of it they have
  Tensor token_types;                        // int64 [tokens], where the embedding knows types
  Tensor attention_bias;  // [1 or batch, 1 or heads, length, length]: added to scores of attention
  // By layer, what is added to scores of attention: 0 for keys that its indexer chose, for layers behind it
  // that have no indexer. Where layers share nothing, it is null.
  std::shared_ptr<std::map<int64_t, Tensor>> chosen_keys;
  Tensor encoder_states;  // [tokens, hidden] of an encoder that layers attend to, and
  Tensor encoder_bias;    // [batch, 1, length, its length]: what is added to those scores
  // int64 [tokens of the whole micro-batch, layers with experts, k]: experts that routers choose whatever
  // their logits say; −1: by their logits.
  Tensor replayed_experts;
  RoutingRecord* routing_record = nullptr;       // takes what routers choose
  std::shared_ptr<const ElasticWidths> elastic;  // the sub-network that tokens pass; null: the whole model
  uint64_t seed = 0;                             // of dropout
  int64_t step = 0;                              // of the run, so that every one draws other numbers
  Tensor step_offset;       // int64 [1]: a step's stream that is added when numbers are drawn; optional
  int64_t batch_begin = 0;  // of this rank's first sequence in the global batch
  bool training = true;     // else evaluation: no dropout, no noise, no balancing
  Tensor
      aux_loss_weight;  // fp64 [1]: of this micro-batch's mean losses in the loss of the step; undefined: 1

  int64_t tokens() const { return batch * length; }
};

// The stream of random numbers of one dropout site: another for every step, layer and place in the layer.
constexpr uint64_t dropout_stream(int64_t step, int64_t layer, int site) {
  return (static_cast<uint64_t>(step) << 24) | (static_cast<uint64_t>(layer) << 4) |
         static_cast<uint64_t>(site);
}

inline RngKey dropout_key(const SeqInfo& seq, int64_t layer, int site) {
  return {seq.seed, dropout_stream(seq.step, layer, site),
          seq.step_offset ? static_cast<const int64_t*>(seq.step_offset.raw()) : nullptr};
}

}  // namespace megatron
