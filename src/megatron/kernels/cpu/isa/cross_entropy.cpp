#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/vector.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

template <class F>
void for_each_row(const KernelContext& ctx, int64_t rows, int64_t columns, F&& f) {
  ctx.pool.parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1)),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t row = begin; row < end; ++row) f(row);
                        });
}

// Calls f(g, values) with vectors of C in the order of x, where vector g of kGroup always holds the same
// lanes of kLanes: sums kept per g have the same bits on every instruction set. The end is filled up with −∞.
template <class C>
inline constexpr int kGroup = kLanes / kVectorWidth<C>;

template <class C, class T, class F>
void for_each_vector(const T* x, int64_t n, F&& f) {
  constexpr int64_t w = kVectorWidth<C>;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int g = 0; g < kGroup<C>; ++g) f(g, load_as<C>(x + i + g * w));
  if (i == n) return;
  C rest[kLanes];
  std::fill(rest, rest + kLanes, -std::numeric_limits<C>::infinity());
  for (int64_t j = i; j < n; ++j) rest[j - i] = C(x[j]);
  for (int g = 0; g < kGroup<C>; ++g) f(g, load_vector(rest + g * w));
}

template <class C, class Join>
C join_vectors(const Vector<C> (&x)[kGroup<C>], Join join) {
  C lanes[kLanes];
  for (int g = 0; g < kGroup<C>; ++g) store_vector(lanes + g * kVectorWidth<C>, x[g]);
  return join_lanes(lanes, join);
}

template <class C, class T>
C max_of(const T* x, int64_t n) {
  Vector<C> best[kGroup<C>];
  for (auto& b : best) b = -std::numeric_limits<C>::infinity() - Vector<C>{};
  for_each_vector<C>(x, n, [&](int g, Vector<C> v) { best[g] = v > best[g] ? v : best[g]; });
  return join_vectors<C>(best, [](C a, C b) { return a > b ? a : b; });
}

// Σ exp(x − maximum).
template <class C, class T>
C sum_of_exp(const T* x, int64_t n, C maximum) {
  Vector<C> sum[kGroup<C>] = {};
  for_each_vector<C>(x, n, [&](int g, Vector<C> v) { sum[g] += exp_vector(v - maximum); });
  return join_vectors<C>(sum, [](C a, C b) { return a + b; });
}

// dx = slope · exp(x − lse) − uniform.
template <class C, class T, class D>
void spread_softmax(const T* x, int64_t n, C lse, C slope, C uniform, D* dx) {
  constexpr int64_t w = kVectorWidth<C>;
  int64_t i = 0;
  for (; i + w <= n; i += w) store_as<C>(dx + i, slope * exp_vector(load_as<C>(x + i) - lse) - uniform);
  if (i == n) return;
  C rest[w] = {};
  for (int64_t j = i; j < n; ++j) rest[j - i] = C(x[j]);
  store_vector(rest, slope * exp_vector(load_vector(rest) - lse) - uniform);
  for (int64_t j = i; j < n; ++j) dx[j] = D(rest[j - i]);
}

void cross_entropy_stats(const KernelContext& ctx, const CrossEntropyStatsArgs& args) {
  dispatch_float("cross_entropy_stats", args.logits.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    int64_t columns = args.logits.size(1), valid = args.valid;
    for_each_row(ctx, args.logits.size(0), valid, [&](int64_t row) {
      const T* x = pointer<T>(args.logits) + row * columns;
      C maximum = max_of<C>(x, valid);
      pointer<C>(args.maximum)[row] = maximum;
      pointer<C>(args.sum_exp)[row] = sum_of_exp(x, valid, maximum);
      int64_t label = pointer<int64_t>(args.labels)[row] - args.vocab_begin;
      pointer<C>(args.target)[row] = label >= 0 && label < valid ? C(x[label]) : C(0);
      if (args.sum_logits)
        pointer<C>(args.sum_logits)[row] = sum_over<C>(valid, [&](int64_t i) { return C(x[i]); });
    });
  });
}

void cross_entropy_loss(const KernelContext& ctx, const CrossEntropyLossArgs& args) {
  dispatch_float("cross_entropy_loss", args.loss.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    C s = static_cast<C>(args.smoothing), z = static_cast<C>(args.z_loss);
    for_each_row(ctx, args.loss.numel(), 1, [&](int64_t row) {
      C lse = pointer<C>(args.maximum)[row] + std::log(pointer<C>(args.sum_exp)[row]);
      C expected = pointer<C>(args.target)[row];
      if (args.smoothing > 0)
        expected += s * (pointer<C>(args.sum_logits)[row] / static_cast<C>(args.vocab_size) - expected);
      bool ignored = pointer<int64_t>(args.labels)[row] == args.ignore_index;
      pointer<C>(args.lse)[row] = lse;
      pointer<C>(args.loss)[row] = ignored ? C(0) : lse - expected + z * lse * lse;
    });
  });
}

// What the gradient of a row needs beside its logits. `label` is local, or outside [0, valid).
template <class C>
struct RowGradient {
  int64_t columns, valid, label;
  C scale, lse;
  double smoothing, z_loss;
  int64_t vocab_size;

  template <class T, class D>
  void run(const T* x, D* dx) const {
    C slope = scale * (C(1) + static_cast<C>(2 * z_loss) * lse);
    C uniform = scale * static_cast<C>(smoothing / static_cast<double>(vocab_size));
    bool here = label >= 0 && label < valid;
    C at_label = here ? C(x[label]) : C(0);
    spread_softmax(x, valid, lse, slope, uniform, dx);
    if (here)
      dx[label] = D(slope * std::exp(at_label - lse) - uniform - scale * static_cast<C>(1 - smoothing));
    std::fill(dx + valid, dx + columns, D());
  }
};

template <class T, class D>
void grad_row(const CrossEntropyGradArgs& args, int64_t row) {
  using C = Compute<T>;
  int64_t columns = args.logits.size(1), label = pointer<int64_t>(args.labels)[row];
  D* dx = pointer<D>(args.dlogits) + row * columns;
  if (label == args.ignore_index) {
    std::fill(dx, dx + columns, D());
    return;
  }
  RowGradient<C>{columns,
                 args.valid,
                 label - args.vocab_begin,
                 pointer<C>(args.scale)[row * args.scale.stride(0)],
                 pointer<C>(args.lse)[row],
                 args.smoothing,
                 args.z_loss,
                 args.vocab_size}
      .run(pointer<T>(args.logits) + row * columns, dx);
}

void cross_entropy_grad(const KernelContext& ctx, const CrossEntropyGradArgs& args) {
  dispatch_float("cross_entropy_grad", args.logits.dtype(), [&]<class T>(Type<T>) {
    dispatch_float("cross_entropy_grad", args.dlogits.dtype(), [&]<class D>(Type<D>) {
      for_each_row(ctx, args.logits.size(0), args.logits.size(1),
                   [&](int64_t row) { grad_row<T, D>(args, row); });
    });
  });
}

template <class T>
void whole_row(const CrossEntropyArgs& args, int64_t row) {
  using C = Compute<T>;
  int64_t columns = args.logits.size(1), valid = args.valid, label = pointer<int64_t>(args.labels)[row];
  const T* x = pointer<T>(args.logits) + row * columns;
  T* dx = args.dlogits ? pointer<T>(args.dlogits) + row * columns : nullptr;
  C& loss = pointer<C>(args.loss)[row];
  if (label == args.ignore_index) {
    loss = 0;
    if (dx) std::fill(dx, dx + columns, T());
    return;
  }
  C maximum = max_of<C>(x, valid), lse = maximum + std::log(sum_of_exp(x, valid, maximum));
  C expected = label >= 0 && label < valid ? C(x[label]) : C(0), s = static_cast<C>(args.smoothing);
  if (args.smoothing > 0)
    expected +=
        s *
        (sum_over<C>(valid, [&](int64_t i) { return C(x[i]); }) / static_cast<C>(args.vocab_size) - expected);
  loss = lse - expected + static_cast<C>(args.z_loss) * lse * lse;
  if (dx)
    RowGradient<C>{columns, valid,          label,       pointer<C>(args.scale)[row * args.scale.stride(0)],
                   lse,     args.smoothing, args.z_loss, args.vocab_size}
        .run(x, dx);
}

void cross_entropy(const KernelContext& ctx, const CrossEntropyArgs& args) {
  dispatch_float("cross_entropy", args.logits.dtype(), [&]<class T>(Type<T>) {
    for_each_row(ctx, args.logits.size(0), args.logits.size(1),
                 [&](int64_t row) { whole_row<T>(args, row); });
  });
}

}  // namespace

void add_cross_entropy_kernels(KernelTable& table) {
  table.cross_entropy_stats = cross_entropy_stats;
  table.cross_entropy_loss = cross_entropy_loss;
  table.cross_entropy_grad = cross_entropy_grad;
  table.cross_entropy = cross_entropy;
}

}  // namespace megatron::cpu::MEGATRON_ISA
