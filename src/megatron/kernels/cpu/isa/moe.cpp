#include <algorithm>
#include <vector>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/lanes.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// Rows of this many columns below which a thread is not worth waking.
int64_t row_grain(int64_t columns) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1)); }

void expert_sort(const KernelContext&, const ExpertSortArgs& args) {
  const int64_t* experts = pointer<int64_t>(args.experts);
  int32_t* offsets = pointer<int32_t>(args.offsets);
  int64_t *row_of_copy = pointer<int64_t>(args.row_of_copy),
          *copy_of_row = pointer<int64_t>(args.copy_of_row);
  int64_t copies = args.experts.numel(), count = args.offsets.size(0) - 1;
  std::vector<int64_t> next(static_cast<size_t>(count), 0);  // rows of an expert, then the next free row
  for (int64_t c = 0; c < copies; ++c) {
    require(experts[c] >= -1 && experts[c] < count, "expert_sort: copy {} chose expert {} of {}", c,
            experts[c], count);
    if (experts[c] >= 0) ++next[static_cast<size_t>(experts[c])];
  }
  int64_t row = 0;
  for (int64_t e = 0; e < count; ++e) {
    offsets[e] = static_cast<int32_t>(row);
    int64_t rows = std::exchange(next[static_cast<size_t>(e)], row);
    row += (rows + args.alignment - 1) / args.alignment * args.alignment;
  }
  offsets[count] = static_cast<int32_t>(row);
  require(row <= args.copy_of_row.size(0), "expert_sort: {} rows do not fit the {} that were set aside", row,
          args.copy_of_row.size(0));
  std::fill_n(copy_of_row, args.copy_of_row.size(0), int64_t{-1});
  for (int64_t c = 0; c < copies; ++c) {
    row_of_copy[c] = experts[c] < 0 ? -1 : next[static_cast<size_t>(experts[c])]++;
    if (row_of_copy[c] >= 0) copy_of_row[row_of_copy[c]] = c;
  }
}

void permute(const KernelContext& ctx, const PermuteArgs& args) {
  int64_t columns = args.source.size(1);
  const int64_t* copy_of_row = pointer<int64_t>(args.copy_of_row);
  dispatch_any(args.source.dtype(), [&]<class T>(Type<T>) {
    const T* source = pointer<T>(args.source);
    T* out = pointer<T>(args.out);
    ctx.pool.parallel_for(args.out.size(0), row_grain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        if (int64_t copy = copy_of_row[row]; copy >= 0)
          std::copy_n(source + copy / args.k * columns, columns, out + row * columns);
        else
          std::fill_n(out + row * columns, columns, T());
    });
  });
}

// Weights may be wider than the activations: router probabilities are fp32 in a bf16 model.
template <class T, class F>
void with_weights(const Tensor& weights, F&& f) {
  if (weights && weights.dtype() != dtype_of<T>())
    dispatch_float("unpermute", weights.dtype(), std::forward<F>(f));
  else
    f(Type<T>{});
}

void unpermute(const KernelContext& ctx, const UnpermuteArgs& args) {
  int64_t columns = args.source.size(1);
  const int64_t* row_of_copy = pointer<int64_t>(args.row_of_copy);
  dispatch_float("unpermute", args.source.dtype(), [&]<class T>(Type<T>) {
    with_weights<T>(args.weights, [&]<class W>(Type<W>) {
      using C = Compute<T>;
      const W* weights = optional_pointer<W>(args.weights);
      ctx.pool.parallel_for(args.out.size(0), row_grain(columns * args.k), [&](int64_t begin, int64_t end) {
        std::vector<C> sum(static_cast<size_t>(columns));
        for (int64_t token = begin; token < end; ++token) {
          std::fill(sum.begin(), sum.end(), C(0));
          for (int64_t copy = token * args.k; copy < (token + 1) * args.k; ++copy) {
            if (row_of_copy[copy] < 0) continue;
            const T* row = pointer<T>(args.source) + row_of_copy[copy] * columns;
            C weight = weights ? C(weights[copy]) : C(1);
            for (int64_t c = 0; c < columns; ++c) sum[static_cast<size_t>(c)] += weight * C(row[c]);
          }
          T* out = pointer<T>(args.out) + token * columns;
          for (int64_t c = 0; c < columns; ++c) out[c] = T(sum[static_cast<size_t>(c)]);
        }
      });
    });
  });
}

template <class T, class W>
void spread_grad(const KernelContext& ctx, const UnpermuteBackwardArgs& args) {
  using C = Compute<T>;
  int64_t columns = args.grad.size(1);
  const int64_t* copy_of_row = pointer<int64_t>(args.copy_of_row);
  const W* weights = optional_pointer<W>(args.weights);
  ctx.pool.parallel_for(args.dsource.size(0), row_grain(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* out = pointer<T>(args.dsource) + row * columns;
      int64_t copy = copy_of_row[row];
      if (copy < 0) {
        std::fill_n(out, columns, T());
        continue;
      }
      const T* grad = pointer<T>(args.grad) + copy / args.k * columns;
      C weight = weights ? C(weights[copy]) : C(1);
      for (int64_t c = 0; c < columns; ++c) out[c] = T(weight * C(grad[c]));
    }
  });
}

template <class T, class W>
void weight_grad(const KernelContext& ctx, const UnpermuteBackwardArgs& args) {
  using C = Compute<T>;
  int64_t columns = args.grad.size(1);
  const int64_t* row_of_copy = pointer<int64_t>(args.row_of_copy);
  ctx.pool.parallel_for(args.row_of_copy.numel(), row_grain(columns), [&](int64_t begin, int64_t end) {
    for (int64_t copy = begin; copy < end; ++copy) {
      const T* grad = pointer<T>(args.grad) + copy / args.k * columns;
      const T* row = pointer<T>(args.source) + row_of_copy[copy] * columns;
      C sum = row_of_copy[copy] < 0 ? C(0)
                                    : sum_over<C>(columns, [&](int64_t c) { return C(grad[c]) * C(row[c]); });
      pointer<W>(args.dweights)[copy] = W(sum);
    }
  });
}

void unpermute_backward(const KernelContext& ctx, const UnpermuteBackwardArgs& args) {
  dispatch_float("unpermute_backward", args.grad.dtype(), [&]<class T>(Type<T>) {
    with_weights<T>(args.weights, [&]<class W>(Type<W>) {
      if (args.dsource) spread_grad<T, W>(ctx, args);
      if (args.dweights) weight_grad<T, W>(ctx, args);
    });
  });
}

}  // namespace

void add_moe_kernels(KernelTable& table) {
  table.expert_sort = expert_sort;
  table.permute = permute;
  table.unpermute = unpermute;
  table.unpermute_backward = unpermute_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
