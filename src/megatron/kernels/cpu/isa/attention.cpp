#include <atomic>

#include "megatron/kernels/cpu/isa/attention_tiles.h"
#include "megatron/kernels/cpu/isa/scratch.h"

namespace megatron::cpu::MEGATRON_ISA {

void attention_backward(const KernelContext& ctx, const AttentionBackwardArgs& args);
void attention_merge(const KernelContext& ctx, const AttentionMergeArgs& args);
void paged_attention(const KernelContext& ctx, const AttentionArgs& args);

namespace {

// What one thread works with while it passes over the keys of one block of lanes.
template <class C>
struct ForwardTiles {
  static constexpr int64_t width = Lanes<C>::capacity;
  ForwardTiles(const KernelContext& ctx, int64_t d, int64_t dv, bool dropout)
      : memory(ctx, (d + dv + (dropout ? 2 : 1) * kKeyTile) * width + kKeyTile * (d + dv)),
        queries(memory.data()),
        output(queries + d * width),
        scores(output + dv * width),
        factors(scores + kKeyTile * width),
        keys(factors + (dropout ? kKeyTile * width : 0)),
        values(keys + kKeyTile * d) {}

  Scratch<C> memory;
  C *queries, *output, *scores, *factors, *keys, *values;
  C maximum[width], sum[width];
};

// Brings maximum and sum up to date with a tile and turns its scores into exp(score − maximum). What was
// gathered under an older maximum is scaled down.
template <class C>
void softmax_step(const KeyTile& tile, int64_t dv, ForwardTiles<C>& t) {
  using V = Vector<C>;
  constexpr int64_t width = ForwardTiles<C>::width;
  C* end = t.scores + tile.size() * width;
  for (int64_t lane = tile.first; lane < tile.last; lane += kVectorWidth<C>) {
    V before = load_vector(t.maximum + lane), maximum = before;
    for (const C* row = t.scores; row < end; row += width) {
      V score = load_vector(row + lane);
      maximum = score > maximum ? score : maximum;
    }
    V shrink = exp_vector(before - maximum), sum = load_vector(t.sum + lane) * shrink;
    for (C* row = t.scores; row < end; row += width) {
      V e = exp_vector(load_vector(row + lane) - maximum);
      store_vector(row + lane, e);
      sum += e;
    }
    store_vector(t.maximum + lane, maximum);
    store_vector(t.sum + lane, sum);
    if (std::equal(t.maximum + lane, t.maximum + lane + kVectorWidth<C>, reinterpret_cast<C*>(&before)))
      continue;
    for (C* row = t.output; row < t.output + dv * width; row += width)
      store_vector(row + lane, load_vector(row + lane) * shrink);
  }
}

// Threads that work on one head may meet here.
template <class C>
void raise_to(C& largest, C value) {
  const std::atomic_ref<C> shared(largest);
  for (C held = shared.load(); held < value && !shared.compare_exchange_weak(held, value);) continue;
}

template <class T, class C>
void forward_block(const AttentionArgs& args, const Sequence& sequence, int64_t kv_head, int64_t first_row,
                   ForwardTiles<C>& t) {
  constexpr int64_t width = ForwardTiles<C>::width;
  int64_t d = args.q.size(2), dv = args.v.size(2);
  Lanes<C> lanes(args, sequence, kv_head, first_row);
  load_transposed<T>(args.q, sequence, lanes, static_cast<C>(args.scale), t.queries);
  std::fill(t.output, t.output + dv * width, C(0));
  for (int64_t lane = 0; lane < lanes.padded; ++lane) {
    t.maximum[lane] = args.sinks ? C(pointer<T>(args.sinks)[lanes.head[lane]]) : kMasked<C>;
    t.sum[lane] = args.sinks ? C(1) : C(0);
  }
  for_each_tile(lanes, [&](const KeyTile& tile) {
    load_keys<T>(args.k, sequence, kv_head, tile.begin, tile.end, t.keys);
    load_keys<T>(args.v, sequence, kv_head, tile.begin, tile.end, t.values);
    int64_t n = tile.last - tile.first;
    tile_gemm<C>({t.keys, d, 1, t.queries + tile.first, width, t.scores + tile.first, width, tile.size(), n,
                  d, false});
    finish_scores<T>(args, sequence, lanes, tile, t.scores);
    softmax_step(tile, dv, t);
    if (args.dropout > 0) {
      dropout_factors(args, sequence, lanes, tile, t.factors);
      multiply_tile(tile, t.scores, t.factors);
    }
    tile_gemm<C>({t.values, 1, dv, t.scores + tile.first, width, t.output + tile.first, width, dv, n,
                  tile.size(), true});
  });
  if (args.max_scores)
    for (int64_t lane = 0; lane < lanes.count; ++lane)
      raise_to(pointer<C>(args.max_scores)[lanes.head[lane]], t.maximum[lane]);
  C factor[width];
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    // A lane that saw nothing yields 0, though masked scores may have left something in its sums. What is not
    // a number is no maximum, but something.
    bool empty = t.maximum[lane] <= kMasked<C> && !std::isnan(t.sum[lane]);
    factor[lane] = empty ? C(0) : C(1) / t.sum[lane];
    pointer<C>(args.lse)[lanes.head[lane] * args.lse.stride(0) + sequence.first_query + lanes.query[lane]] =
        empty ? -std::numeric_limits<C>::infinity() : t.maximum[lane] + std::log(t.sum[lane]);
  }
  store_transposed<T>(t.output, factor, sequence, lanes, args.o);
}

void attention(const KernelContext& ctx, const AttentionArgs& args) {
  if (args.blocks) return paged_attention(ctx, args);
  dispatch_float("attention", args.q.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    int64_t kv_heads = args.k.size(1), group = group_of(args);
    int64_t blocks = (longest_queries(args) * group + kQueryLanes<C> - 1) / kQueryLanes<C>;
    ctx.pool.parallel_for(args.batch * kv_heads * blocks, 1, [&](int64_t begin, int64_t end) {
      ForwardTiles<C> tiles(ctx, args.q.size(2), args.v.size(2), args.dropout > 0);
      for (int64_t item = begin; item < end; ++item) {
        Sequence sequence = sequence_of(args, item / (kv_heads * blocks));
        int64_t first_row = item % blocks * kQueryLanes<C>;
        if (first_row < sequence.queries * group)
          forward_block<T>(args, sequence, item / blocks % kv_heads, first_row, tiles);
      }
    });
  });
}

}  // namespace

void add_attention_kernels(KernelTable& table) {
  table.attention = attention;
  table.attention_backward = attention_backward;
  table.attention_merge = attention_merge;
}

}  // namespace megatron::cpu::MEGATRON_ISA
