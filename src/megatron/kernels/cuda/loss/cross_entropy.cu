#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/core/shared_memory.cuh"
#include "megatron/kernels/cuda/loss/online_softmax.cuh"
#include "megatron/kernels/limits/cross_entropy.h"

namespace megatron::cuda {
namespace {

template <class T, int W>
__global__ void stats_kernel(const T* logits, const int64_t* labels, int64_t columns, int64_t valid,
                             int64_t vocab_begin, Compute<T>* maximum, Compute<T>* sum_exp,
                             Compute<T>* target, Compute<T>* sum_logits) {
  using C = Compute<T>;
  __shared__ OnlineSoftmax<C> partial[32];
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  OnlineSoftmax<C> state;
  C total = 0;
  auto take = [&]<int N>(C(&values)[N]) {
    C largest = values[0];
#pragma unroll
    for (int j = 1; j < N; ++j) largest = largest > values[j] ? largest : values[j];
    if (largest > state.maximum) {
      state.sum *= exp_of(state.maximum - largest);
      state.maximum = largest;
    }
    // Avoid inf − inf, keep NaN.
    const C shift = state.maximum == kLowest<C> ? C(0) : state.maximum;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if constexpr (kRough<T>)
        state.sum += exp2_rough(fmaf(values[j], kRoughLog2e, -shift * kRoughLog2e));
      else
        state.sum += exp_of(values[j] - shift);
      if (sum_logits) total += values[j];
    }
  };
  // Several vectors are on their way before the first is used.
  constexpr int kAhead = W > 1 ? 4 : 1;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * W;
  int64_t i = threadIdx.x * W;
  for (; i + (kAhead - 1) * stride + W <= valid; i += kAhead * stride) {
    Vec<T, W> raw[kAhead];
#pragma unroll
    for (int v = 0; v < kAhead; ++v) raw[v] = read<W>(x + i + v * stride);
    C values[kAhead * W];
#pragma unroll
    for (int v = 0; v < kAhead; ++v)
#pragma unroll
      for (int j = 0; j < W; ++j) values[v * W + j] = widen(raw[v].v[j]);
    take(values);
  }
  for (; i < valid; i += stride)
    for (int64_t j = i; j < min(i + W, valid); ++j) {
      C one[1] = {widen(x[j])};
      take(one);
    }
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  state = warp_merge(state);
  if (lane == 0) partial[warp] = state;
  __syncthreads();
  state = warp_merge(lane < warps ? partial[lane] : OnlineSoftmax<C>{});
  if (sum_logits) total = block_sum(total);
  if (threadIdx.x) return;
  maximum[row] = state.maximum;
  sum_exp[row] = state.sum;
  if (sum_logits) sum_logits[row] = total;
  int64_t label = labels[row] - vocab_begin;
  target[row] = label >= 0 && label < valid ? widen(x[label]) : C(0);
}

void cross_entropy_stats(const KernelContext& ctx, const CrossEntropyStatsArgs& args) {
  int64_t rows = args.logits.size(0), columns = args.logits.size(1);
  if (rows == 0) return;
  dispatch_float("cross_entropy_stats", args.logits.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    auto launch = [&]<int W>(std::integral_constant<int, W>) {
      stats_kernel<T, W>
          <<<static_cast<unsigned>(rows), std::min(row_threads(args.valid, W), 512), 0, stream_of(ctx)>>>(
              pointer<T>(args.logits), pointer<int64_t>(args.labels), columns, args.valid, args.vocab_begin,
              pointer<C>(args.maximum), pointer<C>(args.sum_exp), pointer<C>(args.target),
              pointer<C>(args.sum_logits));
    };
    if (columns % kVector<T> == 0 && aligned(pointer<T>(args.logits)))
      launch(std::integral_constant<int, kVector<T>>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
  check_launch("cross_entropy_stats");
}

template <class C>
struct LossOp {
  const C *maximum, *sum_exp, *target, *sum_logits;
  const int64_t* labels;
  int64_t ignore_index;
  C smoothing, z_loss, vocab_size;
  C *lse, *loss;

  template <int W>
  __device__ void run(int64_t row) const {
    C value = maximum[row] + log_of(sum_exp[row]), expected = target[row];
    if (smoothing > 0) expected += smoothing * (sum_logits[row] / vocab_size - expected);
    lse[row] = value;
    loss[row] = labels[row] == ignore_index ? C(0) : value - expected + z_loss * value * value;
  }
};

void cross_entropy_loss(const KernelContext& ctx, const CrossEntropyLossArgs& args) {
  auto run = [&]<class C>(Type<C>) {
    for_each<1>(ctx, "cross_entropy_loss", args.loss.numel(), false,
                LossOp<C>{pointer<C>(args.maximum), pointer<C>(args.sum_exp), pointer<C>(args.target),
                          pointer<C>(args.sum_logits), pointer<int64_t>(args.labels), args.ignore_index,
                          static_cast<C>(args.smoothing), static_cast<C>(args.z_loss),
                          static_cast<C>(args.vocab_size), pointer<C>(args.lse), pointer<C>(args.loss)});
  };
  if (args.loss.dtype() == DType::F64)
    run(Type<double>{});
  else
    run(Type<float>{});
}

template <class T>
struct GradTask {
  const T* logits;
  void* dlogits;
  const int64_t* labels;
  const Compute<T>*lse, *scale;
  int64_t scale_stride;
  int columns, valid;
  int64_t vocab_begin, ignore_index;
  Compute<T> smoothing, uniform, twice_z;
};

// A few blocks per row. What a thread takes is on its way before the first of it is used.
constexpr int kGradVectors = limits::kLogitVectors;
static_assert(kThreads == limits::kLogitThreads);

template <class T, class D, int W>
__global__ void __launch_bounds__(kThreads) grad_kernel(GradTask<T> a) {
  using C = Compute<T>;
  constexpr bool rough = kRough<D> && std::is_same_v<C, float>;
  const int64_t row = blockIdx.x, label_here = a.labels[row], label = label_here - a.vocab_begin;
  const T* x = a.logits + row * a.columns;
  D* dx = static_cast<D*>(a.dlogits) + row * a.columns;
  const bool ignored = label_here == a.ignore_index;
  const C scale = ignored ? C(0) : a.scale[row * a.scale_stride], lse = a.lse[row];
  const C slope = scale * (C(1) + a.twice_z * lse), uniform = scale * a.uniform;
  const int first = (static_cast<int>(blockIdx.y) * kGradVectors * kThreads + threadIdx.x) * W;
  Vec<T, W> raw[kGradVectors];
#pragma unroll
  for (int n = 0; n < kGradVectors; ++n)
    if (const int i = first + n * kThreads * W; i < a.columns) raw[n] = read<W>(x + i);
#pragma unroll
  for (int n = 0; n < kGradVectors; ++n) {
    const int i = first + n * kThreads * W;
    if (i >= a.columns) return;
    Compute<D> result[W];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C value = widen(raw[n].v[j]);
      C g;
      if constexpr (rough)
        g = slope * exp2_rough(fmaf(value, kRoughLog2e, -lse * kRoughLog2e));
      else
        g = slope * exp_of(value - lse);
      result[j] = static_cast<Compute<D>>(g - uniform);
    }
    if (ignored || i + W > a.valid || (label >= i && label < i + W)) {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        if (i + j == label) result[j] -= static_cast<Compute<D>>(scale * (C(1) - a.smoothing));
        if (ignored || i + j >= a.valid) result[j] = 0;
      }
    }
    store(dx + i, result);
  }
}

void cross_entropy_grad(const KernelContext& ctx, const CrossEntropyGradArgs& args) {
  int64_t rows = args.logits.size(0), columns = args.logits.size(1);
  if (args.logits.numel() == 0) return;
  dispatch_float("cross_entropy_grad", args.logits.dtype(), [&]<class T>(Type<T>) {
    dispatch_float("cross_entropy_grad", args.dlogits.dtype(), [&]<class D>(Type<D>) {
      using C = Compute<T>;
      GradTask<T> task{pointer<T>(args.logits),
                       args.dlogits.raw(),
                       pointer<int64_t>(args.labels),
                       pointer<C>(args.lse),
                       pointer<C>(args.scale),
                       args.scale.stride(0),
                       static_cast<int>(columns),
                       static_cast<int>(args.valid),
                       args.vocab_begin,
                       args.ignore_index,
                       static_cast<C>(args.smoothing),
                       static_cast<C>(args.smoothing / static_cast<double>(args.vocab_size)),
                       static_cast<C>(2 * args.z_loss)};
      constexpr int W = 16 / static_cast<int>(std::max(sizeof(T), sizeof(D)));
      const bool vector = limits::logit_vector(args) == W;
      dim3 grid(static_cast<unsigned>(rows),
                blocks_for(columns, int64_t{kThreads} * kGradVectors * (vector ? W : 1)));
      cudaStream_t stream = stream_of(ctx);
      if (vector)
        grad_kernel<T, D, W><<<grid, kThreads, 0, stream>>>(task);
      else
        grad_kernel<T, D, 1><<<grid, kThreads, 0, stream>>>(task);
    });
  });
  check_launch("cross_entropy_grad");
}

template <class T>
struct WholeTask {
  const T* logits;
  T* dlogits;  // null: the loss alone
  const int64_t* labels;
  Compute<T>* loss;
  int64_t ignore_index, rows;
  int columns, valid, cached;  // cached: vectors of a row that stay in shared memory
  const Compute<T>* scale;     // read only where dlogits is wanted
  int64_t scale_stride;
  Compute<T> smoothing, vocab_size, z_loss;
};

// As a tree: short chains of comparisons.
template <int W, class C>
__device__ __forceinline__ C largest_of(const C (&x)[W]) {
  C best[W];
#pragma unroll
  for (int j = 0; j < W; ++j) best[j] = x[j];
#pragma unroll
  for (int half = W / 2; half; half /= 2)
#pragma unroll
    for (int j = 0; j < half; ++j) best[j] = best[j] > best[j + half] ? best[j] : best[j + half];
  return best[0];
}

// Blocks stay, and take every gridDim.x-th row. A row is on its way into shared memory, as far as that
// reaches, while its beginning is being summed; the gradient then reads little of it again, and each vector
// makes room for one of the next row. Threads read what they fetched themselves, so that nobody waits for
// another's copies.
template <class T, int W, bool Smooth>
__global__ void __launch_bounds__(1024) whole_kernel(WholeTask<T> a) {
  using C = Compute<T>;
  using V = Vec<T, W>;
  extern __shared__ __align__(16) char memory[];
  __shared__ OnlineSoftmax<C>
      partial[2][32];  // of rows in turn: the next may begin while this one's are still read
  T* cache = reinterpret_cast<T*>(memory);
  const int vectors = a.columns / W, step = static_cast<int>(blockDim.x), thread = threadIdx.x;
  const int lane = thread % 32, warp = thread / 32, warps = step / 32;
  constexpr bool kCaches = sizeof(V) == 16;
  constexpr int kGroups = 6;  // of copies; the beginning of a row arrives first
  const int per_group = (a.cached + kGroups * step - 1) / (kGroups * step) * step;
  auto group_end = [&](int g) { return min(a.cached, (g + 1) * per_group); };
  auto fetch = [&](int64_t row, int v) {
    if (kCaches && row < a.rows) cp_async(cache + v * W, a.logits + row * a.columns + v * W, true);
  };
  for (int g = 0; g < kGroups; ++g) {
    for (int v = g * per_group + thread; v < group_end(g); v += step) fetch(blockIdx.x, v);
    cp_async_commit();
  }
  for (int64_t row = blockIdx.x, turn = 0; row < a.rows; row += gridDim.x, ++turn) {
    const int64_t label = a.labels[row], next = row + gridDim.x;
    const T* x = a.logits + row * a.columns;
    // Read before anyone writes the gradient in its place.
    const C target = label >= 0 && label < a.valid ? widen(x[label]) : C(0);
    OnlineSoftmax<C> state;
    C total = 0;
    auto take = [&](const V& raw, int v) {
      C values[W], largest;
#pragma unroll
      for (int j = 0; j < W; ++j) values[j] = widen(raw.v[j]);
      if (v * W + W > a.valid) {
#pragma unroll
        for (int j = 0; j < W; ++j)
          if (v * W + j >= a.valid) values[j] = kLowest<C>;
      }
      largest = largest_of(values);
      if (largest > state.maximum) {
        state.sum *= exp_of(state.maximum - largest);
        state.maximum = largest;
      }
      const C shift = state.maximum == kLowest<C> ? C(0) : state.maximum;
      C sum = 0;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        if constexpr (kRough<T>)
          sum += exp2_rough(fmaf(values[j], kRoughLog2e, -shift * kRoughLog2e));
        else
          sum += exp_of(values[j] - shift);
        if constexpr (Smooth)
          if (values[j] != kLowest<C>) total += values[j];
      }
      state.sum += sum;
    };
    [&]<int... G>(std::integer_sequence<int, G...>) {
      ((cp_async_wait<kGroups - 1 - G>(),
        [&] {
#pragma unroll 2
          for (int v = G * per_group + thread; v < group_end(G); v += step) take(read<W>(cache + v * W), v);
        }()),
       ...);
    }
    (std::make_integer_sequence<int, kGroups>{});
#pragma unroll 2
    for (int v = a.cached + thread; v < vectors; v += step) take(read<W>(x + v * W), v);
    state = warp_merge(state);
    if (lane == 0) partial[turn % 2][warp] = state;
    __syncthreads();
    state = warp_merge(lane < warps ? partial[turn % 2][lane] : OnlineSoftmax<C>{});
    if constexpr (Smooth) total = block_sum(total);
    const C lse = state.maximum + log_of(state.sum);
    const bool ignored = label == a.ignore_index;
    if (thread == 0) {
      C expected = target;
      if constexpr (Smooth) expected += a.smoothing * (total / a.vocab_size - expected);
      a.loss[row] = ignored ? C(0) : lse - expected + a.z_loss * lse * lse;
    }
    T* dx = a.dlogits ? a.dlogits + row * a.columns : nullptr;
    const C scale = dx ? a.scale[row * a.scale_stride] : C(0);
    const C slope = scale * (C(1) + 2 * a.z_loss * lse), uniform = scale * a.smoothing / a.vocab_size;
    const int label_vector = label >= 0 && label < a.valid ? static_cast<int>(label / W) : -1;
    auto give = [&](const V& raw, int v) {
      if (!dx) return;
      C result[W];
#pragma unroll
      for (int j = 0; j < W; ++j) {
        C value = widen(raw.v[j]);
        if constexpr (kRough<T>)
          result[j] = slope * exp2_rough(fmaf(value, kRoughLog2e, -lse * kRoughLog2e));
        else
          result[j] = slope * exp_of(value - lse);
        if constexpr (Smooth) result[j] -= uniform;
      }
      if (ignored || v == label_vector || v * W + W > a.valid) {
#pragma unroll
        for (int j = 0; j < W; ++j) {
          if (v * W + j == label) result[j] -= scale * (C(1) - a.smoothing);
          if (ignored || v * W + j >= a.valid) result[j] = 0;
        }
      }
      store(dx + v * W, result);
    };
    // What is not cached comes first: it may still be in the GPU's own cache.
#pragma unroll 2
    for (int v = a.cached + thread; v < vectors; v += step) give(read<W>(x + v * W), v);
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll 2
      for (int v = g * per_group + thread; v < group_end(g); v += step) {
        give(read<W>(cache + v * W), v);
        fetch(next, v);
      }
      cp_async_commit();
    }
  }
}

void cross_entropy(const KernelContext& ctx, const CrossEntropyArgs& args) {
  int64_t rows = args.logits.size(0), columns = args.logits.size(1);
  if (args.logits.numel() == 0) return;
  dispatch_float("cross_entropy", args.logits.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    WholeTask<T> task{pointer<T>(args.logits),
                      pointer<T>(args.dlogits),
                      pointer<int64_t>(args.labels),
                      pointer<C>(args.loss),
                      args.ignore_index,
                      rows,
                      static_cast<int>(columns),
                      static_cast<int>(args.valid),
                      0,
                      pointer<C>(args.scale),
                      args.dlogits ? args.scale.stride(0) : 0,
                      static_cast<C>(args.smoothing),
                      static_cast<C>(args.vocab_size),
                      static_cast<C>(args.z_loss)};
    auto launch = [&]<int W>(std::integral_constant<int, W>) {
      // Half an SM's shared memory holds a row of medium length, and two blocks then share it.
      const auto row_bytes = static_cast<size_t>(columns) * sizeof(T),
                 there = static_cast<size_t>(runtime_of(ctx).properties().shared_memory_per_block),
                 most = std::min(there - (size_t{8} << 10), size_t{216} << 10);  // some is the kernel's own
      bool two = row_bytes <= most / 2, copies = W * sizeof(T) == 16;
      size_t bytes = copies ? std::min(row_bytes, two ? most / 2 : most) / 16 * 16 : 0;
      int threads = std::min(row_threads(columns, W), two ? 512 : 1024);
      task.cached = static_cast<int>(bytes / sizeof(Vec<T, W>));
      auto kernel = args.smoothing > 0 ? whole_kernel<T, W, true> : whole_kernel<T, W, false>;
      int64_t blocks = resident_blocks(ctx, kernel, dim3(static_cast<unsigned>(threads)), bytes, rows);
      kernel<<<static_cast<unsigned>(blocks), threads, bytes, stream_of(ctx)>>>(task);
    };
    if (columns % kVector<T> == 0 && aligned(task.logits) && aligned(task.dlogits))
      launch(std::integral_constant<int, kVector<T>>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
  check_launch("cross_entropy");
}

}  // namespace

void add_cross_entropy_kernels(KernelTable& table) {
  table.cross_entropy_stats = cross_entropy_stats;
  table.cross_entropy_loss = cross_entropy_loss;
  table.cross_entropy_grad = cross_entropy_grad;
  table.cross_entropy = cross_entropy;
}

}  // namespace megatron::cuda
