#include <algorithm>
#include <cmath>
#include <cstring>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/fp8_pages.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

void gather_rows(const KernelContext& ctx, const GatherRowsArgs& args) {
  dispatch_any(args.table.dtype(), [&]<class T>(Type<T>) {
    const T* table = pointer<T>(args.table);
    const int64_t* ids = pointer<int64_t>(args.ids);
    T* out = pointer<T>(args.out);
    int64_t rows = args.table.size(0), stride = args.table.stride(0),
            columns = args.table.numel() / std::max<int64_t>(rows, 1);
    ctx.pool.parallel_for(args.ids.numel(), std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1)),
                          [&](int64_t begin, int64_t end) {
                            for (int64_t i = begin; i < end; ++i) {
                              int64_t row = ids[i] - args.first;
                              if (row >= 0 && row < rows)
                                std::copy_n(table + row * stride, columns, out + i * columns);
                              else
                                std::fill_n(out + i * columns, columns, T());
                            }
                          });
  });
}

// Each head of a row in e4m3, with a scale of its own: kernels/fp8_pages.h.
template <class T>
void put_fp8_rows(const KernelContext& ctx, const PutRowsArgs& args) {
  const int64_t heads = args.source.size(1), head_dim = args.source.size(2);
  const int64_t* ids = pointer<int64_t>(args.ids);
  const T* source = pointer<T>(args.source);
  fp8_e4m3* out = pointer<fp8_e4m3>(args.out);
  const int64_t row_bytes = args.out.stride(0), scales = fp8_scale_offset(row_bytes, heads);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(head_dim, 1));
  ctx.pool.parallel_for(args.ids.numel() * heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t i = item / heads, head = item % heads;
      const T* from = source + i * args.source.stride(0) + head * args.source.stride(1);
      fp8_e4m3 *row = out + ids[i] * row_bytes, *to = row + head * args.out.stride(1);
      const float amax = max_over<float>(head_dim, [&](int64_t c) { return std::fabs(float(from[c])); });
      const float inverse = amax == 0 ? 1.f : amax / fp8_e4m3::max;
      for (int64_t c = 0; c < head_dim; ++c)
        to[c] = fp8_e4m3(std::clamp(float(from[c]) / inverse, -fp8_e4m3::max, fp8_e4m3::max));
      std::memcpy(&row[scales + head * 4].bits, &inverse, sizeof inverse);
    }
  });
}

void put_rows(const KernelContext& ctx, const PutRowsArgs& args) {
  if (args.source.dtype() != args.out.dtype())
    return dispatch_float("put_rows", args.source.dtype(),
                          [&]<class T>(Type<T>) { put_fp8_rows<T>(ctx, args); });
  const int64_t count = args.ids.numel(), columns = count > 0 ? args.source.numel() / count : 0;
  const int64_t* ids = pointer<int64_t>(args.ids);
  dispatch_any(args.source.dtype(), [&]<class T>(Type<T>) {
    const T* source = pointer<T>(args.source);
    T* out = pointer<T>(args.out);
    ctx.pool.parallel_for(
        count, std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1)), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            std::copy_n(source + i * args.source.stride(0), columns, out + ids[i] * args.out.stride(0));
        });
  });
}

void gather_columns(const KernelContext& ctx, const GatherColumnsArgs& args) {
  int64_t n = args.x.size(1), k = args.indices.size(1);
  const int64_t* indices = pointer<int64_t>(args.indices);
  dispatch_float("gather_columns", args.x.dtype(), [&]<class T>(Type<T>) {
    const T* x = pointer<T>(args.x);
    T* out = pointer<T>(args.out);
    ctx.pool.parallel_for(args.x.size(0), std::max<int64_t>(1, kGrain / std::max<int64_t>(k, 1)),
                          [&](int64_t begin, int64_t end) {
                            for (int64_t row = begin; row < end; ++row)
                              for (int64_t j = row * k; j < (row + 1) * k; ++j)
                                out[j] = x[row * n + indices[j]];
                          });
  });
}

void scatter_columns(const KernelContext& ctx, const ScatterColumnsArgs& args) {
  int64_t n = args.out.size(1), k = args.indices.size(1);
  const int64_t* indices = pointer<int64_t>(args.indices);
  dispatch_float("scatter_columns", args.source.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const T* source = pointer<T>(args.source);
    T* out = pointer<T>(args.out);
    ctx.pool.parallel_for(args.out.size(0), std::max<int64_t>(1, kGrain / std::max<int64_t>(n, 1)),
                          [&](int64_t begin, int64_t end) {
                            std::fill(out + begin * n, out + end * n, T());
                            for (int64_t row = begin; row < end; ++row)
                              for (int64_t j = row * k; j < (row + 1) * k; ++j) {
                                T& target = out[row * n + indices[j]];
                                target = T(C(target) + C(source[j]));
                              }
                          });
  });
}

// Threads share the columns, so that each sum is made by one of them, in the order of the ids.
template <class S, class T>
void scatter_strip(const ScatterAddRowsArgs& args, int64_t columns, int64_t begin, int64_t end) {
  using C = Compute<T>;
  const S* source = pointer<S>(args.source);
  const int64_t* ids = pointer<int64_t>(args.ids);
  T* out = pointer<T>(args.out);
  int64_t rows = args.out.size(0);
  if (!args.accumulate)
    for (int64_t row = 0; row < rows; ++row)
      std::fill(out + row * columns + begin, out + row * columns + end, T());
  for (int64_t i = 0; i < args.ids.numel(); ++i) {
    int64_t row = ids[i] - args.first;
    if (row < 0 || row >= rows) continue;
    const S* x = source + i * columns;
    T* y = out + row * columns;
    for (int64_t c = begin; c < end; ++c) y[c] = T(C(y[c]) + C(x[c]));
  }
}

void scatter_add_rows(const KernelContext& ctx, const ScatterAddRowsArgs& args) {
  int64_t rows = args.out.size(0), columns = args.out.numel() / std::max<int64_t>(rows, 1);
  constexpr int64_t strip = 32;  // columns: whole cache lines for each thread
  int64_t work = std::max<int64_t>(1, (args.ids.numel() + (args.accumulate ? 0 : rows)) * strip);
  int64_t grain = std::max<int64_t>(1, kGrain / work);
  dispatch_float("scatter_add_rows", args.source.dtype(), [&]<class S>(Type<S>) {
    dispatch_float("scatter_add_rows", args.out.dtype(), [&]<class T>(Type<T>) {
      ctx.pool.parallel_for((columns + strip - 1) / strip, grain, [&](int64_t begin, int64_t end) {
        scatter_strip<S, T>(args, columns, begin * strip, std::min(columns, end * strip));
      });
    });
  });
}

// Inserts into a list of at most k, kept in descending order. A later equal value stays behind.
template <class T>
void top_k_row(const T* x, int64_t n, int64_t k, T* values, int64_t* indices) {
  using C = Compute<T>;
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (count == k && !(C(x[i]) > C(values[k - 1]))) continue;
    int64_t place = count < k ? count++ : k - 1;
    for (; place > 0 && C(x[i]) > C(values[place - 1]); --place) {
      values[place] = values[place - 1];
      indices[place] = indices[place - 1];
    }
    values[place] = x[i];
    indices[place] = i;
  }
}

void top_k(const KernelContext& ctx, const TopKArgs& args) {
  int64_t rows = args.x.size(0), n = args.x.size(1), k = args.values.size(1);
  if (k == 0) return;
  dispatch_float("top_k", args.x.dtype(), [&]<class T>(Type<T>) {
    ctx.pool.parallel_for(rows, std::max<int64_t>(1, kGrain / (4 * n)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        top_k_row(pointer<T>(args.x) + row * n, n, k, pointer<T>(args.values) + row * k,
                  pointer<int64_t>(args.indices) + row * k);
    });
  });
}

}  // namespace

void add_index_kernels(KernelTable& table) {
  table.gather_rows = gather_rows;
  table.scatter_add_rows = scatter_add_rows;
  table.put_rows = put_rows;
  table.gather_columns = gather_columns;
  table.scatter_columns = scatter_columns;
  table.top_k = top_k;
}

}  // namespace megatron::cpu::MEGATRON_ISA
