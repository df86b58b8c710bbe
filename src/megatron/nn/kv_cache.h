#pragma once

#include <map>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// What the layers of one rank keep of the tokens of one sequence that a decoder has seen: keys and values, or
// states along the sequence.
class KvCache {
 public:
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}

  struct Pair {
    Tensor keys, values;  // [tokens, heads, head_dim]
  };

  int64_t length() const { return length_; }  // tokens of the passes that are over
  int64_t capacity() const { return capacity_; }
  // Adds a layer's keys and values of the present pass and returns those of all tokens.
  Pair append(RankContext& ctx, int64_t layer, const Pair& added);
  // Something of a layer with states that passes on what it saw, `which` of several: zeros before the first
  // token; whoever asks for it moves it on.
  Tensor state(RankContext& ctx, int64_t layer, int which, const Shape& shape, DType dtype);
  void finish_pass(int64_t tokens) { length_ += tokens; }  // every layer has appended that many

 private:
  int64_t capacity_, length_ = 0;
  std::map<int64_t, Pair> layers_;
  std::map<std::pair<int64_t, int>, Tensor> states_;
};

}  // namespace megatron
