// Times the CUDA kernels on training shapes, against the copy bandwidth and the matrix rate of the same run.
//   bench_cuda_kernels [filter]: only rows whose name contains the filter
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/kernels/gemm_fused.h"
#include "megatron/ops/fp8_format.h"
#include "megatron/ops/grouped_format.h"
#include "megatron/ops/moe.h"

using namespace megatron;

namespace {

constexpr DType kBf16 = DType::BF16, kF32 = DType::F32;

class Bench {
 public:
  explicit Bench(std::string filter) : filter_(std::move(filter)) {}
  RankContext ctx{Device{DeviceType::Cuda, 0}};

  // Never zeros: they run faster than real data.
  Tensor random(Shape shape, DType dtype = kBf16, double scale = 1) {
    Tensor x = ctx.empty(shape, dtype);
    RandomArgs args{.out = x, .b = scale, .key = {++seed_, 1}, .global_strides = shape.row_major_strides()};
    ctx.kernels->random(ctx.kernel_context(), args);
    return x;
  }
  Tensor integers(Shape shape, int64_t below) {
    std::vector<int64_t> values(static_cast<size_t>(shape.numel()));
    ++seed_;
    for (size_t i = 0; i < values.size(); ++i) values[i] = Philox::at({seed_, 2}, i).word[0] % below;
    return ctx.from_vector(values, shape);
  }

  // Seconds per call: the median of several batches, each long enough to hide its own beginning and end.
  double seconds(const std::function<void()>& body) {
    auto batch = [&](int count) {
      ctx.stream.synchronize();
      auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) body();
      ctx.stream.synchronize();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / count;
    };
    batch(2);
    double once = batch(3);
    int count = std::max(3, std::min(2000, static_cast<int>(0.012 / once)));
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) times.push_back(batch(count));
    std::sort(times.begin(), times.end());
    return times[2];
  }

  void bytes(const std::string& name, double gigabytes, const std::function<void()>& body) {
    if (!wanted(name)) return;
    double t = seconds(body), rate = gigabytes / t / 1000;
    if (copy_rate_ == 0) copy_rate_ = rate;
    std::printf("%-44s %9.1f us %8.2f TB/s   %5.1f %% of copy\n", name.c_str(), t * 1e6, rate,
                100 * rate / copy_rate_);
    std::fflush(stdout);
  }
  void flops(const std::string& name, double operations, const std::function<void()>& body) {
    if (!wanted(name)) return;
    double t = seconds(body), rate = operations / t / 1e12;
    if (matrix_rate_ == 0) matrix_rate_ = rate;
    std::printf("%-44s %9.1f us %8.1f TFLOP/s %5.1f %% of 8192^3\n", name.c_str(), t * 1e6, rate,
                100 * rate / matrix_rate_);
    std::fflush(stdout);
  }
  bool wanted(const std::string& name) const {
    return name.find(filter_) != std::string::npos || name == "copy" || name == "gemm 8192^3";
  }

 private:
  std::string filter_;
  uint64_t seed_ = 0;
  double copy_rate_ = 0, matrix_rate_ = 0;
};

double giga(std::initializer_list<const Tensor*> tensors) {
  double sum = 0;
  for (const Tensor* t : tensors) sum += static_cast<double>(t->bytes());
  return sum / 1e9;
}

void bench_ceilings(Bench& b) {
  auto& ctx = b.ctx;
  Tensor x = b.random({1 << 29}), y = ctx.empty_like(x);
  b.bytes("copy", giga({&x, &y}), [&] { ctx.kernels->copy(ctx.kernel_context(), {x, y}); });
  Tensor a = b.random({8192, 8192}), c = b.random({8192, 8192}), d = ctx.empty_like(a);
  b.flops("gemm 8192^3", 2.0 * 8192 * 8192 * 8192, [&] {
    ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = c.transpose(0, 1), .c = d, .bias = {}});
  });
}

void bench_gemm(Bench& b, const std::string& kind) {
  auto& ctx = b.ctx;
  struct Size {
    int64_t tokens, in, out;
  };
  for (Size s : {Size{32768, 768, 2304},
                 {32768, 768, 4096},
                 {32768, 768, 50304},
                 {16384, 2048, 3072},
                 {16384, 2048, 2048},
                 {16384, 2048, 16384},
                 {16384, 8192, 2048},
                 {16384, 4096, 4096},
                 {16384, 4096, 28672},
                 {16384, 14336, 4096}}) {
    std::string size = std::to_string(s.tokens) + "x" + std::to_string(s.in) + "x" + std::to_string(s.out);
    if (!b.wanted(kind + size)) continue;
    double work = 2.0 * static_cast<double>(s.tokens * s.in) * static_cast<double>(s.out);
    Tensor x = b.random({s.tokens, s.in}), w = b.random({s.out, s.in}), y = b.random({s.tokens, s.out});
    Tensor dw = ctx.zeros({s.out, s.in}, kF32);
    b.flops(kind + size + " forward", work, [&] {
      ctx.kernels->gemm(ctx.kernel_context(), {.a = x, .b = w.transpose(0, 1), .c = y, .bias = {}});
    });
    b.flops(kind + size + " dgrad", work,
            [&] { ctx.kernels->gemm(ctx.kernel_context(), {.a = y, .b = w, .c = x, .bias = {}}); });
    Tensor dy = b.random({s.tokens, s.out});
    b.flops(kind + size + " wgrad fp32", work, [&] {
      ctx.kernels->gemm(ctx.kernel_context(),
                        {.a = dy.transpose(0, 1), .b = x, .c = dw, .beta = 1, .bias = {}});
    });
  }
}

void bench_attention(Bench& b) {
  auto& ctx = b.ctx;
  // How a token's queries, keys and values lie: apart, or in one row, in turn or group by group.
  enum class Layout { Apart, InTurn, ByGroup };
  struct Case {
    const char* name;
    int64_t batch, length, heads, kv_heads, d;
    bool own;
    Layout layout = Layout::Apart;
    bool packed = false;
  };
  for (Case c : {Case{"attention 32/8x128 4k", 4, 4096, 32, 8, 128, false},
                 {"attention 32/8x128 4k in one, in turn", 4, 4096, 32, 8, 128, false, Layout::InTurn},
                 {"attention 32/8x64 4k", 4, 4096, 32, 8, 64, false},
                 {"attention 32/8x64 4k in one, in turn", 4, 4096, 32, 8, 64, false, Layout::InTurn},
                 {"attention 16/16x128 4k", 4, 4096, 16, 16, 128, false},
                 {"attention 16/16x128 4k in one, by group", 4, 4096, 16, 16, 128, false, Layout::ByGroup},
                 {"attention 16/16x128 4k in one, in turn", 4, 4096, 16, 16, 128, false, Layout::InTurn},
                 {"attention 12x64 32x1k", 32, 1024, 12, 12, 64, false},
                 {"attention 12x64 32x1k in one, by group", 32, 1024, 12, 12, 64, false, Layout::ByGroup},
                 {"attention 32/8x128 4k, packed", 4, 4096, 32, 8, 128, false, Layout::Apart, true},
                 {"attention 32/8x128 16x1k, packed", 16, 1024, 32, 8, 128, false, Layout::Apart, true},
                 {"own attention 32/8x128 4k", 4, 4096, 32, 8, 128, true},
                 {"own attention 12x64 32x1k", 32, 1024, 12, 12, 64, true}}) {
    if (!b.wanted(c.name)) continue;
    int64_t tokens = c.batch * c.length, all = c.heads + 2 * c.kv_heads;
    // Queries, keys and values of a tensor, and their gradients: tensors of their own, or views of one.
    auto make = [&] {
      if (c.layout == Layout::Apart)
        return std::array<Tensor, 3>{b.random({tokens, c.heads, c.d}), b.random({tokens, c.kv_heads, c.d}),
                                     b.random({tokens, c.kv_heads, c.d})};
      Tensor fused = b.random({tokens, all, c.d});
      if (c.layout == Layout::InTurn)
        return std::array<Tensor, 3>{fused.slice(1, 0, c.heads),
                                     fused.slice(1, c.heads, c.heads + c.kv_heads),
                                     fused.slice(1, c.heads + c.kv_heads, all)};
      Tensor groups = fused.view({tokens, c.heads, 3, c.d});  // as many KV heads as query heads
      return std::array<Tensor, 3>{groups.select(2, 0), groups.select(2, 1), groups.select(2, 2)};
    };
    auto [q, k, v] = make();
    auto [dq, dk, dv] = make();
    Tensor o = ctx.empty({tokens, c.heads, c.d}, kBf16), lse = ctx.empty({c.heads, tokens}, kF32),
           grad = b.random({tokens, c.heads, c.d});
    AttentionArgs f{.q = q,
                    .k = k,
                    .v = v,
                    .o = o,
                    .lse = lse,
                    .batch = c.batch,
                    .cu_queries = {},
                    .cu_keys = {},
                    .scale = 1 / std::sqrt(static_cast<double>(c.d)),
                    .sinks = {},
                    .bias = {}};
    // Packed sequences whose keys have bounds of their own are not for cuDNN, and no more work.
    std::vector<int32_t> bounds;
    for (int64_t i = 0; i <= c.batch; ++i) bounds.push_back(static_cast<int32_t>(i * c.length));
    if (c.own || c.packed) {
      f.cu_queries = f.cu_keys = ctx.from_vector(bounds, {c.batch + 1});
      f.max_queries = f.max_keys = c.length;
    }
    if (c.own) f.cu_keys = ctx.from_vector(bounds, {c.batch + 1});
    double work = 2.0 * static_cast<double>(c.batch * c.heads) * static_cast<double>(c.length) *
                  static_cast<double>(c.length) * static_cast<double>(c.d);  // causal: half of 4 · …
    b.flops(std::string(c.name) + " forward", work, [&] { ctx.kernels->attention(ctx.kernel_context(), f); });
    AttentionBackwardArgs args{
        .forward = f, .grad_o = grad, .dq = dq, .dk = dk, .dv = dv, .dsinks = {}, .dbias = {}};
    b.flops(std::string(c.name) + " backward", 2.5 * work,
            [&] { ctx.kernels->attention_backward(ctx.kernel_context(), args); });
    args.deterministic = false;
    if (!c.own)
      b.flops(std::string(c.name) + " backward, any order", 2.5 * work,
              [&] { ctx.kernels->attention_backward(ctx.kernel_context(), args); });
  }
}

void bench_rows(Bench& b) {
  auto& ctx = b.ctx;
  auto context = [&] { return ctx.kernel_context(); };
  for (int64_t hidden : {768, 2048, 4096}) {
    int64_t rows = hidden == 768 ? 32768 : 16384;
    std::string size = " " + std::to_string(rows) + "x" + std::to_string(hidden);
    Tensor x = b.random({rows, hidden}), residual = b.random({rows, hidden}), w = b.random({hidden});
    Tensor y = ctx.empty_like(x), sum = ctx.empty_like(x), rstd = ctx.empty({rows}, kF32);
    b.bytes("rmsnorm+residual" + size, giga({&x, &residual, &y, &sum}), [&] {
      ctx.kernels->norm(context(), {.x = x,
                                    .residual = residual,
                                    .weight = w,
                                    .bias = {},
                                    .y = y,
                                    .sum = sum,
                                    .mean = {},
                                    .rstd = rstd});
    });
    Tensor dy = b.random({rows, hidden}), dsum = b.random({rows, hidden}), dx = ctx.empty_like(x),
           dw = ctx.zeros({hidden}, kF32);
    b.bytes("rmsnorm backward" + size, giga({&dy, &dsum, &sum, &dx}), [&] {
      ctx.kernels->norm_backward(context(), {.dy = dy,
                                             .dsum = dsum,
                                             .x = sum,
                                             .weight = w,
                                             .mean = {},
                                             .rstd = rstd,
                                             .dx = dx,
                                             .dweight = dw,
                                             .dbias = {},
                                             .accumulate = true});
    });
  }
  for (int64_t width : {2048, 8192, 14336}) {
    int64_t rows = width == 2048 ? 32768 : 16384;
    std::string size = " " + std::to_string(rows) + "x" + std::to_string(width);
    Tensor x = b.random({rows, 2 * width}), y = ctx.empty({rows, width}, kBf16), dx = ctx.empty_like(x);
    b.bytes("swiglu" + size, giga({&x, &y}),
            [&] { ctx.kernels->gated(context(), {.x = x, .bias = {}, .y = y}); });
    b.bytes("swiglu backward" + size, giga({&x, &y, &dx}),
            [&] { ctx.kernels->gated_backward(context(), {.x = x, .bias = {}, .dy = y, .dx = dx}); });
    Tensor again = ctx.empty_like(y);
    b.bytes("swiglu backward and again" + size, giga({&x, &y, &dx, &again}), [&] {
      ctx.kernels->gated_backward(context(), {.x = x, .bias = {}, .dy = y, .dx = dx, .y = again});
    });
  }
  {
    Tensor qkv = b.random({16384, 48 * 128}), q = ctx.empty({16384, 32, 128}, kBf16),
           k = ctx.empty({16384, 8, 128}, kBf16);
    Tensor v = ctx.empty_like(k), cos = b.random({16384, 64}, kF32), sin = b.random({16384, 64}, kF32);
    b.bytes("qkv split+rope 16384x32/8x128", giga({&qkv, &q, &k, &v, &cos, &sin}), [&] {
      ctx.kernels->qkv_split(context(), {.qkv = qkv, .q = q, .k = k, .v = v, .cos = cos, .sin = sin});
    });
    // In the projection itself, of as many KV heads as query heads: values are not touched.
    Tensor turning = qkv.view({16384, 16, 3, 128}).slice(2, 0, 2);
    b.bytes("rope in place 16384x16/16x128", giga({&turning, &turning, &cos, &sin}),
            [&] { ctx.kernels->rope(context(), {.x = turning, .y = turning, .cos = cos, .sin = sin}); });
  }
  for (int64_t width : {4096, 28672}) {
    Tensor x = b.random({16384, width}), q = ctx.empty({16384, width}, DType::F8E4M3),
           turned = ctx.empty({width, 16384}, DType::F8E4M3), scale = ctx.empty({1, 1}, kF32);
    b.bytes("fp8, also transposed 16384x" + std::to_string(width), giga({&x, &x, &q, &turned}), [&] {
      ctx.kernels->quantize(context(), {.x = x, .q = q, .inverse_scale = scale, .transposed = turned});
    });
  }
  for (int64_t width : {4096, 28672})
    for (int64_t block_rows : {1, 128}) {
      const int64_t rows = 16384 / block_rows, columns = width / block_rows;
      Tensor x = b.random({16384, width}), q = ctx.empty({16384, width}, DType::F8E4M3),
             turned = ctx.empty({width, 16384}, DType::F8E4M3);
      Tensor scale = ctx.empty({width / 128, rows}, kF32), other = ctx.empty({128, columns}, kF32);
      b.bytes("fp8 by " + std::to_string(block_rows) + "x128, also transposed 16384x" + std::to_string(width),
              giga({&x, &q, &turned, &scale, &other}), [&] {
                ctx.kernels->quantize_blocks(context(), {.x = x,
                                                         .q = q,
                                                         .inverse_scale = scale.transpose(0, 1),
                                                         .transposed = turned,
                                                         .transposed_inverse_scale = other.transpose(0, 1),
                                                         .block_rows = block_rows});
              });
    }
  for (int64_t vocab : {50304, 128256}) {
    int64_t rows = 8192;
    std::string size = " " + std::to_string(rows) + "x" + std::to_string(vocab);
    if (!b.wanted("cross entropy" + size)) continue;
    Tensor logits = b.random({rows, vocab}), labels = b.integers({rows}, vocab);
    Tensor maximum = ctx.empty({rows}, kF32), sum = ctx.empty({rows}, kF32), target = ctx.empty({rows}, kF32),
           lse = ctx.full({rows}, kF32, 12);
    b.bytes("cross entropy" + size, giga({&logits}), [&] {
      ctx.kernels->cross_entropy_stats(context(), {.logits = logits,
                                                   .labels = labels,
                                                   .valid = vocab,
                                                   .maximum = maximum,
                                                   .sum_exp = sum,
                                                   .target = target,
                                                   .sum_logits = {}});
    });
    Tensor scale = ctx.full({rows}, kF32, 1), dlogits = ctx.empty_like(logits);
    b.bytes("cross entropy gradient" + size, giga({&logits, &dlogits}), [&] {
      ctx.kernels->cross_entropy_grad(context(), {.logits = logits,
                                                  .labels = labels,
                                                  .lse = lse,
                                                  .scale = scale,
                                                  .valid = vocab,
                                                  .vocab_size = vocab,
                                                  .dlogits = dlogits});
    });
    Tensor loss = ctx.empty({rows}, kF32);
    b.bytes("cross entropy in one" + size, giga({&logits, &dlogits}), [&] {
      ctx.kernels->cross_entropy(context(), {.logits = logits,
                                             .labels = labels,
                                             .valid = vocab,
                                             .vocab_size = vocab,
                                             .loss = loss,
                                             .dlogits = dlogits});
    });
  }
}

void bench_rest(Bench& b) {
  auto& ctx = b.ctx;
  auto context = [&] { return ctx.kernel_context(); };
  {
    Tensor table = b.random({128256, 2048}), ids = b.integers({16384}, 128256),
           out = ctx.empty({16384, 2048}, kBf16);
    b.bytes("embedding 16384x2048", 2 * giga({&out}), [&] {
      ctx.kernels->gather_rows(context(), {table, ids, out});
    });
    Tensor grad = ctx.zeros({128256, 2048}, kF32);
    b.bytes("embedding gradient 16384x2048", 5 * giga({&out}),
            [&] { ctx.kernels->scatter_add_rows(context(), {.source = out, .ids = ids, .out = grad}); });
  }
  {
    std::vector<AdamTensor> list;
    std::vector<Tensor> gradients;
    constexpr int64_t n = 1 << 24;
    for (int i = 0; i < 16; ++i) {
      gradients.push_back(b.random({n}, kF32));
      list.push_back({b.random({n}), b.random({n}, kF32), gradients.back(), b.random({n}, kF32),
                      ctx.full({n}, kF32, 1), 0.1, 1});
    }
    Tensor scale = ctx.full({1}, kF32, 1), norm = ctx.zeros({1}, DType::F64);
    b.bytes("adam 268M (bf16, fp32 master)", 16.0 * n * 30 / 1e9, [&] {
      ctx.kernels->adam(context(),
                        {.tensors = list, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .gradient_scale = scale});
    });
    b.bytes("sum of squares 268M fp32", 16.0 * n * 4 / 1e9,
            [&] { ctx.kernels->sum_squares(context(), {.tensors = gradients, .out = norm}); });
  }
  {
    Tensor x = b.random({16384, 4096}), y = ctx.empty_like(x), residual = b.random({16384, 4096}),
           wide = ctx.empty({16384, 4096}, kF32);
    b.bytes("dropout+residual 16384x4096", giga({&x, &y, &residual}), [&] {
      ctx.kernels->dropout(
          context(), {.x = x, .residual = residual, .y = y, .p = 0.1, .key = {1, 2}, .global_columns = 4096});
    });
    b.bytes("add 16384x4096", giga({&x, &y, &residual}), [&] {
      ctx.kernels->binary(context(), {Binary::Add, x, residual, y});
    });
    b.bytes("cast bf16 to fp32 16384x4096", giga({&x, &wide}), [&] {
      ctx.kernels->copy(context(), {x, wide});
    });
    b.bytes("transpose 16384x4096", giga({&x, &y}), [&] {
      ctx.kernels->copy(context(), {x.transpose(0, 1), y.view({4096, 16384})});
    });
    b.bytes("slice of columns 16384x2048", giga({&x}), [&] {
      ctx.kernels->copy(context(), {x.slice(1, 1024, 3072), y.slice(0, 0, 8192).view({16384, 2048})});
    });
    b.bytes("column sum 16384x4096", giga({&x}), [&] {
      ctx.kernels->reduce(context(), {.kind = Reduction::Sum,
                                      .x = x,
                                      .out = wide.view({-1}).slice(0, 0, 4096),
                                      .outer = 1,
                                      .n = 16384,
                                      .inner = 4096});
    });
  }
  {
    constexpr int64_t tokens = 16384, k = 2, experts = 8, hidden = 4096, rows = tokens * k;
    Tensor choice = b.integers({tokens, k}, experts), offsets = ctx.empty({experts + 1}, DType::I32);
    Tensor row_of = ctx.empty({rows}, DType::I64), copy_of = ctx.empty({rows}, DType::I64);
    auto sort = [&] { ctx.kernels->expert_sort(context(), {choice, offsets, row_of, copy_of}); };
    b.bytes("moe sort 16384x2 of 8", 1e-9 * rows * 24, sort);
    sort();
    Tensor x = b.random({tokens, hidden}), in = ctx.empty({rows, hidden}, kBf16);
    b.bytes("moe permute 32768x4096", 2 * giga({&in}), [&] {
      ctx.kernels->permute(context(), {x, copy_of, in, k});
    });
  }
  // Few large experts, and many small ones.
  struct Experts {
    int64_t count, k, hidden, width;
  };
  for (Experts e : {Experts{8, 2, 4096, 14336}, {128, 8, 2048, 1536}, {128, 8, 768, 2048}}) {
    const int64_t tokens = 16384, rows = tokens * e.k;
    const std::string size = "moe grouped gemm " + std::to_string(rows) + "x" + std::to_string(e.hidden) +
                             "x" + std::to_string(e.width);
    if (!b.wanted(size)) continue;
    Tensor choice = b.integers({tokens, e.k}, e.count), offsets = ctx.empty({e.count + 1}, DType::I32);
    Tensor row_of = ctx.empty({rows}, DType::I64), copy_of = ctx.empty({rows}, DType::I64);
    ctx.kernels->expert_sort(context(), {choice, offsets, row_of, copy_of});
    Tensor x = b.random({rows, e.hidden}), y = b.random({rows, e.width}),
           w = b.random({e.count, e.width, e.hidden}), dw = ctx.zeros({e.count, e.width, e.hidden}, kF32),
           dx = ctx.empty({rows, e.hidden}, kBf16), out = ctx.empty({rows, e.width}, kBf16);
    const double work = 2.0 * static_cast<double>(rows * e.hidden) * static_cast<double>(e.width);
    b.flops(size, work, [&] { ctx.kernels->grouped_gemm(context(), {x, w.transpose(1, 2), out, offsets}); });
    b.flops(size + " dgrad", work, [&] { ctx.kernels->grouped_gemm(context(), {y, w, dx, offsets}); });
    b.flops(size + " wgrad fp32", work, [&] {
      ctx.kernels->grouped_gemm_weight(context(), {y, x, dw, offsets, 1});
    });
  }
}

// GEMMs of experts in fp8, with a scale for each expert or for each block, and the cast before them. Rows are
// padded as layers do it; the work is that of tokens.
void bench_fp8_experts(Bench& b) {
  using Side = ops::LinearFormat::Side;
  auto& ctx = b.ctx;
  struct Experts {
    int64_t count, k, hidden, width, tokens;
  };
  for (Experts e : {Experts{8, 2, 4096, 14336, 16384},
                    {128, 8, 2048, 1536, 16384},
                    {128, 8, 768, 2048, 16384},
                    {128, 8, 2048, 1536, 4096},
                    {128, 8, 768, 2048, 4096}})
    for (bool blocks : {false, true}) {
      const int64_t rows = e.tokens * e.k;
      const std::string size =
          fmt::format("moe grouped fp8 {}{}x{}x{}", blocks ? "in blocks " : "", rows, e.hidden, e.width);
      if (!b.wanted(size)) continue;
      const auto order =
          ops::expert_sort(ctx, b.integers({e.tokens, e.k}, e.count), e.count, blocks ? 128 : 16);
      const int64_t padded = order.copy_of_row.size(0);
      ops::Fp8Weight fp8;
      fp8.blocks = blocks;
      GradAccumulator sum;
      sum.main_grad = ctx.zeros({e.count, e.width, e.hidden}, kBf16);
      sum.wrote_early();
      const Weight weight{b.random({e.count, e.width, e.hidden}), &sum};
      const auto format = ops::grouped_fp8_format(ctx, weight.value, fp8, order.offsets, true);
      const Tensor x = b.random({padded, e.hidden}), dy = b.random({padded, e.width});
      const ops::Operand narrow_x = format->quantize(ctx, x, Side::Input),
                         narrow_dy = format->quantize(ctx, dy, Side::Gradient);
      const Tensor dx = ctx.empty(x.shape(), kBf16), y = ctx.empty(dy.shape(), kBf16);
      const double work = 2.0 * static_cast<double>(rows * e.hidden) * static_cast<double>(e.width);
      b.flops(size, work, [&] { format->forward(ctx, narrow_x, weight, {}, y); });
      b.flops(size + " dgrad", work, [&] { format->dgrad(ctx, narrow_dy, weight, dx); });
      b.flops(size + " wgrad bf16", work, [&] { format->wgrad(ctx, narrow_dy, narrow_x, sum); });
      const double read = blocks ? 1 : 2;
      b.bytes(size + " cast", read * giga({&x}) + giga({&narrow_x.data, &narrow_x.transposed}),
              [&] { format->quantize(ctx, x, Side::Input); });
    }
}

// GEMMs with one scale, and with one per block.
void bench_fp8(Bench& b, const std::string& kind) {
  auto& ctx = b.ctx;
  struct Size {
    int64_t tokens, in, out;
  };
  for (Size s : {Size{16384, 2048, 16384}, {16384, 4096, 6144}, {16384, 4096, 28672}, {16384, 14336, 4096}})
    for (bool blocks : {false, true}) {
      const std::string size = kind + (blocks ? "in blocks " : "") + std::to_string(s.tokens) + "x" +
                               std::to_string(s.in) + "x" + std::to_string(s.out);
      if (!b.wanted(size)) continue;
      const double work = 2.0 * static_cast<double>(s.tokens * s.in) * static_cast<double>(s.out);
      auto cast = [&](int64_t rows, int64_t columns, int64_t block_rows) {
        ops::Operand q;
        if (blocks)
          ops::to_fp8_blocks(ctx, b.random({rows, columns}), DType::F8E4M3, block_rows, q);
        else
          ops::to_fp8(ctx, b.random({rows, columns}), DType::F8E4M3, q);
        return q;
      };
      ops::Operand x = cast(s.tokens, s.in, 1), w = cast(s.out, s.in, 128), dy = cast(s.tokens, s.out, 1);
      Tensor y = ctx.empty({s.tokens, s.out}, kBf16), dx = ctx.empty({s.tokens, s.in}, kBf16),
             dw = ctx.zeros({s.out, s.in}, kF32);
      auto gemm = [&](const Tensor& a, const Tensor& a_scale, const Tensor& c, const Tensor& c_scale,
                      const Tensor& to, int64_t rows, double beta, bool fast) {
        ctx.kernels->gemm(ctx.kernel_context(), {.a = a,
                                                 .b = c.transpose(0, 1),
                                                 .c = to,
                                                 .beta = beta,
                                                 .a_scale = a_scale,
                                                 .b_scale = c_scale.transpose(0, 1),
                                                 .a_block_rows = blocks ? 1 : 0,
                                                 .b_block_rows = blocks ? rows : 0,
                                                 .fast_accum = fast});
      };
      b.flops(size + " forward", work,
              [&] { gemm(x.data, x.inverse_scale, w.data, w.inverse_scale, y, 128, 0, !blocks); });
      b.flops(size + " dgrad", work,
              [&] { gemm(dy.data, dy.inverse_scale, w.transposed, w.transposed_scale, dx, 128, 0, false); });
      b.flops(size + " wgrad fp32", work, [&] {
        gemm(dy.transposed, dy.transposed_scale, x.transposed, x.transposed_scale, dw, 1, 1, false);
      });
    }
}

// What a call costs the host, the GPU being left behind: a queue holds about a thousand launches.
void bench_host(Bench& b) {
  auto& ctx = b.ctx;
  auto issue = [&](const char* name, const std::function<void()>& body) {
    std::vector<double> times;
    for (int round = 0; round < 5; ++round) {
      ctx.stream.synchronize();
      auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < 300; ++i) body();
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 300);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-44s %9.2f us of host time\n", name, times[2] * 1e6);
  };
  Tensor tiny = b.random({256}), small = b.random({64, 64}), out = ctx.empty_like(small),
         rstd = ctx.empty({64}, kF32);
  Tensor q = b.random({256, 4, 64}), lse = ctx.empty({4, 256}, kF32), o = ctx.empty_like(q);
  issue("host: copy (one memcpy)", [&] { ctx.kernels->copy(ctx.kernel_context(), {small, out}); });
  issue("host: elementwise (one launch)",
        [&] { ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 1, .a = tiny, .b = {}, .out = tiny}); });
  issue("host: norm (one launch)",
        [&] { ctx.kernels->norm(ctx.kernel_context(), {.x = small, .y = out, .rstd = rstd}); });
  issue("host: gemm", [&] { ctx.kernels->gemm(ctx.kernel_context(), {.a = small, .b = small, .c = out}); });
  issue("host: attention (cuDNN where it is used)", [&] {
    ctx.kernels->attention(ctx.kernel_context(),
                           {.q = q, .k = q, .v = q, .o = o, .lse = lse, .scale = 0.125});
  });
  issue("host: allocation", [&] { ctx.empty({1000}, kBf16); });
}

}  // namespace

int main(int argc, char** argv) {
  if (cuda_device_count() == 0) {
    std::puts("no GPU is here");
    return 1;
  }
  Bench bench(argc > 1 ? argv[1] : "");
  bench_ceilings(bench);
  bench_rows(bench);
  bench_rest(bench);
  bench_attention(bench);
  bench_host(bench);
  bench_gemm(bench, "gemm ");
  bench.ctx.kernels->gemm_autotune.set_mode(bench.ctx.kernel_context(), AutotuneMode::UseAtOnce);
  bench_gemm(bench, "measured gemm ");
  bench_fp8(bench, "fp8 gemm ");
  bench_fp8_experts(bench);
  bench_ceilings(bench);  // again: a warm GPU may run slower than at the beginning
  return 0;
}
