#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/dot_gemm.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/math.h"
#include "megatron/kernels/cpu/isa/scratch.h"
#include "megatron/kernels/fp8_pages.h"

// Attention whose keys and values lie in blocks of a pool. Each row, a query of one head, passes over its own
// keys in tiles that begin at multiples of kTile, so that its bits depend on nothing but the row itself. A
// tile that serves several rows is widened first; single rows read the pool itself, unless it is e4m3.
namespace megatron::cpu::MEGATRON_ISA {
namespace {

constexpr int64_t kTile = 64, kRows = 16;  // keys of a tile; rows that share its loads
constexpr int64_t kFewRows = 3;            // that read the pool itself

// Σ a · b in sixteen lanes, and out += factor · b.
template <class K>
inline float dot(const float* a, const K* b, int64_t n) {
  DotLanes sums{};
  for (int64_t i = 0; i < n; i += kDotLanes) sums += load_lanes(a + i, n - i) * load_lanes(b + i, n - i);
  return join_dot(sums);
}
inline double dot(const double* a, const double* b, int64_t n) {
  return sum_over<double>(n, [&](int64_t i) { return a[i] * b[i]; });
}
template <class K>
inline void add_scaled(float factor, const K* b, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kDotLanes <= n; i += kDotLanes) {
    const DotLanes sum = load_lanes(out + i, kDotLanes) + factor * load_lanes(b + i, kDotLanes);
    __builtin_memcpy(out + i, &sum, sizeof sum);
  }
  if (i == n) return;
  const DotLanes sum = load_lanes(out + i, n - i) + factor * load_lanes(b + i, n - i);
  for (int64_t l = 0; i + l < n; ++l) out[i + l] = sum[l];
}
inline void add_scaled(double factor, const double* b, int64_t n, double* out) {
  for (int64_t i = 0; i < n; ++i) out[i] += factor * b[i];
}

// What a byte is in e4m3.
const float* e4m3_values() {
  static const auto values = [] {
    std::array<float, 256> all;
    for (size_t byte = 0; byte < all.size(); ++byte)
      all[byte] = float(std::bit_cast<fp8_e4m3>(static_cast<uint8_t>(byte)));
    return all;
  }();
  return values.data();
}

// One sequence of the batch, and its keys.
struct PagedSequence {
  int64_t first_query, queries, keys;
  const int32_t* blocks;
};

PagedSequence sequence_at(const AttentionArgs& args, int64_t b) {
  const int32_t* cu = pointer<int32_t>(args.cu_queries);
  return {cu[b], cu[b + 1] - cu[b], pointer<int32_t>(args.key_lengths)[b],
          pointer<int32_t>(args.blocks) + b * args.blocks.stride(0)};
}

template <class C>
struct PagedRow {
  int64_t token, head, begin, end;  // of the queries; keys that it sees
  C maximum, sum;
};

// T: of queries; P: of the pool, T itself or e4m3 with scales.
template <class T, class P>
class PagedRows {
 public:
  using C = Compute<T>;
  static constexpr bool kFp8 = !std::is_same_v<T, P>;

  PagedRows(const KernelContext& ctx, const AttentionArgs& args)
      : args_(args),
        d_(args.q.size(2)),
        dv_(args.v.size(2)),
        group_(args.q.size(1) / args.k.size(1)),
        memory_(ctx, kTile * (d_ + dv_) + kRows * (d_ + dv_)),
        keys_(memory_.data()),
        values_(keys_ + kTile * d_),
        queries_(values_ + kTile * dv_),
        outputs_(queries_ + kRows * d_) {}

  // Rows [first, first + kRows) of a sequence and one KV head: row r is query r / group of head r % group.
  void run(const PagedSequence& sequence, int64_t kv_head, int64_t first) {
    count_ = std::min(kRows, sequence.queries * group_ - first);
    int64_t begin = sequence.keys, end = 0;
    for (int64_t r = 0; r < count_; ++r) {
      open(sequence, kv_head, first + r, rows_[r], queries_ + r * d_, outputs_ + r * dv_);
      begin = std::min(begin, rows_[r].begin);
      end = std::max(end, rows_[r].end);
    }
    for (int64_t key = begin / kTile * kTile; key < end; key += kTile) {
      const int64_t from = std::max(key, begin), to = std::min(key + kTile, end);
      const TileOf<P> keys = find(args_.k, sequence, kv_head, key, from, to, d_),
                      values = find(args_.v, sequence, kv_head, key, from, to, dv_);
      if constexpr (!kFp8)
        if (count_ <= kFewRows) {
          add_tiles(keys, values, key);
          continue;
        }
      add_tiles(widened(keys, args_.k, kv_head, from - key, to - key, d_, keys_),
                widened(values, args_.v, kv_head, from - key, to - key, dv_, values_), key);
    }
    for (int64_t r = 0; r < count_; ++r) close(rows_[r], outputs_ + r * dv_);
  }

 private:
  void open(const PagedSequence& sequence, int64_t kv_head, int64_t row, PagedRow<C>& state, C* query,
            C* out) {
    const int64_t index = row / group_, own = index + sequence.keys - sequence.queries;
    state.token = sequence.first_query + index;
    state.head = kv_head * group_ + row % group_;
    state.end = args_.causal ? own + 1 : sequence.keys;
    state.begin = args_.window_left >= 0 ? std::max<int64_t>(0, own - args_.window_left) : 0;
    state.maximum =
        args_.sinks ? C(pointer<T>(args_.sinks)[state.head]) : -std::numeric_limits<C>::infinity();
    state.sum = args_.sinks ? C(1) : C(0);
    const T* q = pointer<T>(args_.q) + state.token * args_.q.stride(0) + state.head * args_.q.stride(1);
    for (int64_t c = 0; c < d_; ++c) query[c] = static_cast<C>(args_.scale) * C(q[c]);
    std::fill_n(out, dv_, C(0));
  }

  // Where the keys (values) of a tile lie.
  template <class K>
  struct TileOf {
    const K* rows[kTile];
  };

  // Keys [from, to) of the tile that begins at `tile`. Rows of a head lie far apart, so all are asked for at
  // once.
  TileOf<P> find(const Tensor& pool, const PagedSequence& sequence, int64_t kv_head, int64_t tile,
                 int64_t from, int64_t to, int64_t width) const {
    TileOf<P> found;
    const P* data = pointer<P>(pool) + kv_head * pool.stride(1);
    for (int64_t key = from; key < to; ++key) {
      const int64_t slot =
          sequence.blocks[key / args_.block_size] * args_.block_size + key % args_.block_size;
      const P* row = data + slot * pool.stride(0);
      for (int64_t c = 0; c < width; c += 64 / static_cast<int64_t>(sizeof(P))) __builtin_prefetch(row + c);
      found.rows[key - tile] = row;
    }
    return found;
  }

  TileOf<C> widened(const TileOf<P>& tile, const Tensor& pool, int64_t kv_head, int64_t from, int64_t to,
                    int64_t width, C* target) const {
    TileOf<C> wide;
    [[maybe_unused]] const int64_t scales = fp8_scale_offset(pool.stride(0), pool.size(1));
    for (int64_t key = from; key < to; ++key) {
      C* out = target + key * width;
      if constexpr (kFp8) {
        const P* row = tile.rows[key];
        float scale;
        __builtin_memcpy(&scale, row - kv_head * pool.stride(1) + scales + 4 * kv_head, sizeof scale);
        const C factor = scale;
        for (int64_t c = 0; c < width; ++c) out[c] = factor * static_cast<C>(e4m3_[row[c].bits]);
      } else {
        for (int64_t c = 0; c < width; ++c) out[c] = C(tile.rows[key][c]);
      }
      wide.rows[key] = out;
    }
    return wide;
  }

  template <class K>
  void add_tiles(const TileOf<K>& keys, const TileOf<K>& values, int64_t tile) {
    for (int64_t r = 0; r < count_; ++r)
      add_tile(rows_[r], queries_ + r * d_, outputs_ + r * dv_, keys, values, tile);
  }

  template <class K>
  void add_tile(PagedRow<C>& row, const C* query, C* out, const TileOf<K>& keys, const TileOf<K>& values,
                int64_t tile) const {
    const int64_t from = std::max(row.begin, tile) - tile, to = std::min(row.end - tile, kTile);
    if (from >= to) return;
    C scores[kTile], newest = row.maximum;
    for (int64_t j = from; j < to; ++j) scores[j] = dot(query, keys.rows[j], d_);
    if (args_.softcap > 0) {
      const C cap = static_cast<C>(args_.softcap);
      for (int64_t j = from; j < to; ++j) scores[j] = cap * math::tanh(scores[j] / cap);
    }
    // NaN stays: it is neither larger nor smaller, and the sum shows it.
    for (int64_t j = from; j < to; ++j) newest = scores[j] > newest ? scores[j] : newest;
    if (newest == -std::numeric_limits<C>::infinity()) newest = 0;
    const C shrink = math::exp(row.maximum - newest);
    for (int64_t c = 0; c < dv_; ++c) out[c] *= shrink;
    row.sum *= shrink;
    for (int64_t j = from; j < to; ++j) scores[j] = math::exp(scores[j] - newest);
    for (int64_t j = from; j < to; ++j) {
      row.sum += scores[j];
      add_scaled(scores[j], values.rows[j], dv_, out);
    }
    row.maximum = newest;
  }

  void close(const PagedRow<C>& row, const C* out) const {
    const bool empty = row.sum == C(0);
    const C factor = empty ? C(0) : C(1) / row.sum;
    T* o = pointer<T>(args_.o) + row.token * args_.o.stride(0) + row.head * args_.o.stride(1);
    for (int64_t c = 0; c < dv_; ++c) o[c] = T(factor * out[c]);
    pointer<C>(args_.lse)[row.head * args_.lse.stride(0) + row.token] =
        empty ? -std::numeric_limits<C>::infinity() : row.maximum + std::log(row.sum);
  }

  const AttentionArgs& args_;
  int64_t d_, dv_, group_, count_ = 0;
  Scratch<C> memory_;
  C *keys_, *values_, *queries_, *outputs_;
  PagedRow<C> rows_[kRows];
  const float* e4m3_ = e4m3_values();
};

template <class T, class P>
void attend_rows(const KernelContext& ctx, const AttentionArgs& args) {
  const int64_t kv_heads = args.k.size(1), group = args.q.size(1) / kv_heads;
  const int64_t tasks = (args.max_queries * group + kRows - 1) / kRows;
  ctx.pool.parallel_for(args.batch * kv_heads * tasks, 1, [&](int64_t begin, int64_t end) {
    PagedRows<T, P> rows(ctx, args);
    for (int64_t item = begin; item < end; ++item) {
      const PagedSequence sequence = sequence_at(args, item / (kv_heads * tasks));
      const int64_t first = item % tasks * kRows;
      if (first < sequence.queries * group) rows.run(sequence, item / tasks % kv_heads, first);
    }
  });
}

}  // namespace

void paged_attention(const KernelContext& ctx, const AttentionArgs& args) {
  dispatch_float("attention", args.q.dtype(), [&]<class T>(Type<T>) {
    args.k.dtype() == DType::F8E4M3 ? attend_rows<T, fp8_e4m3>(ctx, args) : attend_rows<T, T>(ctx, args);
  });
}

}  // namespace megatron::cpu::MEGATRON_ISA
