#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/pointwise/fp8_rows.h"
#include "megatron/kernels/limits/rope.h"

namespace megatron::cuda {
namespace {

template <class C>
__global__ void rope_table_kernel(const int64_t* positions, AnyFloat inverse, C* cos_out, C* sin_out,
                                  int64_t tokens, int64_t frequencies, double amplitude, bool three,
                                  int64_t section0, int64_t section1) {
  griddep_overlap();
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= tokens * frequencies) return;
  int64_t t = i / frequencies, f = i - t * frequencies;
  int row = !three || f < section0 ? 0 : (f < section0 + section1 ? 1 : 2);
  // The angle is rounded to the table's type, as reference models have it.
  C angle = static_cast<C>(positions[row * tokens + t]) * static_cast<C>(inverse.get(f));
  cos_out[i] = static_cast<C>(cos(static_cast<double>(angle)) * amplitude);
  sin_out[i] = static_cast<C>(sin(static_cast<double>(angle)) * amplitude);
}

void rope_table(const KernelContext& ctx, const RopeTableArgs& args) {
  int64_t tokens = args.cos.size(0), frequencies = args.cos.size(1);
  if (args.cos.numel() == 0) return;
  auto run = [&]<class C>(Type<C>) {
    step_launch(ctx, "rope_table", blocks_for(tokens * frequencies, kThreads), kThreads)
        .run(rope_table_kernel<C>, pointer<int64_t>(args.positions), any_float(args.inverse_frequencies),
             pointer<C>(args.cos), pointer<C>(args.sin), tokens, frequencies, args.amplitude,
             args.positions.rank() == 2, args.sections[0], args.sections[1]);
  };
  if (args.cos.dtype() == DType::F64)
    run(Type<double>{});
  else
    run(Type<float>{});
}

// A head is cut into units: first those of W pairs of elements that turn together, then those of W elements
// that are only copied.
struct HeadShape {
  int head_dim, half;
  bool interleaved;

  template <int W>
  int64_t units() const {
    return (head_dim - half) / W;
  }
};

template <int W>
struct Unit {
  int first, second = 0;  // where its elements begin; second: of those that turn
  bool turns;

  __device__ Unit(HeadShape head, uint32_t unit)
      : first(static_cast<int>(unit) * W), turns(first < head.half) {
    if (!turns) {
      first += head.half;
    } else if (head.interleaved) {
      first *= 2;
      second = first + W;
    } else {
      second = first + head.half;
    }
  }
};

template <int W, class T>
__device__ __forceinline__ void turn(Compute<T> (&first)[W], Compute<T> (&second)[W],
                                     const Compute<T> (&cos)[W], const Compute<T> (&sin)[W],
                                     bool interleaved) {
  using C = Compute<T>;
  auto pair = [&](C& x, C& y, int j) {
    C a = x, b = y;
    x = a * cos[j] - b * sin[j];
    y = b * cos[j] + a * sin[j];
  };
#pragma unroll
  for (int j = 0; j < W; ++j) {
    if (!interleaved)
      pair(first[j], second[j], j);
    else if (W == 1)
      pair(first[0], second[0], 0);
    else if (j < W / 2)
      pair(first[2 * j], first[2 * j + 1], j);
    else
      pair(second[2 * j - W], second[2 * j + 1 - W], j);
  }
}

// One unit of a few heads of a token, which have its angles in common: where they lie, and which of them
// turn.
template <class T, int Heads>
struct HeadList {
  const T* from[Heads];
  T* to[Heads];
  bool turns[Heads];
};

template <int W, class T, int Heads>
__device__ __forceinline__ void turn_heads(const HeadList<T, Heads>& list, HeadShape head, uint32_t token,
                                           uint32_t unit, const Compute<T>* cos_table,
                                           const Compute<T>* sin_table, bool inverse) {
  const Unit<W> at(head, unit);
  Packed<T, W> first[Heads], second[Heads];
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    first[h].put(read<W>(list.from[h] + at.first));
    if (at.turns) second[h].put(read<W>(list.from[h] + at.second));
  }
  Compute<T> cos[W], sin[W];
  if (at.turns) {
    const int64_t angle = static_cast<int64_t>(token) * head.half + static_cast<int64_t>(unit) * W;
    load(cos, cos_table + angle);
    load(sin, sin_table + angle);
#pragma unroll
    for (int j = 0; j < W; ++j) sin[j] = inverse ? -sin[j] : sin[j];
  }
#pragma unroll
  for (int h = 0; h < Heads; ++h) {
    if (at.turns && list.turns[h]) {
      Compute<T> a[W], b[W];
      first[h].widened(a);
      second[h].widened(b);
      turn<W, T>(a, b, cos, sin, head.interleaved);
      store(list.to[h] + at.first, a);
      store(list.to[h] + at.second, b);
    } else {
      write(list.to[h] + at.first, first[h].get());
      if (at.turns) write(list.to[h] + at.second, second[h].get());
    }
  }
}

// How threads share the work: units of a head fastest, then the heads of a token, one or two each, then
// tokens.
struct Sharing {
  Divisor units, steps;
  uint32_t threads;

  Sharing(int64_t threads, int64_t heads, int64_t each, int64_t units_of_head)
      : units(units_of_head), steps(heads / each), threads(static_cast<uint32_t>(threads)) {}
  // f(token, first head, unit) of this thread; the other heads follow steps.value apart.
  template <class F>
  __device__ void run(F&& f) const {
    const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= threads) return;
    const uint32_t rest = units.divide(i), token = steps.divide(rest);
    f(token, rest - token * steps.value, i - rest * units.value);
  }
};

// Whole vectors of two heads, of one where their number is odd, or single elements where they do not lie
// well.
template <int W, class F>
void for_width(bool vector, bool even, F&& launch) {
  using One = std::integral_constant<int, 1>;
  if (!vector)
    launch(One{}, One{});
  else if (even)
    launch(std::integral_constant<int, W>{}, std::integral_constant<int, 2>{});
  else
    launch(std::integral_constant<int, W>{}, One{});
}

// Where the heads of tokens lie that come in groups, or all in one.
struct HeadPlaces {
  int64_t token, group, head;

  explicit HeadPlaces(const Tensor& x)
      : token(x.stride(0)), group(x.rank() == 4 ? x.stride(1) : 0), head(x.stride(-2)) {}
};

template <class T>
struct RopeOp {
  const T* x;
  T* y;
  const Compute<T>*cos, *sin;
  HeadPlaces from, to;
  Divisor per_group;  // heads
  HeadShape head;
  bool inverse;
};

template <class T, int W, int Heads>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeOp<T> op, Sharing sharing) {
  griddep_overlap();
  sharing.run([&](uint32_t token, uint32_t first, uint32_t unit) {
    HeadList<T, Heads> list;
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const uint32_t head = first + h * sharing.steps.value;
      const int64_t group = op.per_group.divide(head), member = head - group * op.per_group.value;
      list.turns[h] = true;
      list.from[h] = op.x + token * op.from.token + group * op.from.group + member * op.from.head;
      list.to[h] = op.y + token * op.to.token + group * op.to.group + member * op.to.head;
    }
    turn_heads<W>(list, op.head, token, unit, op.cos, op.sin, op.inverse);
  });
}

void rope(const KernelContext& ctx, const RopeArgs& args) {
  if (args.x.numel() == 0) return;
  dispatch_float("rope", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const int64_t per_group = args.x.size(-2),
                  heads = args.x.rank() == 4 ? args.x.size(1) * per_group : per_group;
    RopeOp<T> op{pointer<T>(args.x),
                 pointer<T>(args.y),
                 pointer<C>(args.cos),
                 pointer<C>(args.sin),
                 HeadPlaces(args.x),
                 HeadPlaces(args.y),
                 Divisor(per_group),
                 {static_cast<int>(args.x.size(-1)), static_cast<int>(args.cos.size(1)), args.interleaved},
                 args.inverse};
    const limits::RopeThreads shared = limits::rope_threads(args);
    auto launch = [&]<int W, int Heads>(std::integral_constant<int, W>, std::integral_constant<int, Heads>) {
      Sharing sharing(shared.count, heads, Heads, op.head.template units<W>());
      step_launch(ctx, "rope", blocks_for(sharing.threads, kThreads), kThreads)
          .run(rope_kernel<T, W, Heads>, op, sharing);
    };
    for_width<kVector<T>>(shared.vectors, heads % 2 == 0, launch);
  });
}

template <class T>
struct QkvOp {
  T *qkv, *q, *k, *v;
  const Compute<T>*cos, *sin;
  Divisor per_group;  // heads of a group: its queries, its key and its value
  uint32_t groups;
  HeadShape head;
  bool merge;
  const int64_t* slots = nullptr;  // rows of k and v that tokens have; null: one after the other
};

template <class T, int W, int Heads>
__global__ void __launch_bounds__(kThreads) qkv_kernel(QkvOp<T> op, Sharing sharing) {
  griddep_overlap();
  sharing.run([&](uint32_t token, uint32_t first, uint32_t unit) {
    HeadList<T, Heads> list;
    const uint32_t heads = op.groups * op.per_group.value, queries = op.per_group.value - 2;
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const uint32_t head = first + h * sharing.steps.value;
      const uint32_t group = op.per_group.divide(head), member = head - group * op.per_group.value;
      const int64_t row = static_cast<int64_t>(token) * op.groups + group,
                    kv_row = op.slots ? op.slots[token] * op.groups + group : row;
      T* fused = op.qkv + (static_cast<int64_t>(token) * heads + head) * op.head.head_dim;
      T* apart = member < queries ? op.q + (row * queries + member) * op.head.head_dim
                                  : (member == queries ? op.k : op.v) + kv_row * op.head.head_dim;
      list.turns[h] = member <= queries;
      list.from[h] = op.merge ? apart : fused;
      list.to[h] = op.merge ? fused : apart;
    }
    turn_heads<W>(list, op.head, token, unit, op.cos, op.sin, op.merge);
  });
}

void split(const KernelContext& ctx, const QkvSplitArgs& args, const Tensor& slots) {
  if (args.qkv.numel() == 0) return;
  dispatch_float("qkv_split", args.qkv.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    int64_t groups = args.k.size(1), head_dim = args.k.size(2), half = args.cos ? args.cos.size(1) : 0;
    int64_t heads = args.q.size(1) + 2 * groups;
    QkvOp<T> op{pointer<T>(args.qkv),
                pointer<T>(args.q),
                pointer<T>(args.k),
                pointer<T>(args.v),
                pointer<C>(args.cos),
                pointer<C>(args.sin),
                Divisor(heads / groups),
                static_cast<uint32_t>(groups),
                {static_cast<int>(head_dim), static_cast<int>(half), args.interleaved},
                args.merge,
                pointer<int64_t>(slots)};
    const limits::RopeThreads shared = limits::rope_threads(args);
    auto launch = [&]<int W, int Heads>(std::integral_constant<int, W>, std::integral_constant<int, Heads>) {
      Sharing sharing(shared.count, heads, Heads, op.head.template units<W>());
      step_launch(ctx, "qkv_split", blocks_for(sharing.threads, kThreads), kThreads)
          .run(qkv_kernel<T, W, Heads>, op, sharing);
    };
    for_width<kVector<T>>(shared.vectors, heads % 2 == 0, launch);
  });
}

void qkv_split(const KernelContext& ctx, const QkvSplitArgs& args) { split(ctx, args, {}); }

bool qkv_cache(const KernelContext& ctx, const QkvCacheArgs& args) {
  if (args.keys.dtype() == DType::F8E4M3) return fp8_qkv_cache(ctx, args);
  if (!args.keys.is_contiguous() || !args.values.is_contiguous() || args.keys.shape() != args.values.shape())
    return false;
  // split() reads sizes and alignments of k and v, and finds rows by `slots`: the first row stands for all.
  const auto rows = [&](const Tensor& pool) {
    return pool.slice(0, 0, 1).expand({args.q.size(0), pool.size(1), pool.size(2)});
  };
  const QkvSplitArgs parts{.qkv = args.qkv,
                           .q = args.q,
                           .k = rows(args.keys),
                           .v = rows(args.values),
                           .cos = args.cos,
                           .sin = args.sin,
                           .interleaved = args.interleaved};
  if (limits::rope_threads(parts).count >= limits::kThreads) return false;
  split(ctx, parts, args.slots);
  return true;
}

}  // namespace

void add_rope_kernels(KernelTable& table) {
  table.rope_table = rope_table;
  table.rope = rope;
  table.qkv_split = qkv_split;
  table.qkv_cache = qkv_cache;
}

}  // namespace megatron::cuda
