#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/functions.h"
#include "megatron/kernels/cpu/isa/sequences.h"
#include "megatron/kernels/limits/recurrent.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

constexpr int64_t kBlock = 64;  // channels that one task holds

// Some channels of the convolution, their weights in the order in which a row of tokens meets them.
template <class T>
struct ConvBlock {
  using C = Compute<T>;
  const T* x;
  int64_t stride, first, count, width;
  C weight[kBlock * limits::kConvolutionWidth], bias[kBlock];

  ConvBlock(const Tensor& x, const Tensor& weights, const Tensor& biases, int64_t first)
      : x(pointer<T>(x)),
        stride(x.stride(0)),
        first(first),
        count(std::min(kBlock, x.size(1) - first)),
        width(weights.size(-1)) {
    const T *w = pointer<T>(weights), *b = optional_pointer<T>(biases);
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t j = 0; j < width; ++j) weight[j * kBlock + c] = C(w[(first + c) * width + j]);
      bias[c] = b ? C(b[first + c]) : C(0);
    }
  }

  // What token t of a sequence that begins at `begin` gives before the activation.
  void sum(int64_t begin, int64_t t, C* out) const {
    for (int64_t c = 0; c < count; ++c) out[c] = bias[c];
    for (int64_t j = std::max<int64_t>(0, begin - t + width - 1); j < width; ++j) {
      const T* row = x + (t - width + 1 + j) * stride + first;
      const C* w = weight + j * kBlock;
      for (int64_t c = 0; c < count; ++c) out[c] += w[c] * C(row[c]);
    }
  }
};

template <class T>
void forward(const KernelContext& ctx, const CausalConvArgs& args) {
  using C = Compute<T>;
  int64_t tokens = args.x.size(0), channels = args.x.size(1), blocks = (channels + kBlock - 1) / kBlock;
  T* y = pointer<T>(args.y);
  auto spans = token_spans(args.rows, tokens);
  ctx.pool.parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      ConvBlock<T> conv(args.x, args.weight, args.bias, block * kBlock);
      C sums[kBlock];
      for (const TokenSpan& span : spans)
        for (int64_t t = span.begin; t < span.end; ++t) {
          conv.sum(span.begin, t, sums);
          T* out = y + t * channels + conv.first;
          for (int64_t c = 0; c < conv.count; ++c) out[c] = T(unary_value<Unary::Silu>(sums[c]));
        }
    }
  });
}

// One block of channels: the gradients of its inputs, weights and biases.
template <class T>
void backward_block(const CausalConvBackwardArgs& args, const std::vector<TokenSpan>& spans, int64_t first) {
  using C = Compute<T>;
  ConvBlock<T> conv(args.x, args.weight, args.bias, first);
  const int64_t channels = args.x.size(1), count = conv.count, width = conv.width;
  const T* dy = pointer<T>(args.dy);
  T* dx = optional_pointer<T>(args.dx);
  C dweight[kBlock * limits::kConvolutionWidth] = {}, dbias[kBlock] = {}, sums[kBlock];
  std::vector<C> slopes;  // of the sums, for all tokens of a sequence
  for (const TokenSpan& span : spans) {
    slopes.assign(static_cast<size_t>((span.end - span.begin) * kBlock), C(0));
    for (int64_t t = span.begin; t < span.end; ++t) {
      conv.sum(span.begin, t, sums);
      C* slope = slopes.data() + (t - span.begin) * kBlock;
      for (int64_t c = 0; c < count; ++c) {
        slope[c] = C(dy[t * channels + first + c]) * unary_slope<Unary::Silu>(sums[c]);
        dbias[c] += slope[c];
      }
      for (int64_t j = std::max<int64_t>(0, span.begin - t + width - 1); j < width; ++j) {
        const T* row = conv.x + (t - width + 1 + j) * conv.stride + first;
        for (int64_t c = 0; c < count; ++c) dweight[j * kBlock + c] += slope[c] * C(row[c]);
      }
    }
    for (int64_t t = span.begin; dx && t < span.end; ++t) {
      for (int64_t c = 0; c < count; ++c) sums[c] = 0;
      for (int64_t j = std::max<int64_t>(0, t + width - span.end); j < width; ++j) {
        int64_t later = t + width - 1 - j;  // the token that met this one with weight j
        const C* slope = slopes.data() + (later - span.begin) * kBlock;
        for (int64_t c = 0; c < count; ++c) sums[c] += conv.weight[j * kBlock + c] * slope[c];
      }
      for (int64_t c = 0; c < count; ++c) dx[t * channels + first + c] = T(sums[c]);
    }
  }
  C *w = optional_pointer<C>(args.dweight), *b = optional_pointer<C>(args.dbias);
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t j = 0; w && j < width; ++j) w[(first + c) * width + j] = dweight[j * kBlock + c];
    if (b) b[first + c] = dbias[c];
  }
}

void causal_conv(const KernelContext& ctx, const CausalConvArgs& args) {
  dispatch_float("causal_conv", args.x.dtype(), [&]<class T>(Type<T>) { forward<T>(ctx, args); });
}

void causal_conv_backward(const KernelContext& ctx, const CausalConvBackwardArgs& args) {
  dispatch_float("causal_conv_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    auto spans = token_spans(args.rows, args.x.size(0));
    int64_t blocks = (args.x.size(1) + kBlock - 1) / kBlock;
    ctx.pool.parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) backward_block<T>(args, spans, block * kBlock);
    });
  });
}

}  // namespace

void add_causal_conv_kernels(KernelTable& table) {
  table.causal_conv = causal_conv;
  table.causal_conv_backward = causal_conv_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
