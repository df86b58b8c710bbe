#include "megatron/kernels/cuda/activation_math.cuh"
#include "megatron/kernels/cuda/sequences.cuh"

namespace megatron::cuda {
namespace {

constexpr int kRun = 32, kBackwardRun = 128;  // tokens that a thread takes, of one or two channels
constexpr int kAhead = 8;                     // of which so many are on their way at once
constexpr int kMostWidth = 16;

template <class T>
struct Conv {
  using C = Compute<T>;
  Sequences sequences;
  const T *x, *weight, *bias;
  int64_t stride, channels;
  int width;

  template <class Args>
  explicit Conv(const Args& args)
      : sequences(args.rows, args.x.size(0)),
        x(pointer<T>(args.x)),
        weight(pointer<T>(args.weight)),
        bias(pointer<T>(args.bias)),
        stride(args.x.stride(0)),
        channels(args.x.size(1)),
        width(static_cast<int>(args.weight.size(-1))) {
    require(width <= kMostWidth, "causal_conv: a width of {} is too large for the kernel; {} is the most",
            width, kMostWidth);
  }
};

// The last W inputs of V neighbouring channels while a thread walks along the tokens, and the weights that
// they meet; where the convolution is narrower, the first weights are zeros.
template <class T, int W, int V>
struct Window {
  using C = Compute<T>;
  const Conv<T>& conv;
  int64_t channel;
  TokenSpan span;
  C weight[V][W], bias[V], input[V][W] = {};

  __device__ Window(const Conv<T>& conv, int64_t channel, int64_t begin)
      : conv(conv), channel(channel), span(conv.sequences.span_of(begin)) {
    const int missing = W - conv.width;
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int j = 0; j < W; ++j)
        weight[v][j] = j < missing ? C(0) : widen(conv.weight[(channel + v) * conv.width + j - missing]);
      bias[v] = conv.bias ? widen(conv.bias[channel + v]) : C(0);
    }
#pragma unroll
    for (int j = 1; j < W; ++j)
      if (int64_t t = begin - W + j; t >= span.begin) {
        const Vec<T, V> x = read(t);
#pragma unroll
        for (int v = 0; v < V; ++v) input[v][j] = widen(x.v[v]);
      }
  }
  __device__ Vec<T, V> read(int64_t t) const { return cuda::read<V>(conv.x + t * conv.stride + channel); }
  // Takes in token t, which was read; tokens come one after the other. `Inside` of the sequence of the last
  // one.
  template <bool Inside>
  __device__ void step(int64_t t, const Vec<T, V>& read) {
    if (!Inside && t >= span.end) {
      span = conv.sequences.span_of(t);
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int j = 0; j < W; ++j) input[v][j] = 0;
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int j = 0; j + 1 < W; ++j) input[v][j] = input[v][j + 1];
      input[v][W - 1] = widen(read.v[v]);
    }
  }
  // What the last token that was taken in gives before the activation.
  __device__ C sum(int v) const {
    C sum = bias[v];
#pragma unroll
    for (int j = 0; j < W; ++j) sum += weight[v][j] * input[v][j];
    return sum;
  }
};

template <class T, int W, int V>
__global__ void __launch_bounds__(kThreads) forward_kernel(Conv<T> conv, T* y) {
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * V;
  if (c >= conv.channels) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRun;
  const int64_t end = min(begin + kRun, conv.sequences.tokens);
  Window<T, W, V> window(conv, c, begin);
  // Most groups of tokens lie inside of the run and of a sequence: these need no questions.
  auto group = [&]<bool Inside>(std::bool_constant<Inside>, int64_t first) {
    Vec<T, V> x[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (Inside || first + k < end) x[k] = window.read(first + k);
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (const int64_t t = first + k; Inside || t < end) {
        window.template step<Inside>(t, x[k]);
        Compute<T> out[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const Compute<T> sum = window.sum(v);
          out[v] = sum * sigmoid<kRough<T>>(sum);
        }
        store(y + t * conv.channels + c, out);
      }
  };
  for (int64_t first = begin; first < end; first += kAhead)
    if (first + kAhead <= min(end, window.span.end))
      group(std::true_type{}, first);
    else
      group(std::false_type{}, first);
}

// The gradients of a run of tokens, and partial[run, channel, width + 1], the bias last. The slopes of W − 1
// later tokens are computed again by the next run.
template <class T, int W>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 && W == 4 ? 3 : 1)
    backward_kernel(Conv<T> conv, const T* dy, T* dx, Compute<T>* partial) {
  using C = Compute<T>;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= conv.channels) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kBackwardRun;
  const int64_t end = min(begin + kBackwardRun, conv.sequences.tokens);
  const int64_t last = min(end + W - 1, conv.sequences.tokens);  // of those to be read
  Window<T, W, 1> window(conv, c, begin);
  TokenSpan own = window.span;  // of the token whose gradient is due
  C slopes[W] = {}, dweight[W] = {}, dbias = 0;
  // Token t is read, and the gradient of the token W − 1 before it is due. `Inside`: both are of this run and
  // of one sequence.
  auto step = [&]<bool Inside>(std::bool_constant<Inside>, int64_t t, const Vec<T, 1>& x, T gradient) {
#pragma unroll
    for (int j = 0; j + 1 < W; ++j) slopes[j] = slopes[j + 1];
    slopes[W - 1] = 0;
    if (Inside || t < last) {
      window.template step<Inside>(t, x);
      const C sum = window.sum(0), s = sigmoid<kRough<T>>(sum);
      slopes[W - 1] = widen(gradient) * s * (C(1) + sum * (C(1) - s));
      if (Inside || t < end) {
        dbias += slopes[W - 1];
#pragma unroll
        for (int j = 0; j < W; ++j) dweight[j] += slopes[W - 1] * window.input[0][j];
      }
    }
    const int64_t due = t - (W - 1);
    if (!dx || (!Inside && due < begin)) return;
    if (!Inside && due >= own.end) own = conv.sequences.span_of(due);
    C sum = 0;
#pragma unroll
    for (int m = 0; m < W; ++m)
      if (Inside || due + m < own.end) sum += window.weight[0][W - 1 - m] * slopes[m];
    dx[due * conv.channels + c] = narrow<T>(sum);
  };
  auto group = [&]<bool Inside>(std::bool_constant<Inside> inside, int64_t first) {
    Vec<T, 1> x[kAhead];
    T gradient[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (const int64_t t = first + k; Inside || t < last) {
        x[k] = window.read(t);
        gradient[k] = dy[t * conv.channels + c];
      }
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (Inside || first + k < end + W - 1) step(inside, first + k, x[k], gradient[k]);
  };
  for (int64_t first = begin; first < end + W - 1; first += kAhead)
    if (first - (W - 1) >= max(begin, window.span.begin) && first + kAhead <= min(end, window.span.end))
      group(std::true_type{}, first);
    else
      group(std::false_type{}, first);
  C* out = partial + (static_cast<int64_t>(blockIdx.x) * conv.channels + c) * (conv.width + 1);
#pragma unroll
  for (int j = 0; j < W; ++j)
    if (int at = j - (W - conv.width); at >= 0) out[at] = dweight[j];
  out[conv.width] = dbias;
}

// f(std::integral_constant<int, W>) with a width that is at least this.
template <class F>
void dispatch_width(int width, F&& f) {
  if (width <= 4) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, kMostWidth>{});
}

template <class C>
struct FinishOp {
  const C* partial;
  C *dweight, *dbias;
  int64_t channels;
  int width, parts;

  template <int W>
  __device__ void run(int64_t i) const {
    C total = 0;
    for (int part = 0; part < parts; ++part) total += partial[part * channels * (width + 1) + i];
    int64_t c = i / (width + 1);
    int j = static_cast<int>(i - c * (width + 1));
    if (j == width) {
      if (dbias) dbias[c] = total;
    } else if (dweight) {
      dweight[c * width + j] = total;
    }
  }
};

void causal_conv(const KernelContext& ctx, const CausalConvArgs& args) {
  if (args.x.numel() == 0) return;
  dispatch_float("causal_conv", args.x.dtype(), [&]<class T>(Type<T>) {
    const Conv<T> conv(args);
    T* y = pointer<T>(args.y);
    // Two channels a thread, where elements of 16 bits lie in pairs: 1.2 times as fast. Not backward, where a
    // thread then holds too much.
    const bool pairs = sizeof(T) == 2 && conv.channels % 2 == 0 && conv.stride % 2 == 0 &&
                       aligned(conv.x, 4) && aligned(y, 4);
    dispatch_width(conv.width, [&]<int W>(std::integral_constant<int, W>) {
      auto kernel = pairs ? forward_kernel<T, W, 2> : forward_kernel<T, W, 1>;
      dim3 grid(blocks_for(conv.sequences.tokens, kRun),
                blocks_for(conv.channels, pairs ? 2 * kThreads : kThreads));
      kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(conv, y);
    });
  });
  check_launch("causal_conv");
}

void causal_conv_backward(const KernelContext& ctx, const CausalConvBackwardArgs& args) {
  dispatch_float("causal_conv_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const Conv<T> conv(args);
    const int parts = static_cast<int>(blocks_for(conv.sequences.tokens, kBackwardRun));
    Scratch partial(ctx,
                    static_cast<size_t>(std::max(1, parts) * conv.channels * (conv.width + 1)) * sizeof(C));
    if (parts > 0)
      dispatch_width(conv.width, [&]<int W>(std::integral_constant<int, W>) {
        dim3 grid(parts, blocks_for(conv.channels, kThreads));
        backward_kernel<T, W><<<grid, kThreads, 0, stream_of(ctx)>>>(conv, pointer<T>(args.dy),
                                                                     pointer<T>(args.dx), partial.as<C>());
        check_launch("causal_conv_backward");
      });
    if (!args.dweight.defined() && !args.dbias.defined()) return;
    for_each<1>(ctx, "causal_conv_backward", conv.channels * (conv.width + 1), false,
                FinishOp<C>{partial.as<C>(), pointer<C>(args.dweight), pointer<C>(args.dbias), conv.channels,
                            conv.width, parts});
  });
}

}  // namespace

void add_causal_conv_kernels(KernelTable& table) {
  table.causal_conv = causal_conv;
  table.causal_conv_backward = causal_conv_backward;
}

}  // namespace megatron::cuda
