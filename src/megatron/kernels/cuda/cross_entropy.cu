#include "megatron/kernels/cuda/cross_entropy.cuh"

namespace megatron::cuda {
namespace {

template <class T, int W>
__global__ void stats_kernel(const T* logits, const int64_t* labels, int64_t columns, int64_t valid,
                             int64_t vocab_begin, Compute<T>* maximum, Compute<T>* sum_exp,
                             Compute<T>* target, Compute<T>* sum_logits) {
  using C = Compute<T>;
  __shared__ MaxSum<C> partial[32];
  const int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  MaxSum<C> state;
  C total = 0;
  auto take = [&]<int N>(C(&values)[N]) {
    C largest = values[0];
#pragma unroll
    for (int j = 1; j < N; ++j) largest = largest > values[j] ? largest : values[j];
    if (largest > state.maximum) {
      state.sum *= exp_of(state.maximum - largest);
      state.maximum = largest;
    }
    if (state.maximum == -std::numeric_limits<C>::infinity()) return;
    [[maybe_unused]] const float shift = -static_cast<float>(state.maximum) * kRoughLog2e;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if constexpr (kRough<T>)
        state.sum += exp2_rough(fmaf(values[j], kRoughLog2e, shift));
      else
        state.sum += exp_of(values[j] - state.maximum);
      if (sum_logits) total += values[j];
    }
  };
  // Several vectors are on their way before the first is used.
  constexpr int kAhead = W > 1 ? 4 : 1;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * W;
  for (int64_t i = threadIdx.x * W; i < valid; i += kAhead * stride) {
    Packed<T, W> raw[kAhead];
#pragma unroll
    for (int v = 0; v < kAhead; ++v)
      if (i + v * stride < valid) raw[v].put(read<W>(x + i + v * stride));
#pragma unroll
    for (int v = 0; v < kAhead; ++v) {
      const int64_t at = i + v * stride;
      C values[W];
      raw[v].widened(values);
      if (at + W <= valid) {
        take(values);
      } else {
        for (int j = 0; j < W; ++j) {
          C one[1] = {values[j]};
          if (at + j < valid) take(one);
        }
      }
    }
  }
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  state = warp_merge(state);
  if (lane == 0) partial[warp] = state;
  __syncthreads();
  state = warp_merge(lane < warps ? partial[lane] : MaxSum<C>{});
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
  int64_t columns, valid, vocab_begin, ignore_index;
  Compute<T> smoothing, uniform, twice_z;
};

template <class T, class D, int W>
__global__ void grad_kernel(GradTask<T> a) {
  using C = Compute<T>;
  const int64_t row = blockIdx.x, label_here = a.labels[row];
  const T* x = a.logits + row * a.columns;
  D* dx = static_cast<D*>(a.dlogits) + row * a.columns;
  const bool ignored = label_here == a.ignore_index;
  const C scale = ignored ? C(0) : a.scale[row], lse = a.lse[row];
  const C slope = scale * (C(1) + a.twice_z * lse), uniform = scale * a.uniform;
  const int64_t label = label_here - a.vocab_begin;
  for (int64_t i = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W; i < a.columns;
       i += static_cast<int64_t>(gridDim.y) * blockDim.x * W) {
    C values[W];
    Compute<D> result[W];
    load(values, x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      C g = slope * exp_of(values[j] - lse) - uniform;
      if (i + j == label) g -= scale * (C(1) - a.smoothing);
      result[j] = static_cast<Compute<D>>(ignored || i + j >= a.valid ? C(0) : g);
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
                       columns,
                       args.valid,
                       args.vocab_begin,
                       args.ignore_index,
                       static_cast<C>(args.smoothing),
                       static_cast<C>(args.smoothing / static_cast<double>(args.vocab_size)),
                       static_cast<C>(2 * args.z_loss)};
      constexpr int W = 16 / static_cast<int>(std::max(sizeof(T), sizeof(D)));
      bool vector = columns % W == 0 && aligned(task.logits) && aligned(task.dlogits);
      // A few blocks per row, each with several vectors per thread.
      dim3 grid(static_cast<unsigned>(rows), blocks_for(columns, int64_t{kThreads} * 4 * (vector ? W : 1)));
      cudaStream_t stream = stream_of(ctx);
      if (vector)
        grad_kernel<T, D, W><<<grid, kThreads, 0, stream>>>(task);
      else
        grad_kernel<T, D, 1><<<grid, kThreads, 0, stream>>>(task);
    });
  });
  check_launch("cross_entropy_grad");
}

}  // namespace

void add_cross_entropy_kernels(KernelTable& table) {
  table.cross_entropy_stats = cross_entropy_stats;
  table.cross_entropy_loss = cross_entropy_loss;
  table.cross_entropy_grad = cross_entropy_grad;
  table.cross_entropy = cross_entropy;
}

}  // namespace megatron::cuda
