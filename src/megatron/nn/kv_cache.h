#pragma once

#include <map>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// Keys and values of the tokens of one sequence that a decoder has seen, for the attention layers of one
// rank.
class KvCache {
 public:
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}

  struct Pair {
    Tensor keys, values;  // [tokens, heads, channels]
  };

  int64_t length() const { return length_; }  // tokens of the passes that are over
  int64_t capacity() const { return capacity_; }
  // Adds a layer's keys and values of the present pass and returns those of all tokens.
  Pair append(RankContext& ctx, int64_t layer, const Pair& added);
  void finish_pass(int64_t tokens) { length_ += tokens; }  // every layer has appended that many

 private:
  int64_t capacity_, length_ = 0;
  std::map<int64_t, Pair> layers_;
};

}  // namespace megatron
