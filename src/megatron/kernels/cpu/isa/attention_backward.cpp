#include "megatron/kernels/cpu/isa/attention_tiles.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/scratch.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// One thread's tiles for one block of lanes, and the keys and values of one head as a whole.
template <class C>
struct BackwardTiles {
  static constexpr int64_t width = Lanes<C>::capacity;
  BackwardTiles(const KernelContext& ctx, const AttentionArgs& args, int64_t longest_keys)
      : d(args.q.size(2)),
        dv(args.v.size(2)),
        d_row(round_to_vector<C>(d)),
        dv_row(round_to_vector<C>(dv)),
        tile(kKeyTile * width),
        memory(ctx, width * (2 * d + dv + d_row + dv_row) + 4 * tile + longest_keys * (d + dv)),
        queries(memory.data()),
        dqueries(queries + d * width),
        doutput(dqueries + d * width),
        query_rows(doutput + dv * width),
        doutput_rows(query_rows + width * d_row),
        scores(doutput_rows + width * dv_row),
        dscores(scores + tile),
        factors(dscores + tile),
        slopes(factors + tile),
        keys(slopes + tile),
        values(keys + longest_keys * d) {}

  int64_t d, dv, d_row, dv_row, tile;
  Scratch<C> memory;
  C *queries, *dqueries, *doutput;         // [head_dim, lane]
  C *query_rows, *doutput_rows;            // [lane, head_dim]
  C *scores, *dscores, *factors, *slopes;  // [key, lane]
  C *keys, *values;                        // [key, head_dim]
};

// Sums of the gradients of one head's keys and values, rows padded to whole vectors.
template <class C>
struct KeyGrads {
  C *dkeys, *dvalues;
};

template <class C>
void add_dbias(const AttentionBackwardArgs& args, const Sequence& sequence, const Lanes<C>& lanes,
               const KeyTile& tile, const C* dscores) {
  const Tensor& dbias = args.dbias;
  int64_t last = std::min(tile.last, lanes.count);
  for (int64_t lane = tile.first; lane < last; ++lane) {
    C* row = pointer<C>(dbias) + (dbias.size(0) == 1 ? 0 : sequence.index) * dbias.stride(0) +
             (dbias.size(1) == 1 ? 0 : lanes.head[lane]) * dbias.stride(1) +
             lanes.query[lane] * dbias.stride(2);
    for (int64_t key = tile.begin; key < tile.end; ++key)
      row[key * dbias.stride(3)] += dscores[(key - tile.begin) * Lanes<C>::capacity + lane];
  }
}

// `delta` is ⟨grad_o, o⟩ per head and query token: what the softmax's own normalisation gives back.
template <class T, class C>
void backward_block(const AttentionBackwardArgs& args, const Sequence& sequence, int64_t kv_head,
                    int64_t first_row, const C* delta, BackwardTiles<C>& t, const KeyGrads<C>& grads) {
  constexpr int64_t width = BackwardTiles<C>::width;
  const AttentionArgs& f = args.forward;
  Lanes<C> lanes(f, sequence, kv_head, first_row);
  C scale = static_cast<C>(f.scale);
  load_transposed<T>(f.q, sequence, lanes, scale, t.queries);
  load_rows<T>(f.q, sequence, lanes, scale, t.query_rows);
  load_transposed<T>(args.grad_o, sequence, lanes, C(1), t.doutput);
  load_rows<T>(args.grad_o, sequence, lanes, C(1), t.doutput_rows);
  std::fill(t.dqueries, t.dqueries + t.d * width, C(0));
  C lse[width] = {}, lane_delta[width] = {};
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    int64_t token = sequence.first_query + lanes.query[lane];
    C value = pointer<C>(f.lse)[lanes.head[lane] * f.lse.stride(0) + token];
    lse[lane] = std::isinf(value) ? C(0) : value;  // a lane that saw nothing: all its scores are masked
    lane_delta[lane] = delta[lanes.head[lane] * f.q.size(0) + token];
  }
  for_each_tile(lanes, [&](const KeyTile& tile) {
    int64_t n = tile.last - tile.first, size = tile.size();
    const C *keys = t.keys + tile.begin * t.d, *values = t.values + tile.begin * t.dv;
    C *scores = t.scores + tile.first, *dscores = t.dscores + tile.first;
    tile_gemm<C>({keys, t.d, 1, t.queries + tile.first, width, scores, width, size, n, t.d, false});
    tile_gemm<C>({values, t.dv, 1, t.doutput + tile.first, width, dscores, width, size, n, t.dv, false});
    finish_scores<T>(f, sequence, lanes, tile, t.scores, t.slopes);
    if (f.dropout > 0) {
      dropout_factors(f, sequence, lanes, tile, t.factors);
      multiply_tile(tile, t.dscores, t.factors);
    }
    for (int64_t lane = tile.first; lane < tile.last; lane += kVectorWidth<C>) {
      Vector<C> shift = load_vector(lse + lane), own = load_vector(lane_delta + lane);
      for (int64_t at = lane; at < lane + size * width; at += width) {
        Vector<C> p = exp_vector(load_vector(t.scores + at) - shift);
        store_vector(t.dscores + at, p * (load_vector(t.dscores + at) - own));
        store_vector(t.scores + at, p);
      }
    }
    if (f.dropout > 0) multiply_tile(tile, t.scores, t.factors);
    if (args.dbias) add_dbias(args, sequence, lanes, tile, t.dscores);
    if (f.softcap > 0) multiply_tile(tile, t.dscores, t.slopes);
    tile_gemm<C>({scores, width, 1, t.doutput_rows + tile.first * t.dv_row, t.dv_row,
                  grads.dvalues + tile.begin * t.dv_row, t.dv_row, size, t.dv_row, n, true});
    tile_gemm<C>({dscores, width, 1, t.query_rows + tile.first * t.d_row, t.d_row,
                  grads.dkeys + tile.begin * t.d_row, t.d_row, size, t.d_row, n, true});
    tile_gemm<C>({keys, 1, t.d, dscores, width, t.dqueries + tile.first, width, t.d, n, size, true});
  });
  C factor[width];
  std::fill(factor, factor + width, scale);
  store_transposed<T>(t.dqueries, factor, sequence, lanes, args.dq);
}

// How many parts the queries of one head are cut into, each with its own sums for keys and values. It depends
// on the shapes alone, so that the gradients do not depend on the number of threads.
inline int64_t query_splits(int64_t items, int64_t rows) {
  constexpr int64_t wanted_items = 32, min_rows = 512;
  return std::clamp<int64_t>(std::min((wanted_items + items - 1) / items, rows / min_rows), 1, wanted_items);
}

template <class T, class C>
void compute_delta(const KernelContext& ctx, const AttentionBackwardArgs& args, C* delta) {
  const Tensor &o = args.forward.o, &grad = args.grad_o;
  int64_t tokens = o.size(0), heads = o.size(1), dv = o.size(2);
  ctx.pool.parallel_for(tokens, std::max<int64_t>(1, kGrain / (heads * dv)), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token)
      for (int64_t head = 0; head < heads; ++head) {
        const T* x = pointer<T>(o) + token * o.stride(0) + head * o.stride(1);
        const T* y = pointer<T>(grad) + token * grad.stride(0) + head * grad.stride(1);
        delta[head * tokens + token] = sum_over<C>(dv, [&](int64_t c) { return C(x[c]) * C(y[c]); });
      }
  });
}

// A sink takes exp(sink − lse) of the probability and gives nothing for it.
template <class T, class C>
void add_dsinks(const AttentionBackwardArgs& args, const C* delta) {
  const AttentionArgs& f = args.forward;
  int64_t tokens = f.q.size(0);
  for (int64_t head = 0; head < f.q.size(1); ++head) {
    const C* lse = pointer<C>(f.lse) + head * f.lse.stride(0);
    C sink = C(pointer<T>(f.sinks)[head]);
    C sum =
        sum_over<C>(tokens, [&](int64_t t) { return math::exp(sink - lse[t]) * delta[head * tokens + t]; });
    dispatch_float("attention_backward", args.dsinks.dtype(), [&]<class G>(Type<G>) {
      G& target = pointer<G>(args.dsinks)[head];
      target = G((args.accumulate ? C(target) : C(0)) - sum);
    });
  }
}

template <class T, class C>
class Backward {
 public:
  Backward(const KernelContext& ctx, const AttentionBackwardArgs& args)
      : ctx_(ctx),
        args_(args),
        f_(args.forward),
        kv_heads_(f_.k.size(1)),
        key_tokens_(f_.k.size(0)),
        rows_(longest_queries(f_) * group_of(f_)),
        splits_(query_splits(f_.batch * kv_heads_, rows_)),
        d_row_(round_to_vector<C>(f_.k.size(2))),
        dv_row_(round_to_vector<C>(f_.v.size(2))),
        delta_(ctx, f_.q.size(1) * f_.q.size(0)),
        partial_(ctx, splits_ * kv_heads_ * key_tokens_ * (d_row_ + dv_row_)) {
    for (int64_t b = 0; b < f_.batch; ++b) longest_keys_ = std::max(longest_keys_, sequence_of(f_, b).keys);
  }

  void run() {
    compute_delta<T>(ctx_, args_, delta_.data());
    if (args_.dsinks) add_dsinks<T>(args_, delta_.data());
    // Sequences or heads that share a bias add to its gradient one after the other.
    bool shared_batch = false, shared_heads = false;
    if (args_.dbias) {
      shared_batch = args_.dbias.size(0) == 1;
      shared_heads = args_.dbias.size(1) == 1;
      clear_dbias();
    }
    int64_t batch_rounds = shared_batch ? f_.batch : 1, head_rounds = shared_heads ? kv_heads_ : 1;
    int64_t batch = f_.batch / batch_rounds, heads = kv_heads_ / head_rounds;
    for (int64_t b = 0; b < batch_rounds; ++b)
      for (int64_t h = 0; h < head_rounds; ++h)
        ctx_.pool.parallel_for(batch * heads * splits_, 1, [&](int64_t begin, int64_t end) {
          BackwardTiles<C> tiles(ctx_, f_, longest_keys_);
          for (int64_t item = begin; item < end; ++item)
            run_part(b + item / (heads * splits_), h + item / splits_ % heads, item % splits_, tiles);
        });
    reduce_partials();
  }

 private:
  KeyGrads<C> sums(int64_t split, int64_t kv_head) const {
    C* base = partial_.data() + (split * kv_heads_ + kv_head) * key_tokens_ * (d_row_ + dv_row_);
    return {base, base + key_tokens_ * d_row_};
  }

  void run_part(int64_t b, int64_t kv_head, int64_t split, BackwardTiles<C>& tiles) {
    Sequence sequence = sequence_of(f_, b);
    KeyGrads<C> grads = sums(split, kv_head);
    grads.dkeys += sequence.first_key * d_row_;
    grads.dvalues += sequence.first_key * dv_row_;
    std::fill(grads.dkeys, grads.dkeys + sequence.keys * d_row_, C(0));
    std::fill(grads.dvalues, grads.dvalues + sequence.keys * dv_row_, C(0));
    load_keys<T>(f_.k, sequence, kv_head, 0, sequence.keys, tiles.keys);
    load_keys<T>(f_.v, sequence, kv_head, 0, sequence.keys, tiles.values);
    int64_t blocks = (rows_ + kQueryLanes<C> - 1) / kQueryLanes<C>;
    int64_t rows = sequence.queries * group_of(f_);
    for (int64_t block = blocks * split / splits_; block < blocks * (split + 1) / splits_; ++block)
      if (int64_t row = block * kQueryLanes<C>; row < rows)
        backward_block<T>(args_, sequence, kv_head, row, delta_.data(), tiles, grads);
  }

  void reduce_partials() {
    int64_t per_row = kv_heads_ * (d_row_ + dv_row_) * splits_;
    ctx_.pool.parallel_for(key_tokens_, std::max<int64_t>(1, kGrain / per_row),
                           [&](int64_t begin, int64_t end) {
                             for (int64_t head = 0; head < kv_heads_; ++head)
                               for (int64_t token = begin; token < end; ++token) {
                                 join_row(args_.dk, token, head, d_row_, &KeyGrads<C>::dkeys);
                                 join_row(args_.dv, token, head, dv_row_, &KeyGrads<C>::dvalues);
                               }
                           });
  }

  void join_row(const Tensor& target, int64_t token, int64_t head, int64_t row_size, C* KeyGrads<C>::*part) {
    T* out = pointer<T>(target) + token * target.stride(0) + head * target.stride(1);
    C* sum = sums(0, head).*part + token * row_size;
    for (int64_t split = 1; split < splits_; ++split) {
      const C* more = sums(split, head).*part + token * row_size;
      for (int64_t c = 0; c < target.size(2); ++c) sum[c] += more[c];
    }
    for (int64_t c = 0; c < target.size(2); ++c) out[c] = T(sum[c]);
  }

  void clear_dbias() {
    C* data = pointer<C>(args_.dbias);
    ctx_.pool.parallel_for(args_.dbias.numel(), kGrain,
                           [&](int64_t begin, int64_t end) { std::fill(data + begin, data + end, C(0)); });
  }

  const KernelContext& ctx_;
  const AttentionBackwardArgs& args_;
  const AttentionArgs& f_;
  int64_t kv_heads_, key_tokens_, rows_, splits_, d_row_, dv_row_, longest_keys_ = 0;
  Scratch<C> delta_, partial_;
};

}  // namespace

void attention_backward(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  dispatch_float("attention_backward", args.forward.q.dtype(),
                 [&]<class T>(Type<T>) { Backward<T, Compute<T>>(ctx, args).run(); });
}

}  // namespace megatron::cpu::MEGATRON_ISA
