#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/math.h"
#include "megatron/kernels/cpu/isa/tile_gemm.h"

// What the forward and the backward pass of attention share. Scores are held transposed, [keys, lanes]: a
// lane is one query of one head, so that softmax runs over vectors of lanes without sums across a vector, and
// the queries of all heads that share a key/value head fill the same lanes.
namespace megatron::cpu::MEGATRON_ISA {

template <class C>
inline constexpr int64_t kQueryLanes = 256 / sizeof(C);
inline constexpr int64_t kKeyTile = 64;
inline constexpr int64_t kEdgeTile = 16;  // where the mask cuts through: less is computed in vain

// Below every real score, but finite, so that differences of two masked scores are 0 and not NaN.
template <class C>
inline constexpr C kMasked = C(-1e30);

// One sequence: its queries and keys as ranges of tokens.
struct Sequence {
  int64_t index, first_query, queries, first_key, keys;
};

inline Sequence sequence_of(const AttentionArgs& args, int64_t b) {
  if (!args.cu_queries) {
    int64_t queries = args.q.size(0) / args.batch, keys = args.k.size(0) / args.batch;
    return {b, b * queries, queries, b * keys, keys};
  }
  const int32_t *q = pointer<int32_t>(args.cu_queries), *k = pointer<int32_t>(args.cu_keys);
  return {b, q[b], q[b + 1] - q[b], k[b], k[b + 1] - k[b]};
}

inline int64_t longest_queries(const AttentionArgs& args) {
  int64_t longest = 0;
  for (int64_t b = 0; b < args.batch; ++b) longest = std::max(longest, sequence_of(args, b).queries);
  return longest;
}

inline int64_t group_of(const AttentionArgs& args) { return args.q.size(1) / args.k.size(1); }

// Up to kQueryLanes rows of one key/value head. Row r of a sequence is query r / group of the group's head
// r % group, so that lanes stand in the order of their queries and visible keys move forward with the lane.
template <class C>
struct Lanes {
  static constexpr int64_t capacity = kQueryLanes<C>;
  int64_t count = 0, padded = 0;
  int64_t query[capacity], head[capacity];         // in the sequence; over all heads
  int32_t key_begin[capacity], key_end[capacity];  // what the lane may see; padding repeats the last lane

  Lanes(const AttentionArgs& args, const Sequence& sequence, int64_t kv_head, int64_t first_row) {
    int64_t group = group_of(args), shift = attention_shift(args.offsets, sequence.queries, sequence.keys);
    count = std::min(capacity, sequence.queries * group - first_row);
    padded = round_to_vector<C>(count);
    for (int64_t lane = 0; lane < padded; ++lane) {
      int64_t row = first_row + std::min(lane, count - 1);
      query[lane] = row / group;
      head[lane] = kv_head * group + row % group;
      int64_t own = query[lane] + shift;
      int64_t begin = args.window_left >= 0 ? own - args.window_left : 0;
      int64_t end = args.causal              ? own + 1
                    : args.window_right >= 0 ? own + args.window_right + 1
                                             : sequence.keys;
      key_end[lane] = static_cast<int32_t>(std::clamp<int64_t>(end, 0, sequence.keys));
      key_begin[lane] = static_cast<int32_t>(std::clamp<int64_t>(begin, 0, key_end[lane]));
    }
  }
};

// Keys [begin, end) against those lanes [first, last), whole vectors, that see any of them.
struct KeyTile {
  int64_t begin, end, first, last;
  bool masked;  // some lane does not see some key
  int64_t size() const { return end - begin; }
};

// Calls f(tile) for all keys that any lane sees, in order.
template <class C, class F>
void for_each_tile(const Lanes<C>& lanes, F&& f) {
  int64_t last_lane = lanes.padded - 1, end = lanes.key_end[last_lane];
  int64_t first = 0, last = 0;
  for (int64_t key = lanes.key_begin[0]; key < end;) {
    // Up to here every lane sees every key.
    int64_t open = lanes.key_begin[last_lane] <= key ? lanes.key_end[0] : key;
    bool masked = open - key < std::min(kEdgeTile, end - key);
    int64_t next = masked ? std::min(end, key + kEdgeTile) : std::min(open, key + kKeyTile);
    while (first < lanes.padded && lanes.key_end[first] <= key) ++first;
    while (last < lanes.padded && lanes.key_begin[last] < next) ++last;
    int64_t from = first / kVectorWidth<C> * kVectorWidth<C>;
    if (from < last) f(KeyTile{key, next, from, round_to_vector<C>(last), masked});
    key = next;
  }
}

// Where the elements of a lane's query and head begin in x [tokens, heads, head_dim].
template <class T, class C>
T* row_of(const Tensor& x, const Sequence& sequence, const Lanes<C>& lanes, int64_t lane) {
  return pointer<T>(x) + (sequence.first_query + lanes.query[lane]) * x.stride(0) +
         lanes.head[lane] * x.stride(1);
}

// target[c, lane] = factor · x[lane's query, lane's head, c]; zero in padding lanes.
template <class T, class C>
void load_transposed(const Tensor& x, const Sequence& sequence, const Lanes<C>& lanes, C factor, C* target) {
  constexpr int64_t width = Lanes<C>::capacity, w = kVectorWidth<C>;
  int64_t head_dim = x.size(2), whole_head_dim = head_dim / w * w, whole_lanes = lanes.count / w * w;
  for (int64_t first = 0; first < whole_lanes; first += w) {
    const T* rows[w];
    for (int64_t i = 0; i < w; ++i) rows[i] = row_of<T>(x, sequence, lanes, first + i);
    for (int64_t c = 0; c < whole_head_dim; c += w) {
      Vector<C> block[w];
      for (int64_t i = 0; i < w; ++i) block[i] = factor * load_as<C>(rows[i] + c);
      transpose_vectors<C>(block);
      for (int64_t i = 0; i < w; ++i) store_vector(target + (c + i) * width + first, block[i]);
    }
  }
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    const T* row = row_of<T>(x, sequence, lanes, lane);
    for (int64_t c = lane < whole_lanes ? whole_head_dim : 0; c < head_dim; ++c)
      target[c * width + lane] = factor * C(row[c]);
  }
  for (int64_t c = 0; c < head_dim; ++c)
    std::fill(target + c * width + lanes.count, target + c * width + lanes.padded, C(0));
}

// target[lane, c], rows padded with zeros to whole vectors.
template <class T, class C>
void load_rows(const Tensor& x, const Sequence& sequence, const Lanes<C>& lanes, C factor, C* target) {
  int64_t head_dim = x.size(2), width = round_to_vector<C>(head_dim);
  for (int64_t lane = 0; lane < lanes.padded; ++lane, target += width) {
    int64_t filled = lane < lanes.count ? head_dim : 0;
    const T* row = row_of<T>(x, sequence, lanes, lane);
    for (int64_t c = 0; c < filled; ++c) target[c] = factor * C(row[c]);
    std::fill(target + filled, target + width, C(0));
  }
}

// x[lane's query, lane's head, c] = factor[lane] · source[c, lane].
template <class T, class C>
void store_transposed(const C* source, const C* factor, const Sequence& sequence, const Lanes<C>& lanes,
                      const Tensor& x) {
  constexpr int64_t width = Lanes<C>::capacity, w = kVectorWidth<C>;
  int64_t head_dim = x.size(2), whole_head_dim = head_dim / w * w, whole_lanes = lanes.count / w * w;
  for (int64_t first = 0; first < whole_lanes; first += w)
    for (int64_t c = 0; c < whole_head_dim; c += w) {
      Vector<C> block[w], scale = load_vector(factor + first);
      for (int64_t i = 0; i < w; ++i) block[i] = scale * load_vector(source + (c + i) * width + first);
      transpose_vectors<C>(block);
      for (int64_t i = 0; i < w; ++i) store_as<C>(row_of<T>(x, sequence, lanes, first + i) + c, block[i]);
    }
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    T* row = row_of<T>(x, sequence, lanes, lane);
    for (int64_t c = lane < whole_lanes ? whole_head_dim : 0; c < head_dim; ++c)
      row[c] = T(factor[lane] * source[c * width + lane]);
  }
}

// Rows [begin, end) of one key/value head, packed without gaps.
template <class T, class C>
void load_keys(const Tensor& x, const Sequence& sequence, int64_t kv_head, int64_t begin, int64_t end,
               C* target) {
  int64_t head_dim = x.size(2);
  const T* row = pointer<T>(x) + (sequence.first_key + begin) * x.stride(0) + kv_head * x.stride(1);
  for (int64_t key = begin; key < end; ++key, row += x.stride(0), target += head_dim)
    for (int64_t c = 0; c < head_dim; ++c) target[c] = C(row[c]);
}

// x[key, lane] *= y[key, lane] within the tile.
template <class C>
void multiply_tile(const KeyTile& tile, C* x, const C* y) {
  constexpr int64_t width = Lanes<C>::capacity;
  for (int64_t key = 0; key < tile.size(); ++key)
    for (int64_t lane = tile.first; lane < tile.last; ++lane) x[key * width + lane] *= y[key * width + lane];
}

// Turns q · k of a tile (already scaled) into scores: softcap, bias, mask. `slopes`, where given,
// receives the derivative of the softcap.
template <class T, class C>
void finish_scores(const AttentionArgs& args, const Sequence& sequence, const Lanes<C>& lanes,
                   const KeyTile& tile, C* scores, C* slopes = nullptr) {
  constexpr int64_t width = Lanes<C>::capacity;
  if (args.softcap > 0) {
    C cap = static_cast<C>(args.softcap), inverse = C(1) / cap;
    for (int64_t key = 0; key < tile.size(); ++key) {
      C* row = scores + key * width;
      for (int64_t lane = tile.first; lane < tile.last; ++lane) row[lane] = math::tanh(row[lane] * inverse);
      if (slopes)
        for (int64_t lane = tile.first; lane < tile.last; ++lane)
          slopes[key * width + lane] = C(1) - row[lane] * row[lane];
      for (int64_t lane = tile.first; lane < tile.last; ++lane) row[lane] *= cap;
    }
  }
  if (args.bias) {
    const Tensor& bias = args.bias;
    for (int64_t lane = tile.first; lane < tile.last; ++lane) {
      const T* row = pointer<T>(bias) + (bias.size(0) == 1 ? 0 : sequence.index) * bias.stride(0) +
                     (bias.size(1) == 1 ? 0 : lanes.head[lane]) * bias.stride(1) +
                     lanes.query[lane] * bias.stride(2);
      for (int64_t key = tile.begin; key < tile.end; ++key)
        scores[(key - tile.begin) * width + lane] += C(row[key * bias.stride(3)]);
    }
  }
  if (tile.masked)
    for (int64_t key = tile.begin; key < tile.end; ++key) {
      C* row = scores + (key - tile.begin) * width;
      int32_t k = static_cast<int32_t>(key);
      for (int64_t lane = tile.first; lane < tile.last; ++lane)
        row[lane] = k >= lanes.key_begin[lane] && k < lanes.key_end[lane] ? row[lane] : kMasked<C>;
    }
}

// factors[key, lane] = 1/(1 − p) where attention_keeps(…), else 0. One Philox block serves four keys.
template <class C>
void dropout_factors(const AttentionArgs& args, const Sequence& sequence, const Lanes<C>& lanes,
                     const KeyTile& tile, C* factors) {
  constexpr int64_t width = Lanes<C>::capacity;
  const AttentionOffsets& offsets = args.offsets;
  AttentionOrigin origin =
      attention_origin(offsets, sequence.index, sequence.first_query, sequence.queries, sequence.keys);
  uint64_t base[width];
  for (int64_t lane = tile.first; lane < tile.last; ++lane) {
    uint64_t row =
        static_cast<uint64_t>(origin.row) * offsets.global_heads + offsets.head_begin + lanes.head[lane];
    base[lane] = (row << 40) ^ (static_cast<uint64_t>(origin.query + lanes.query[lane]) << 20);
  }
  C kept = static_cast<C>(1 / (1 - args.dropout));
  float p = static_cast<float>(args.dropout);
  const RngKey random_key = args.dropout_key.resolved();
  for (int64_t key = tile.begin; key < tile.end;) {
    uint64_t global = static_cast<uint64_t>(origin.key + key);
    int word = static_cast<int>(global & 3);
    int count = static_cast<int>(std::min<int64_t>(4 - word, tile.end - key));
    C* rows = factors + (key - tile.begin) * width;
    for (int64_t lane = tile.first; lane < tile.last; ++lane) {
      Philox random = Philox::at(random_key, (base[lane] ^ global) >> 2);
      for (int i = 0; i < count; ++i) rows[i * width + lane] = random.uniform(word + i) >= p ? kept : C(0);
    }
    key += count;
  }
}

}  // namespace megatron::cpu::MEGATRON_ISA
