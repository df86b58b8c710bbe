#include "megatron/kernels/cuda/core/reduce_partials.cuh"
#include "megatron/kernels/cuda/core/shared_memory.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"
#include "megatron/kernels/cuda/recurrent/sequences.cuh"
#include "megatron/kernels/limits/recurrent.h"

namespace megatron::cuda {
namespace {

constexpr int kBlock = 128;                    // threads, with one or four channels each
constexpr int kRun = 32;                       // tokens that a thread takes
constexpr int kAhead = 8, kBackwardAhead = 4;  // of which so many are on their way at once
constexpr int kMaxWidth = limits::kConvolutionWidth;

// Whether a thread can hold several channels in registers, and how many blocks then share an SM
// backward, where the tokens to come are held too.
template <class T, int W>
constexpr bool kFew = W == 4 && sizeof(T) < 8;
template <class T, int W>
constexpr int kBackwardBlocks = !kFew<T, W>      ? 1
                                : sizeof(T) == 2 ? 4
                                                 : 3;

// Numbers of tokens and channels have 32 bits: wider ones would cost registers.
template <class T>
struct Conv {
  using C = Compute<T>;
  Sequences sequences;
  const T *x, *weight, *bias;
  int tokens, stride, channels, width;

  template <class Args>
  explicit Conv(const Args& args)
      : sequences(args.rows, args.x.size(0)),
        x(pointer<T>(args.x)),
        weight(pointer<T>(args.weight)),
        bias(pointer<T>(args.bias)),
        tokens(static_cast<int>(args.x.size(0))),
        stride(static_cast<int>(args.x.stride(0))),
        channels(static_cast<int>(args.x.size(1))),
        width(static_cast<int>(args.weight.size(-1))) {}
};

// The last W inputs of V neighbouring channels while a thread walks along the tokens, and the weights that
// they meet; where the convolution is narrower, the first weights are zeros.
template <class T, int W, int V>
struct Window {
  using C = Compute<T>;
  const Conv<T>& conv;
  int channel, span_begin, span_end;  // the sequence's
  C weight[V][W], bias[V], input[V][W] = {};

  __device__ Window(const Conv<T>& conv, int channel, int begin) : conv(conv), channel(channel) {
    enter(begin);
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
      if (const int t = begin - W + j; t >= span_begin) {
        C x[V];
        read(t).widened(x);
#pragma unroll
        for (int v = 0; v < V; ++v) input[v][j] = x[v];
      }
  }
  __device__ void enter(int t) {
    const TokenSpan span = conv.sequences.span_of(t);
    span_begin = static_cast<int>(span.begin), span_end = static_cast<int>(span.end);
  }
  __device__ Packed<T, V> read(int t) const {
    Packed<T, V> x;
    x.put(cuda::read<V>(conv.x + int64_t{t} * conv.stride + channel));
    return x;
  }
  // Takes in token t, which was read; tokens come one after the other. `Inside` of the sequence of the last
  // one.
  template <bool Inside>
  __device__ void step(int t, const Packed<T, V>& read) {
    if (!Inside && t >= span_end) {
      enter(t);
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int j = 0; j < W; ++j) input[v][j] = 0;
    }
    C x[V];
    read.widened(x);
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int j = 0; j + 1 < W; ++j) input[v][j] = input[v][j + 1];
      input[v][W - 1] = x[v];
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

// Blocks beside each other have neighbouring channels of the same tokens.
template <class T, int W, int V>
__global__ void __launch_bounds__(kBlock, kFew<T, W> ? 6 : 1) forward_kernel(Conv<T> conv, T* y) {
  const auto across = static_cast<unsigned>((conv.channels + kBlock * V - 1) / (kBlock * V));
  const int c = static_cast<int>(blockIdx.x % across * kBlock + threadIdx.x) * V;
  if (c >= conv.channels) return;
  const int begin = static_cast<int>(blockIdx.x / across) * kRun, end = min(begin + kRun, conv.tokens);
  Window<T, W, V> window(conv, c, begin);
  // Most groups of tokens lie inside of the run and of a sequence: these need no questions.
  auto group = [&]<bool Inside>(std::bool_constant<Inside>, int first) {
    Packed<T, V> x[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (Inside || first + k < end) x[k] = window.read(first + k);
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (const int t = first + k; Inside || t < end) {
        window.template step<Inside>(t, x[k]);
        Compute<T> out[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const Compute<T> sum = window.sum(v);
          out[v] = sum * sigmoid<kRough<T>>(sum);
        }
        store(y + int64_t{t} * conv.channels + c, out);
      }
  };
  for (int first = begin; first < end; first += kAhead)
    if (first + kAhead <= min(end, window.span_end))
      group(std::true_type{}, first);
    else
      group(std::false_type{}, first);
}

// The gradients of a run of tokens, and partial[run, width + 1, channel], the bias last. The slopes of W − 1
// later tokens are computed again by the next run. The next few tokens are on their way in registers while
// these are computed.
template <class T, int W, int V>
__global__ void __launch_bounds__(kBlock, kBackwardBlocks<T, W>)
    backward_kernel(Conv<T> conv, int run, const T* dy, T* dx, Compute<T>* partial) {
  using C = Compute<T>;
  const int c = static_cast<int>(blockIdx.x * kBlock + threadIdx.x) * V;
  if (c >= conv.channels) return;
  const int begin = static_cast<int>(blockIdx.y) * run, end = min(begin + run, conv.tokens);
  const int last = min(end + W - 1, conv.tokens);  // of those to be read
  griddep_launch();
  Packed<T, V> next_x[kBackwardAhead], next_dy[kBackwardAhead];
  Window<T, W, V> window(conv, c, begin);
  auto fetch = [&](int first) {
#pragma unroll
    for (int k = 0; k < kBackwardAhead; ++k)
      if (const int t = first + k; t < last) {
        next_x[k] = window.read(t);
        next_dy[k].put(read<V>(dy + int64_t{t} * conv.channels + c));
      }
  };
  fetch(begin);
  int due_end = window.span_end;  // of the sequence of the token whose gradient is due
  C slopes[V][W] = {}, dweight[V][W] = {}, dbias[V] = {};
  // Token t is read, and the gradient of the token W − 1 before it is due. `Inside`: both are of this run and
  // of one sequence.
  auto step = [&]<bool Inside>(std::bool_constant<Inside>, int t, const Packed<T, V>& x,
                               const Packed<T, V>& dy) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int j = 0; j + 1 < W; ++j) slopes[v][j] = slopes[v][j + 1];
      slopes[v][W - 1] = 0;
    }
    if (Inside || t < last) {
      window.template step<Inside>(t, x);
      C gradient[V];
      dy.widened(gradient);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const C sum = window.sum(v), s = sigmoid<kRough<T>>(sum);
        slopes[v][W - 1] = gradient[v] * (s + sum * (s - s * s));
        if (Inside || t < end) {
          dbias[v] += slopes[v][W - 1];
#pragma unroll
          for (int j = 0; j < W; ++j) dweight[v][j] += slopes[v][W - 1] * window.input[v][j];
        }
      }
    }
    const int due = t - (W - 1);
    if (!dx || (!Inside && due < begin)) return;
    if (!Inside && due >= due_end) due_end = static_cast<int>(conv.sequences.span_of(due).end);
    C out[V] = {};
#pragma unroll
    for (int v = 0; v < V; ++v)
#pragma unroll
      for (int m = 0; m < W; ++m)
        if (Inside || due + m < due_end) out[v] += window.weight[v][W - 1 - m] * slopes[v][m];
    store(dx + int64_t{due} * conv.channels + c, out);
  };
  for (int first = begin; first < end + W - 1; first += kBackwardAhead) {
    Packed<T, V> x[kBackwardAhead], gradient[kBackwardAhead];
#pragma unroll
    for (int k = 0; k < kBackwardAhead; ++k) x[k] = next_x[k], gradient[k] = next_dy[k];
    fetch(first + kBackwardAhead);
    auto group = [&]<bool Inside>(std::bool_constant<Inside> inside) {
#pragma unroll
      for (int k = 0; k < kBackwardAhead; ++k)
        if (Inside || first + k < end + W - 1) step(inside, first + k, x[k], gradient[k]);
    };
    if (first - (W - 1) >= max(begin, window.span_begin) &&
        first + kBackwardAhead <= min(end, window.span_end))
      group(std::true_type{});
    else
      group(std::false_type{});
  }
  C* out = partial + int64_t{blockIdx.y} * (conv.width + 1) * conv.channels + c;
#pragma unroll
  for (int v = 0; v < V; ++v) {
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (int at = j - (W - conv.width); at >= 0) out[at * conv.channels + v] = dweight[v][j];
    out[conv.width * conv.channels + v] = dbias[v];
  }
}

// f(std::integral_constant<int, W>) with a width that is at least this.
template <class F>
void dispatch_width(int width, F&& f) {
  if (width <= 4) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, kMaxWidth>{});
}

// Sums [width + 1, channels] to dweight [channels, width] and dbias.
template <class C>
struct PutGradients {
  C *dweight, *dbias;
  int64_t channels;
  int width;

  __device__ void operator()(int64_t i, C sum) const {
    const int64_t j = divide(i, channels), c = i - j * channels;
    if (j == width) {
      if (dbias) dbias[c] = sum;
    } else if (dweight) {
      dweight[c * width + j] = sum;
    }
  }
};

// f(std::integral_constant<int, V>): four channels a thread, where elements lie so, else one. With a wide
// window a thread holds enough of one.
template <class T, int W, class F>
void dispatch_channels(const Conv<T>& conv, std::initializer_list<const void*> others, F&& f) {
  if constexpr (kFew<T, W>)
    if ((conv.channels | conv.stride) % 4 == 0 && aligned(conv.x, 4 * sizeof(T)) &&
        std::all_of(others.begin(), others.end(), [](const void* p) { return aligned(p, 4 * sizeof(T)); }))
      return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 1>{});
}

void causal_conv(const KernelContext& ctx, const CausalConvArgs& args) {
  if (args.x.numel() == 0) return;
  dispatch_float("causal_conv", args.x.dtype(), [&]<class T>(Type<T>) {
    const Conv<T> conv(args);
    T* y = pointer<T>(args.y);
    dispatch_width(conv.width, [&]<int W>(std::integral_constant<int, W>) {
      dispatch_channels<T, W>(conv, {y}, [&]<int V>(std::integral_constant<int, V>) {
        const unsigned grid = blocks_for(conv.channels, kBlock * V) * blocks_for(conv.tokens, kRun);
        forward_kernel<T, W, V><<<grid, kBlock, 0, stream_of(ctx)>>>(conv, y);
      });
    });
  });
  check_launch("causal_conv");
}

void causal_conv_backward(const KernelContext& ctx, const CausalConvBackwardArgs& args) {
  dispatch_float("causal_conv_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const Conv<T> conv(args);
    const int64_t tokens = conv.tokens, sums = int64_t{conv.channels} * (conv.width + 1);
    T *dy = pointer<T>(args.dy), *dx = pointer<T>(args.dx);
    dispatch_width(conv.width, [&]<int W>(std::integral_constant<int, W>) {
      dispatch_channels<T, W>(conv, {dy, dx}, [&]<int V>(std::integral_constant<int, V>) {
        // As many blocks as the GPU holds at once, but runs that are long beside what they compute again.
        auto kernel = backward_kernel<T, W, V>;
        const int64_t across = blocks_for(conv.channels, kBlock * V),
                      most = resident_blocks(ctx, kernel, dim3(kBlock), 0, INT64_MAX) /
                             std::max<int64_t>(across, 1);
        const int64_t run = std::max<int64_t>(blocks_for(tokens, std::max<int64_t>(most, 1)), 8 * W),
                      runs = blocks_for(tokens, run);
        Scratch partial(ctx, static_cast<size_t>(std::max<int64_t>(runs, 1) * sums) * sizeof(C));
        if (runs * across > 0) {
          kernel<<<dim3(static_cast<unsigned>(across), static_cast<unsigned>(runs)), kBlock, 0,
                   stream_of(ctx)>>>(conv, static_cast<int>(run), dy, dx, partial.as<C>());
          check_launch("causal_conv_backward");
        }
        if (sums > 0 && (args.dweight.defined() || args.dbias.defined()))
          reduce_partials(
              "causal_conv_backward", stream_of(ctx), partial.as<C>(), runs, sums,
              PutGradients<C>{pointer<C>(args.dweight), pointer<C>(args.dbias), conv.channels, conv.width});
      });
    });
  });
}

}  // namespace

void add_causal_conv_kernels(KernelTable& table) {
  table.causal_conv = causal_conv;
  table.causal_conv_backward = causal_conv_backward;
}

}  // namespace megatron::cuda
