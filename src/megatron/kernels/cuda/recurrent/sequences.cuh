#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/recurrent.h"

namespace megatron::cuda {

struct TokenSpan {
  int64_t begin, end;
};

// The tokens [begin, end) of a chunk, which has slot `slot`; none where the slot is not used.
struct ChunkSpan {
  int64_t begin, end;
  bool first, last;  // of its sequence
};

// SequenceRows as the device sees them.
struct Sequences {
  int64_t count, length, tokens;
  const int32_t* cu;

  Sequences(const SequenceRows& rows, int64_t tokens)
      : count(rows.count),
        length(rows.count > 0 ? tokens / rows.count : 0),
        tokens(tokens),
        cu(pointer<int32_t>(rows.cu)) {}

  __device__ TokenSpan span(int64_t i) const {
    return cu ? TokenSpan{cu[i], cu[i + 1]} : TokenSpan{i * length, (i + 1) * length};
  }
  // The last sequence whose place(i) is at most `at`: places do not fall.
  template <class Place>
  __device__ int64_t find(int64_t at, Place place) const {
    int64_t low = 0, high = count - 1;
    while (low < high) {
      int64_t middle = (low + high + 1) / 2;
      if (place(middle) <= at)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  // The sequence of a token; empty ones before it are passed over.
  __device__ TokenSpan span_of(int64_t token) const {
    if (!cu) return span(divide(token, length));
    return span(find(token, [&](int64_t i) { return int64_t{cu[i]}; }));
  }
  __device__ int64_t first_slot(int64_t i, int64_t chunk) const { return span(i).begin / chunk + i; }
  __device__ ChunkSpan chunk_span(int64_t slot, int64_t chunk) const {
    int64_t i = find(slot, [&](int64_t s) { return first_slot(s, chunk); });
    TokenSpan whole = span(i);
    int64_t index = slot - first_slot(i, chunk), begin = whole.begin + index * chunk;
    int64_t end = min(begin + chunk, whole.end);
    return {begin, end, index == 0, end == whole.end};
  }
};

}  // namespace megatron::cuda
