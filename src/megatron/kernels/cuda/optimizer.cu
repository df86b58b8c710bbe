#include <cmath>

#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/split_float.h"

namespace megatron::cuda {
namespace {

// Many tensors in one launch: each thread block takes one chunk of one tensor. The table of tensors travels
// as a kernel argument, so that nothing has to be copied to the device first.
constexpr int64_t kChunkElements = 16384;

template <class Item, int N>
struct TensorTable {
  int count = 0;
  int64_t first_chunk[N + 1] = {};
  Item item[N];

  bool full() const { return count == N; }
  void add(const Item& next, int64_t numel) {
    item[count] = next;
    first_chunk[count + 1] = first_chunk[count] + (numel + kChunkElements - 1) / kChunkElements;
    ++count;
  }
  unsigned chunks() const { return static_cast<unsigned>(first_chunk[count]); }
  __device__ int find(int64_t chunk) const {
    int low = 0, high = count - 1;
    while (low < high) {
      int middle = (low + high + 1) / 2;
      if (first_chunk[middle] <= chunk)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

struct AdamItem {
  AnyFloat parameter, master, gradient, first, second;  // master.data null: the parameter itself
  int16_t* remainder;                                   // or this and the parameter
  int64_t numel;
  double step_size, keep, l2;
};

struct AdamCommon {
  double beta1, beta2, inverse_root, epsilon;
  AnyFloat gradient_scale;
  const bool* gate;  // null: open
};

using AdamTable = TensorTable<AdamItem, 26>;
static_assert(sizeof(AdamTable) + sizeof(AdamCommon) < 4096);

template <class C>
struct AdamStep {
  C gradient_scale, beta1, beta2, step_size, inverse_root, epsilon, keep, l2;

  __device__ AdamStep(const AdamItem& item, const AdamCommon& common)
      : gradient_scale(common.gradient_scale.data ? static_cast<C>(common.gradient_scale.get(0)) : C(1)),
        beta1(static_cast<C>(common.beta1)),
        beta2(static_cast<C>(common.beta2)),
        step_size(static_cast<C>(item.step_size)),
        inverse_root(static_cast<C>(common.inverse_root)),
        epsilon(static_cast<C>(common.epsilon)),
        keep(static_cast<C>(item.keep)),
        l2(static_cast<C>(item.l2)) {}

  __device__ void run(C& parameter, C gradient, C& first, C& second) const {
    C g = gradient * gradient_scale + l2 * parameter;
    first = beta1 * first + (C(1) - beta1) * g;
    second = beta2 * second + (C(1) - beta2) * g * g;
    parameter = parameter * keep - step_size * first / (sqrt(second) * inverse_root + epsilon);
  }
};

// Where the fp32 value that is updated lies, and what else is written with it.
template <class P>
struct WithMaster {
  P* parameter;
  float* master;

  __device__ explicit WithMaster(const AdamItem& item)
      : parameter(static_cast<P*>(item.parameter.data)), master(static_cast<float*>(item.master.data)) {}
  template <int N>
  __device__ void load(float (&p)[N], int64_t i) const {
    cuda::load(p, master + i);
  }
  template <int N>
  __device__ void store(const float (&p)[N], int64_t i) const {
    cuda::store(master + i, p);
    cuda::store(parameter + i, p);
  }
};

struct InPlace {
  float* parameter;

  __device__ explicit InPlace(const AdamItem& item) : parameter(static_cast<float*>(item.parameter.data)) {}
  template <int N>
  __device__ void load(float (&p)[N], int64_t i) const {
    cuda::load(p, parameter + i);
  }
  template <int N>
  __device__ void store(const float (&p)[N], int64_t i) const {
    cuda::store(parameter + i, p);
  }
};

struct WithRemainder {
  uint16_t* parameter;
  int16_t* remainder;

  __device__ explicit WithRemainder(const AdamItem& item)
      : parameter(static_cast<uint16_t*>(item.parameter.data)), remainder(item.remainder) {}
  template <int N>
  __device__ void load(float (&p)[N], int64_t i) const {
    auto high = read<N>(parameter + i);
    auto low = read<N>(remainder + i);
#pragma unroll
    for (int j = 0; j < N; ++j) p[j] = __uint_as_float(join_float({high.v[j], low.v[j]}));
  }
  template <int N>
  __device__ void store(const float (&p)[N], int64_t i) const {
    Vec<uint16_t, N> high;
    Vec<int16_t, N> low;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      SplitFloat parts = split_float(__float_as_uint(p[j]));
      high.v[j] = parts.high;
      low.v[j] = parts.low;
    }
    write(parameter + i, high);
    write(remainder + i, low);
  }
};

// Any mixture of dtypes, one element at a time.
__global__ void __launch_bounds__(kThreads) adam_any_kernel(AdamTable table, AdamCommon common) {
  if (common.gate && !*common.gate) return;
  int which = table.find(blockIdx.x);
  const AdamItem& item = table.item[which];
  const AnyFloat& target = item.master.data ? item.master : item.parameter;
  int64_t begin = (blockIdx.x - table.first_chunk[which]) * kChunkElements;
  int64_t end = min(item.numel, begin + kChunkElements);
  auto pass = [&]<class C>(C) {
    AdamStep<C> step(item, common);
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      C first = static_cast<C>(item.first.get(i)), second = static_cast<C>(item.second.get(i));
      C gradient = static_cast<C>(item.gradient.get(i));
      if (item.remainder) {
        float parameter[1];
        WithRemainder(item).load(parameter, i);
        C wide = parameter[0];
        step.run(wide, gradient, first, second);
        parameter[0] = static_cast<float>(wide);
        WithRemainder(item).store(parameter, i);
      } else {
        C parameter = static_cast<C>(target.get(i));
        step.run(parameter, gradient, first, second);
        target.set(i, parameter);
        if (item.master.data) item.parameter.set(i, parameter);
      }
      item.first.set(i, first);
      item.second.set(i, second);
    }
  };
  if (target.dtype == DType::F64)
    pass(double{});
  else
    pass(float{});
}

// An fp32 value wherever it lies, gradient G, moments M.
template <class Target, class G, class M>
__global__ void __launch_bounds__(kThreads) adam_kernel(AdamTable table, AdamCommon common) {
  constexpr int W = 4;
  if (common.gate && !*common.gate) return;
  int which = table.find(blockIdx.x);
  const AdamItem& item = table.item[which];
  int64_t begin = (blockIdx.x - table.first_chunk[which]) * kChunkElements;
  int64_t end = min(item.numel, begin + kChunkElements);
  AdamStep<float> step(item, common);
  const Target target(item);
  const G* gradient = static_cast<const G*>(item.gradient.data);
  M *first = static_cast<M*>(item.first.data), *second = static_cast<M*>(item.second.data);
  auto pass = [&]<int N>(int64_t i, std::integral_constant<int, N>) {
    float p[N], g[N], m[N], v[N];
    target.load(p, i);
    load(g, gradient + i);
    load(m, first + i);
    load(v, second + i);
#pragma unroll
    for (int j = 0; j < N; ++j) step.run(p[j], g[j], m[j], v[j]);
    store(first + i, m);
    store(second + i, v);
    target.store(p, i);
  };
  int64_t i = begin + threadIdx.x * W;
  for (; i + W <= end; i += kThreads * W) pass(i, std::integral_constant<int, W>{});
  for (; i < end; ++i) pass(i, std::integral_constant<int, 1>{});
}

using AdamLaunch = void (*)(AdamTable, AdamCommon);

template <class Target, class G>
AdamLaunch adam_kernel_with(DType moments) {
  return moments == DType::F32 ? adam_kernel<Target, G, float> : adam_kernel<Target, G, bfloat>;
}

AdamLaunch adam_kernel_for(const AdamTensor& t) {
  auto fast = [&](const Tensor& tensor, DType dtype) {
    return tensor.defined() && tensor.dtype() == dtype && aligned(tensor.raw());
  };
  DType moments = t.first.dtype();
  bool states =
      (moments == DType::F32 || moments == DType::BF16) && fast(t.first, moments) && fast(t.second, moments);
  bool gradient32 = fast(t.gradient, DType::F32), gradient16 = fast(t.gradient, DType::BF16);
  if (!states || !(gradient32 || gradient16)) return adam_any_kernel;
  auto with = [&]<class Target>(Type<Target>) {
    return gradient32 ? adam_kernel_with<Target, float>(moments) : adam_kernel_with<Target, bfloat>(moments);
  };
  bool bf16 = fast(t.parameter, DType::BF16);
  if (t.remainder) return bf16 && aligned(t.remainder.raw()) ? with(Type<WithRemainder>{}) : adam_any_kernel;
  if (!t.master) return fast(t.parameter, DType::F32) ? with(Type<InPlace>{}) : adam_any_kernel;
  if (!fast(t.master, DType::F32)) return adam_any_kernel;
  if (bf16) return with(Type<WithMaster<bfloat>>{});
  if (fast(t.parameter, DType::F16)) return with(Type<WithMaster<half>>{});
  return adam_any_kernel;
}

void adam(const KernelContext& ctx, const AdamArgs& args) {
  cudaStream_t stream = stream_of(ctx);
  double step = static_cast<double>(args.step);
  AdamCommon common{args.beta1,
                    args.beta2,
                    1 / std::sqrt(1 - std::pow(args.beta2, step)),
                    args.epsilon,
                    args.gradient_scale ? any_float(args.gradient_scale) : AnyFloat{},
                    args.gate ? pointer<bool>(args.gate) : nullptr};
  AdamTable table;
  AdamLaunch kernel = nullptr;
  auto flush = [&] {
    if (!table.count) return;
    kernel<<<table.chunks(), kThreads, 0, stream>>>(table, common);
    check_launch("adam");
    table.count = 0;
  };
  for (const AdamTensor& t : args.tensors) {
    if (t.parameter.numel() == 0) continue;
    AdamLaunch wanted = adam_kernel_for(t);
    if (wanted != kernel || table.full()) {
      flush();
      kernel = wanted;
    }
    double lr = args.lr * t.lr_scale;
    table.add({any_float(t.parameter), t.master ? any_float(t.master) : AnyFloat{}, any_float(t.gradient),
               any_float(t.first), any_float(t.second), t.remainder ? pointer<int16_t>(t.remainder) : nullptr,
               t.parameter.numel(), lr / (1 - std::pow(args.beta1, step)),
               args.decoupled ? 1 - lr * t.weight_decay : 1.0, args.decoupled ? 0.0 : t.weight_decay},
              t.parameter.numel());
  }
  flush();
}

struct SplitOp {
  float* wide;
  const uint16_t* high;
  int16_t* low;
  bool join;

  template <int W>
  __device__ void run(int64_t i) const {
    if (join)
      wide[i] = __uint_as_float(join_float({high[i], low[i]}));
    else
      low[i] = rest_of_float(__float_as_uint(wide[i]), high[i]);
  }
};

void split_floats(const KernelContext& ctx, const SplitFloatArgs& args) {
  for_each<1>(ctx, "split_float", args.wide.numel(), false,
              SplitOp{pointer<float>(args.wide), pointer<uint16_t>(args.high), pointer<int16_t>(args.low),
                      args.join});
}

struct SumItem {
  AnyFloat x;
  int64_t numel;
};
using SumTable = TensorTable<SumItem, 96>;
static_assert(sizeof(SumTable) < 4096);

// Terms of bf16 and fp32 elements are summed in double per thread: fp32 would lose digits that clipping tests
// see.
struct Square {
  __device__ double operator()(double x) const { return x * x; }
};
struct IsZero {
  __device__ double operator()(double x) const { return x == 0 ? 1 : 0; }
};

template <class Term, class T>
__device__ double sum_chunk(const T* x, int64_t n) {
  const Term term;
  double sum = 0;
  constexpr int W = kVector<T>;
  int64_t i = threadIdx.x * W;
  if (reinterpret_cast<uintptr_t>(x) % 16 == 0)
    for (; i + W <= n; i += kThreads * W) {
      Compute<T> values[W];
      load(values, x + i);
#pragma unroll
      for (int j = 0; j < W; ++j) sum += term(values[j]);
    }
  else
    for (; i + W <= n; i += kThreads * W)
      for (int j = 0; j < W; ++j) sum += term(widen(x[i + j]));
  for (; i < n; ++i) sum += term(widen(x[i]));
  return sum;
}

template <class Term>
__global__ void __launch_bounds__(kThreads) sum_kernel(SumTable table, double* partial) {
  int which = table.find(blockIdx.x);
  AnyFloat x = table.item[which].x;
  int64_t begin = (blockIdx.x - table.first_chunk[which]) * kChunkElements;
  int64_t n = min(table.item[which].numel - begin, kChunkElements);
  double sum = 0;
  switch (x.dtype) {
    case DType::F64:
      sum = sum_chunk<Term>(static_cast<const double*>(x.data) + begin, n);
      break;
    case DType::BF16:
      sum = sum_chunk<Term>(static_cast<const bfloat*>(x.data) + begin, n);
      break;
    case DType::F16:
      sum = sum_chunk<Term>(static_cast<const half*>(x.data) + begin, n);
      break;
    default:
      sum = sum_chunk<Term>(static_cast<const float*>(x.data) + begin, n);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void join_sums_kernel(const double* partial, int64_t n, double* out, bool accumulate) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

template <class Term>
void sum_elements(const KernelContext& ctx, const char* kernel, std::span<const Tensor> tensors,
                  const Tensor& out, bool accumulate) {
  cudaStream_t stream = stream_of(ctx);
  int64_t chunks = 0;
  for (const Tensor& t : tensors) chunks += (t.numel() + kChunkElements - 1) / kChunkElements;
  Scratch scratch(ctx, static_cast<size_t>(std::max<int64_t>(chunks, 1)) * sizeof(double));
  double* partial = scratch.as<double>();
  SumTable table;
  auto flush = [&] {
    if (!table.count) return;
    sum_kernel<Term><<<table.chunks(), kThreads, 0, stream>>>(table, partial);
    check_launch(kernel);
    partial += table.chunks();
    table.count = 0;
  };
  for (const Tensor& t : tensors) {
    if (t.numel() == 0) continue;
    require(is_floating(t.dtype()) && !is_fp8(t.dtype()), "{}: cannot sum over {}", kernel, t);
    if (table.full()) flush();
    table.add({any_float(t), t.numel()}, t.numel());
  }
  flush();
  join_sums_kernel<<<1, 1024, 0, stream>>>(scratch.as<double>(), chunks, pointer<double>(out), accumulate);
  check_launch(kernel);
}

void sum_squares(const KernelContext& ctx, const SumSquaresArgs& args) {
  sum_elements<Square>(ctx, "sum_squares", args.tensors, args.out, args.accumulate);
}

void count_zeros(const KernelContext& ctx, const CountZerosArgs& args) {
  sum_elements<IsZero>(ctx, "count_zeros", args.tensors, args.out, false);
}

}  // namespace

void add_optimizer_kernels(KernelTable& table) {
  table.adam = adam;
  table.sum_squares = sum_squares;
  table.count_zeros = count_zeros;
  table.split_float = split_floats;
}

}  // namespace megatron::cuda
