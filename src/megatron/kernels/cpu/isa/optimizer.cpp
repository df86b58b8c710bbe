#include <bit>
#include <cmath>
#include <vector>

#include "megatron/kernels/cpu/isa/blocks.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/split_float.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// A stretch of one tensor of a list: what one thread works on at a time. Its length is fixed, so that sums
// over pieces do not depend on the number of threads.
struct Piece {
  size_t tensor;
  int64_t begin, end;
};
constexpr int64_t kPiece = 32 * kBlock;

template <class List, class Numel>
std::vector<Piece> pieces_of(const List& tensors, Numel numel) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t begin = 0, n = numel(tensors[i]); begin < n; begin += kPiece)
      pieces.push_back({i, begin, std::min(n, begin + kPiece)});
  return pieces;
}

// A block of any floating dtype as C.
template <class C>
C* load(const Tensor& tensor, int64_t offset, int64_t n, C* buffer) {
  if (tensor.dtype() == dtype_of<C>()) return pointer<C>(tensor) + offset;
  dispatch_float("optimizer", tensor.dtype(), [&]<class T>(Type<T>) {
    const T* values = pointer<T>(tensor) + offset;
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<C>(values[i]);
  });
  return buffer;
}

// Puts values back where load() had to convert them.
template <class C>
void store(const Tensor& tensor, int64_t offset, int64_t n, const C* values) {
  if (tensor.dtype() == dtype_of<C>() && pointer<C>(tensor) + offset == values) return;
  dispatch_float("optimizer", tensor.dtype(), [&]<class T>(Type<T>) {
    T* target = pointer<T>(tensor) + offset;
    for (int64_t i = 0; i < n; ++i) target[i] = T(static_cast<Compute<T>>(values[i]));
  });
}

void join(const uint16_t* high, const int16_t* low, int64_t n, float* wide) {
  for (int64_t i = 0; i < n; ++i) wide[i] = std::bit_cast<float>(join_float({high[i], low[i]}));
}
void split(const float* wide, int64_t n, uint16_t* high, int16_t* low) {
  for (int64_t i = 0; i < n; ++i) {
    SplitFloat parts = split_float(std::bit_cast<uint32_t>(wide[i]));
    high[i] = parts.high;
    low[i] = parts.low;
  }
}

template <class C>
struct AdamStep {
  C gradient_scale, beta1, beta2, step_size, inverse_root, epsilon, keep, l2;

  // Decoupled decay shrinks the parameter (keep = 1 − lr · decay); otherwise it joins the gradient (l2).
  void run(C* parameter, const C* gradient, C* first, C* second, int64_t n) const {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      C g = gradient[i] * gradient_scale + l2 * parameter[i];
      C m = beta1 * first[i] + (C(1) - beta1) * g, v = beta2 * second[i] + (C(1) - beta2) * g * g;
      first[i] = m;
      second[i] = v;
      parameter[i] = parameter[i] * keep - step_size * m / (std::sqrt(v) * inverse_root + epsilon);
    }
  }
};

template <class C>
void adam_piece(const AdamArgs& args, const AdamTensor& t, double gradient_scale, int64_t begin,
                int64_t end) {
  double lr = args.lr * t.lr_scale, step = static_cast<double>(args.step);
  AdamStep<C> adam{.gradient_scale = C(gradient_scale),
                   .beta1 = C(args.beta1),
                   .beta2 = C(args.beta2),
                   .step_size = C(lr / (1 - std::pow(args.beta1, step))),
                   .inverse_root = C(1 / std::sqrt(1 - std::pow(args.beta2, step))),
                   .epsilon = C(args.epsilon),
                   .keep = args.decoupled ? C(1 - lr * t.weight_decay) : C(1),
                   .l2 = args.decoupled ? C(0) : C(t.weight_decay)};
  const Tensor& target = t.master.defined() ? t.master : t.parameter;
  uint16_t* high = nullptr;
  int16_t* low = nullptr;
  if constexpr (std::is_same_v<C, float>)
    if (t.remainder.defined()) {
      high = static_cast<uint16_t*>(t.parameter.raw());
      low = pointer<int16_t>(t.remainder);
    }
  for (int64_t offset = begin; offset < end; offset += kBlock) {
    int64_t n = std::min(kBlock, end - offset);
    Buffer<C> buffers[4];
    C* gradient = load<C>(t.gradient, offset, n, buffers[0]);
    C* first = load<C>(t.first, offset, n, buffers[1]);
    C* second = load<C>(t.second, offset, n, buffers[2]);
    C* parameter = buffers[3];
    if constexpr (std::is_same_v<C, float>)
      if (low) join(high + offset, low + offset, n, parameter);
    if (!low) parameter = load<C>(target, offset, n, buffers[3]);
    adam.run(parameter, gradient, first, second, n);
    store(t.first, offset, n, first);
    store(t.second, offset, n, second);
    if constexpr (std::is_same_v<C, float>)
      if (low) {
        split(parameter, n, high + offset, low + offset);
        continue;
      }
    store(target, offset, n, parameter);
    if (t.master.defined()) store(t.parameter, offset, n, parameter);
  }
}

void adam(const KernelContext& ctx, const AdamArgs& args) {
  if (args.gate.defined() && !*pointer<bool>(args.gate)) return;
  double gradient_scale = 1;
  if (args.gradient_scale.defined())
    dispatch_float("adam", args.gradient_scale.dtype(), [&]<class T>(Type<T>) {
      gradient_scale = static_cast<Compute<T>>(*pointer<T>(args.gradient_scale));
    });
  auto pieces = pieces_of(args.tensors, [](const AdamTensor& t) { return t.parameter.numel(); });
  ctx.pool.parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      const AdamTensor& t = args.tensors[piece.tensor];
      bool wide = (t.master.defined() ? t.master : t.parameter).dtype() == DType::F64;
      if (wide)
        adam_piece<double>(args, t, gradient_scale, piece.begin, piece.end);
      else
        adam_piece<float>(args, t, gradient_scale, piece.begin, piece.end);
    }
  });
}

void split_floats(const KernelContext& ctx, const SplitFloatArgs& args) {
  const auto* high = static_cast<const uint16_t*>(args.high.raw());
  int16_t* low = pointer<int16_t>(args.low);
  float* wide = pointer<float>(args.wide);
  ctx.pool.parallel_for(args.wide.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (args.join) return join(high + begin, low + begin, end - begin, wide + begin);
    for (int64_t i = begin; i < end; ++i) low[i] = rest_of_float(std::bit_cast<uint32_t>(wide[i]), high[i]);
  });
}

// Σ term(x) over all elements of all tensors, from `total` on.
template <class Term>
double sum_elements(const KernelContext& ctx, const char* kernel, std::span<const Tensor> tensors,
                    double total, Term term) {
  auto pieces = pieces_of(tensors, [](const Tensor& t) { return t.numel(); });
  std::vector<double> partial(pieces.size());
  ctx.pool.parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      const Tensor& tensor = tensors[piece.tensor];
      dispatch_float(kernel, tensor.dtype(), [&]<class T>(Type<T>) {
        const T* x = pointer<T>(tensor) + piece.begin;
        partial[static_cast<size_t>(i)] = sum_over<double>(
            piece.end - piece.begin, [&](int64_t j) { return term(double{static_cast<Compute<T>>(x[j])}); });
      });
    }
  });
  for (double value : partial) total += value;
  return total;
}

void sum_squares(const KernelContext& ctx, const SumSquaresArgs& args) {
  double* out = pointer<double>(args.out);
  *out = sum_elements(ctx, "sum_squares", args.tensors, args.accumulate ? *out : 0,
                      [](double x) { return x * x; });
}

void count_zeros(const KernelContext& ctx, const CountZerosArgs& args) {
  *pointer<double>(args.out) =
      sum_elements(ctx, "count_zeros", args.tensors, 0, [](double x) { return x == 0 ? 1.0 : 0.0; });
}

}  // namespace

void add_optimizer_kernels(KernelTable& table) {
  table.adam = adam;
  table.sum_squares = sum_squares;
  table.count_zeros = count_zeros;
  table.split_float = split_floats;
}

}  // namespace megatron::cpu::MEGATRON_ISA
