#pragma once

#include <map>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// What one layer keeps of the tokens of a sequence that a decoder has seen.
struct CacheShape {
  int64_t kv_heads = 0, key_dim = 0;  // of each token; no heads: no keys
  int64_t value_dim = 0;              // 0: there are no values of their own, the keys hold them (latents)
  int64_t window = -1;                // keys before its own that a query sees; -1: all
  int64_t convolved = 0, kept = 0;    // channels of a convolution, and how many of its last inputs are kept
  Shape state = {0};                  // of each sequence, in the accumulation dtype; no elements: none
};

// Those of a rank's layers, by their place in the whole model.
using CacheShapes = std::map<int64_t, CacheShape>;

// Keys and values of many sequences in blocks of `block_size` tokens, and states in slots, one a sequence.
// Which blocks and slots are whose, the scheduler knows.
class PagedCache {
 public:
  struct Pages {
    Tensor keys, values;  // [blocks · block_size, heads, head_dim]
  };

  PagedCache(RankContext& ctx, const CacheShapes& shapes, DType dtype, int64_t blocks, int64_t block_size,
             int64_t slots);

  // What a block and a slot take on this rank.
  static int64_t block_bytes(const CacheShapes& shapes, DType dtype, int64_t block_size);
  static int64_t slot_bytes(const CacheShapes& shapes, DType dtype);

  int64_t block_size() const { return block_size_; }
  const Pages& pages(int64_t layer) const;
  const Tensor& inputs(int64_t layer) const;  // [slots, kept, channels] of the layer's convolution
  const Tensor& states(int64_t layer) const;  // [slots, …]

 private:
  struct Layer {
    Pages pages;
    Tensor inputs, states;
  };
  const Layer& at(int64_t layer) const;

  int64_t block_size_;
  std::map<int64_t, Layer> layers_;
};

}  // namespace megatron
