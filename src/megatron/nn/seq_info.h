#pragma once

#include "megatron/kernels/attention.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// How the tokens of a micro-batch are grouped into sequences, handed to every block beside the activations
// [tokens, hidden]. Training, packing and decoding differ only in this.
struct SeqInfo {
  int64_t batch = 1, length = 1;  // tokens = batch · length unless packed
  Tensor cu_seqlens;              // int32 [sequences + 1] where packed, else undefined
  int64_t max_length = 0;         // of the packed sequences
  Tensor positions;               // int64 [tokens]
  Tensor rope_cos, rope_sin;      // [tokens, rotary frequencies], made once per micro-batch
  Tensor local_cos, local_sin;    // the same for layers with a window, where their base differs
  Tensor query_scale;             // [tokens, 1, 1], where queries grow with their position
  uint64_t seed = 0;              // of dropout
  int64_t step = 0;               // of the run, so that every one draws other numbers
  int64_t batch_begin = 0;        // of this rank's first sequence in the global batch

  int64_t tokens() const { return batch * length; }
};

// The stream of random numbers of one dropout site: another for every step, layer and place in the layer.
constexpr uint64_t dropout_stream(int64_t step, int64_t layer, int site) {
  return (static_cast<uint64_t>(step) << 24) | (static_cast<uint64_t>(layer) << 4) |
         static_cast<uint64_t>(site);
}

}  // namespace megatron
