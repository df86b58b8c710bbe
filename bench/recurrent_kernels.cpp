// Times the CUDA kernels of layers that carry states, in bf16 on training shapes: 4 sequences of 4096 tokens,
// a Mamba-2 layer of 80 heads and the delta net of a Qwen3-Next layer.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "megatron/autograd/rank_context.h"

using namespace megatron;

namespace {

constexpr int64_t kTokens = 16384;
const SequenceRows kRows{4, {}};

RankContext& context() {
  static RankContext ctx{Device{DeviceType::Cuda, 0}};
  return ctx;
}

Tensor random(Shape shape, DType dtype = DType::BF16, double high = 1) {
  static uint64_t seed = 0;
  Tensor x = context().empty(shape, dtype);
  RandomArgs args{.out = x, .b = high, .key = {++seed, 1}, .global_strides = shape.row_major_strides()};
  context().kernels->random(context().kernel_context(), args);
  return x;
}
Tensor empty(Shape shape, DType dtype = DType::BF16) { return context().empty(shape, dtype); }

// What must be read and written, and computed.
void row(const char* name, double gigabytes, double gigaflops, const std::function<void()>& body) {
  auto batch = [&](int count) {
    context().stream.synchronize();
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) body();
    context().stream.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / count;
  };
  batch(2);
  double times[3] = {batch(5), batch(5), batch(5)};
  std::sort(times, times + 3);
  std::printf("%-30s %9.0f us %8.2f TB/s %8.2f TFLOP/s\n", name, times[1] * 1e6, gigabytes / times[1] / 1e3,
              gigaflops / times[1] / 1e3);
}

double gigabytes_of(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* t : tensors) bytes += static_cast<double>(t->bytes());
  return bytes / 1e9;
}

}  // namespace

int main() {
  const KernelContext ctx = context().kernel_context();
  const KernelTable& kernels = *context().kernels;
  {
    const int64_t channels = 5120 + 2 * 8 * 128;
    Tensor x = random({kTokens, channels}), w = random({channels, 4}), b = random({channels}),
           y = empty(x.shape());
    Tensor dy = random(x.shape()), dx = empty(x.shape()), dw = empty(w.shape(), DType::F32);
    Tensor db = empty(b.shape(), DType::F32);
    row("causal conv", gigabytes_of({&x, &y}), 0, [&] { kernels.causal_conv(ctx, {kRows, x, w, b, y}); });
    row("causal conv, backward", gigabytes_of({&x, &dy, &dx}), 0, [&] {
      kernels.causal_conv_backward(ctx, {kRows, x, w, b, dy, dx, dw, db});
    });
  }
  {
    Tensor x = random({kTokens, 5120}), gate = random(x.shape()), w = random({5120}), y = empty(x.shape());
    Tensor sums = empty({kTokens, 8}, DType::F32), dx = empty(x.shape()), dgate = empty(x.shape());
    Tensor dw = empty(w.shape(), DType::F32);
    row("gated norm", gigabytes_of({&x, &gate, &y}), 0, [&] {
      kernels.gated_norm(ctx, {true, 1e-5, 0, x, gate, w, sums, y});
    });
    row("gated norm, backward", gigabytes_of({&x, &gate, &y, &dx, &dgate}), 0, [&] {
      kernels.gated_norm_backward(ctx, {true, 1e-5, 640, x, gate, w, sums, y, {}, dx, dgate, dw});
    });
  }
  {
    Tensor x = random({kTokens, 4096}), gate = random(x.shape()), w = random({128}), y = empty(x.shape());
    Tensor sums = empty({kTokens, 32}, DType::F32), dx = empty(x.shape()), dgate = empty(x.shape());
    Tensor dw = empty(w.shape(), DType::F32);
    row("gated norm of heads", gigabytes_of({&x, &gate, &y}), 0, [&] {
      kernels.gated_norm(ctx, {false, 1e-5, 0, x, gate, w, sums, y});
    });
    row("gated norm of heads, backward", gigabytes_of({&x, &gate, &y, &dx, &dgate}), 0, [&] {
      kernels.gated_norm_backward(ctx, {false, 1e-5, 128, x, gate, w, sums, y, {}, dx, dgate, dw});
    });
  }
  for (int64_t chunk : {64, 128, 256}) {
    SsdArgs args{.rows = kRows, .heads = 80, .channels = 64, .groups = 8, .states = 128, .chunk = chunk};
    args.xbc = random({kTokens, 5120 + 2 * 8 * 128}), args.dt = random({kTokens, 80});
    args.a_log = random({80}, DType::F32), args.d = random({80}, DType::F32);
    args.dt_bias = random({80}, DType::F32), args.y = empty({kTokens, 5120});
    args.before = empty({chunk_slots(kTokens, 4, chunk), 80, 64, 128}, DType::F32);
    const double flops = 16384e-9 * (static_cast<double>(chunk) * (5120 + 1024) + 6.0 * 5120 * 128);
    std::printf("chunk %ld\n", static_cast<long>(chunk));
    row("ssd", gigabytes_of({&args.xbc, &args.y, &args.before}), flops, [&] { kernels.ssd(ctx, args); });
    SsdBackwardArgs back{args,
                         random({kTokens, 5120}),
                         empty(args.xbc.shape()),
                         empty(args.dt.shape()),
                         empty({80}, DType::F32),
                         empty({80}, DType::F32),
                         empty({80}, DType::F32)};
    row("ssd, backward", gigabytes_of({&args.xbc, &back.dy, &back.dxbc, &args.before}), 2.5 * flops,
        [&] { kernels.ssd_backward(ctx, back); });
  }
  {
    DeltaRuleArgs args{
        .rows = kRows, .key_heads = 16, .value_heads = 32, .key_channels = 128, .value_channels = 128};
    args.qkv = random({kTokens, 2 * 16 * 128 + 32 * 128}), args.b = random({kTokens, 32});
    args.a = random({kTokens, 32}), args.a_log = random({32}, DType::F32);
    args.dt_bias = random({32}, DType::F32), args.o = empty({kTokens, 32 * 128});
    args.before = empty({chunk_slots(kTokens, 4, 64), 32, 128, 128}, DType::F32);
    const double flops = 8e-9 * kTokens * 32 * 128 * 128;
    row("delta rule", gigabytes_of({&args.qkv, &args.o, &args.before}), flops,
        [&] { kernels.delta_rule(ctx, args); });
    DeltaRuleBackwardArgs back{args,
                               random({kTokens, 32 * 128}),
                               empty(args.qkv.shape()),
                               empty(args.b.shape()),
                               empty(args.a.shape()),
                               empty({32}, DType::F32),
                               empty({32}, DType::F32)};
    row("delta rule, backward", gigabytes_of({&args.qkv, &back.d_o, &back.dqkv, &args.before}), 3 * flops,
        [&] { kernels.delta_rule_backward(ctx, back); });
  }
  return 0;
}
