#pragma once

#include "megatron/kernels/cuda/decode/decode_consumer.cuh"

namespace megatron::cuda::decode {

// The consumer's attention: a block has a part of the keys of one KV head of one sequence, [begin, end), the
// same in all layers.
template <int D>
struct AttentionConsumer : Consumer {
  AttentionShared<D>& attention;
  int row = 0, kv_head = 0, split = 0, begin = 0, end = 0;

  // Keys of a split, by the length of the sequence alone: a tile for each warp, or more where splits are few.
  __device__ int split_keys(int length) const {
    const int even = (length + task.splits - 1) / task.splits;
    return max(kWarps * kTileKeys, (even + kTileKeys - 1) / kTileKeys * kTileKeys);
  }

  __device__ void take_part() {
    if (thread() < task.rows) fixed.lengths[thread()] = task.key_lengths[thread()];
    const int item = blockIdx.x;
    if (item < task.rows * task.kv_heads * task.splits) {
      row = item / (task.kv_heads * task.splits);
      kv_head = item / task.splits % task.kv_heads;
      split = item % task.splits;
      const int length = task.key_lengths[row], each = split_keys(length);
      begin = min(split * each, length);
      end = min(begin + each, length);
    }
    const int32_t* table = task.blocks + row * task.blocks_stride;
    for (int i = thread(); i < end - begin; i += kConsumers) {
      const int key = begin + i;
      fixed.key_rows[i] = table[key / task.block_size] * task.block_size + key % task.block_size;
    }
    consumers_sync();
  }

  __device__ int64_t offset_of(int key) const {
    return (static_cast<int64_t>(fixed.key_rows[key - begin]) * task.kv_heads + kv_head) * D;
  }

  __device__ void prefetch_keys(const LayerWeights& w, int i, int threads) const {
    for (int at = i; at < 2 * (end - begin); at += threads) {
      const bfloat* data = (at % 2 ? w.values : w.keys) + offset_of(begin + at / 2);
#pragma unroll
      for (int c = 0; c < D; c += 64) prefetch(data + c);
    }
  }

  // Rotates the queries of this KV head and the new key. The block that has the new key puts it and its value
  // into the cache.
  __device__ void rotate(const LayerWeights& w) {
    const int length = fixed.lengths[row];
    const bool newest = end == length;
    const int heads = task.group + (newest ? 2 : 0);
    const bfloat* fused =
        task.qkv + (static_cast<int64_t>(row) * task.kv_heads + kv_head) * (task.group + 2) * D;
    const float *cos = task.cos + row * task.half, *sin = task.sin + row * task.half;
    for (int i = thread() * 8; i < heads * D; i += kConsumers * 8)
      *reinterpret_cast<uint4*>(attention.fused + i) = __ldcg(reinterpret_cast<const uint4*>(fused + i));
    consumers_sync();
    const auto raw = [&](int at) { return widen(attention.fused[at]); };
    for (int i = thread(); i < heads * D; i += kConsumers) {
      const int head = i / D, c = i % D;
      float value = raw(i);
      if (head <= task.group && c < 2 * task.half) {
        const bool second = task.interleaved ? c % 2 : c >= task.half;
        const int angle = task.interleaved ? c / 2 : c - (second ? task.half : 0);
        const int apart = task.interleaved ? 1 : task.half;
        const float other = raw(i + (second ? -apart : apart));
        value = second ? value * cos[angle] + other * sin[angle] : value * cos[angle] - other * sin[angle];
      }
      const bfloat rounded = narrow<bfloat>(value);
      if (head < task.group) {
        attention.q[head][c] = rounded;
      } else {
        const int64_t place = (task.slots[row] * task.kv_heads + kv_head) * D + c;
        (head == task.group ? attention.key : attention.value)[c] = rounded;
        (head == task.group ? w.keys : w.values)[place] = rounded;
      }
    }
    consumers_sync();
  }

  // Online softmax of the query heads over this block's keys, a tile of them for each warp in turn. Keys are
  // on their way before the queries are there.
  __device__ void attend(const LayerWeights& w) {
    using Tile = DecodeTile<bfloat, D>;
    if (begin >= end) return;
    const int newest = fixed.lengths[row] - 1;
    Tile tile;
    const auto read_tile = [&](int key0) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int key = key0 + Tile::key_row(n);
        const bfloat* from = w.keys + offset_of(key < end ? key : begin);
#pragma unroll
        for (int c = 0; c < Tile::kChunks; ++c)
          tile.k[n][c] = read_once(key < end, from + Tile::key_channel(c));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + Tile::value_row(i);
        const bfloat* from = w.values + offset_of(key < end ? key : begin);
#pragma unroll
        for (int h = 0; h < Tile::kHalves; ++h)
          tile.v[i][h] = read_once(key < end, from + Tile::value_channel(h));
      }
    };
    // What the cache is only just getting.
    const auto take_newest = [&](int key0) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
        if (key0 + Tile::key_row(n) == newest) {
#pragma unroll
          for (int c = 0; c < Tile::kChunks; ++c)
            tile.k[n][c] = *reinterpret_cast<const uint4*>(attention.key + Tile::key_channel(c));
        }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (key0 + Tile::value_row(i) == newest) {
#pragma unroll
          for (int h = 0; h < Tile::kHalves; ++h)
            tile.v[i][h] = *reinterpret_cast<const uint4*>(attention.value + Tile::value_channel(h));
        }
    };
    int key0 = begin + warp() * kTileKeys;
    read_tile(key0);
    rotate(w);
    uint4 q[Tile::kChunks];
#pragma unroll
    for (int c = 0; c < Tile::kChunks; ++c)
      q[c] = *reinterpret_cast<const uint4*>(attention.q[lane() / 4] + Tile::key_channel(c));
    DecodeSoftmax<bfloat, D> softmax;
    while (key0 < end) {
      take_newest(key0);
      float score[4], highest[2] = {kLowest, kLowest};
      tile.dots(score, q);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[i] = key0 + Tile::key_row(i / 2) < end ? score[i] * task.scale * kLog2e : kLowest;
        highest[i % 2] = fmaxf(highest[i % 2], score[i]);
      }
      softmax.raise(highest);
      softmax.add(score, tile);
      key0 += kWarps * kTileKeys;
      if (key0 < end) read_tile(key0);
    }
    softmax.leave(attention.joined[warp()], attention.scores[warp()]);
    join();
  }

  // What all warps have come to is this split's.
  __device__ void join() {
    consumers_sync();
    for (int i = thread(); i < task.group * D; i += kConsumers) {
      const int g = i / D, c = i % D;
      float highest = kLowest, total = 0, value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, attention.scores[w][g].x);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float weight = weight_of(attention.scores[w][g].x, highest);
        total += attention.scores[w][g].y * weight;
        value += attention.joined[w][g][c] * weight;
      }
      const int64_t at =
          (static_cast<int64_t>(row) * task.heads + kv_head * task.group + g) * task.splits + split;
      task.o[at * D + c] = value;
      if (c == 0) task.scores[at] = {highest, total};
    }
  }

  // x = what all heads have come to, their splits joined.
  __device__ void combine() const {
    const int vectors = task.heads * D / 8;
    for (int i = thread(); i < task.rows * vectors; i += kConsumers) {
      const int b = i / vectors, v = i - b * vectors, head = v / (D / 8), c = v % (D / 8) * 8;
      const int length = fixed.lengths[b], each = split_keys(length), used = (length + each - 1) / each;
      const int64_t first = (static_cast<int64_t>(b) * task.heads + head) * task.splits;
      float2 own[kMaxSplits];
      float4 o[kMaxSplits][2];
#pragma unroll
      for (int s = 0; s < kMaxSplits; ++s)
        if (s < used) {
          own[s] = __ldcg(&task.scores[first + s]);
          o[s][0] = __ldcg(reinterpret_cast<const float4*>(task.o + (first + s) * D + c));
          o[s][1] = __ldcg(reinterpret_cast<const float4*>(task.o + (first + s) * D + c + 4));
        } else {
          own[s] = {kLowest, 0};
          o[s][0] = o[s][1] = {};
        }
      float highest = kLowest, total = 0, y[8] = {};
#pragma unroll
      for (int s = 0; s < kMaxSplits; ++s) highest = fmaxf(highest, own[s].x);
#pragma unroll
      for (int s = 0; s < kMaxSplits; ++s) {
        const float weight = weight_of(own[s].x, highest);
        total += own[s].y * weight;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          y[4 * h] += o[s][h].x * weight;
          y[4 * h + 1] += o[s][h].y * weight;
          y[4 * h + 2] += o[s][h].z * weight;
          y[4 * h + 3] += o[s][h].w * weight;
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = total == 0 ? 0.f : y[j] / total;
      Packed<bfloat, 8> rounded;
      rounded.narrowed(y);
      reinterpret_cast<uint4*>(x + b * (task.heads * D + kXPad))[v] =
          __builtin_bit_cast(uint4, rounded.get());
    }
    consumers_sync();
  }
};

}  // namespace megatron::cuda::decode
