#include <vector>

#include "megatron/kernels/cpu/isa/dot_gemm.h"
#include "megatron/kernels/cpu/isa/packed_gemm.h"
#include "megatron/kernels/cpu/isa/scratch.h"
#include "megatron/kernels/cpu/isa/stream_gemm.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// GEMM of the last two dimensions at one index of the first.
GemmProblem problem_of(const Tensor& a, const Tensor& b, const Tensor& c) {
  return {.m = c.size(-2),
          .n = c.size(-1),
          .k = a.size(-1),
          .in = a.dtype(),
          .out = c.dtype(),
          .a = a.raw(),
          .a_row = a.stride(-2),
          .a_column = a.stride(-1),
          .b = b.raw(),
          .b_row = b.stride(-2),
          .b_column = b.stride(-1),
          .c = c.raw(),
          .c_row = c.stride(-2),
          .c_column = c.stride(-1)};
}

// Batch invariance asks for sums that do not know how many rows there are, which libraries do not promise.
bool by_library(const KernelContext& ctx, const GemmProblem& p) {
  return !ctx.batch_invariant && library_supports(p);
}

// Streamed bf16 sums otherwise than what takes more rows does.
bool by_stream(const KernelContext& ctx, const GemmProblem& p) {
  return !ctx.batch_invariant && streams_bf16(p);
}

bool by_dots(const KernelContext& ctx, const GemmProblem& p) {
  return ctx.batch_invariant && dot_gemm_supports(p);
}

void cut_evenly(const GemmProblem& p, int64_t rows, int64_t columns, std::vector<GemmProblem>& tasks) {
  for (int64_t j = 0; j < p.n; j += columns)
    for (int64_t i = 0; i < p.m; i += rows)
      tasks.push_back(p.part(i, std::min(rows, p.m - i), j, std::min(columns, p.n - j)));
}

// Cuts a GEMM into tasks: a few per thread, to even out unequal speeds, each large enough for the library
// to reach its full speed. Along the longer side, so that the smaller operand is the one packed for each
// task.
void cut(const KernelContext& ctx, const GemmProblem& p, int width, std::vector<GemmProblem>& tasks) {
  if (p.m == 0 || p.n == 0) return;
  if (by_library(ctx, p)) {
    constexpr int64_t grain = 32, smallest = 96;
    constexpr double min_flops = 2e6;
    int64_t longer = std::max(p.m, p.n);
    double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    auto by_flops = static_cast<int64_t>(std::min(flops / min_flops, 1e9));
    int64_t most = library_sums_by_shape() ? 16 : width == 1 ? 1 : 4 * width;
    most = std::min(most, std::max<int64_t>(by_flops, 1));
    int64_t pieces = std::clamp<int64_t>(longer / smallest, 1, most);
    int64_t step = round_up((longer + pieces - 1) / pieces, grain);
    for (int64_t begin = 0; begin < longer; begin += step) {
      int64_t count = std::min(step, longer - begin);
      tasks.push_back(p.m >= p.n ? p.part(begin, count, 0, p.n) : p.part(0, p.m, begin, count));
    }
    return;
  }
  if (by_dots(ctx, p)) return cut_evenly(p, kDotRows, kDotColumns, tasks);
  cut_evenly(p, kTaskRows, kTaskColumns, tasks);
}

void run_task(const KernelContext& ctx, const GemmProblem& p) {
  if (by_library(ctx, p)) return library_run(p);
  if (by_dots(ctx, p)) return dot_gemm(p);
  dispatch_float("gemm", p.in, [&]<class In>(Type<In>) { packed_gemm<In>(ctx, p); });
}

void run_all(const KernelContext& ctx, const std::vector<GemmProblem>& tasks) {
  ctx.pool.parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_task(ctx, tasks[static_cast<size_t>(i)]);
  });
}

// Few rows of fp32: the time is that of reading b.
void stream_dots(const KernelContext& ctx, const GemmProblem& p) {
  const ReadStream weights{p.b, p.b_column * static_cast<int64_t>(sizeof(float))};
  ctx.pool.parallel_for(p.n, 16, weights,
                        [&](int64_t begin, int64_t end) { dot_gemm(p.part(0, p.m, begin, end - begin)); });
}

void gemm(const KernelContext& ctx, const GemmArgs& args);

// Through fp32: the CPU has no fp8 GEMM.
void fp8_gemm(const KernelContext& ctx, const GemmArgs& args) {
  const KernelTable& kernels = kernels_for(kCpu);
  auto widen = [&](const Tensor& x, const Tensor& scale, int64_t block_rows, void* memory) {
    Tensor wide = Tensor::wrap(memory, x.shape(), DType::F32, x.device());
    kernels.dequantize(ctx, {.q = x,
                             .inverse_scale = scale,
                             .x = wide,
                             .block_rows = block_rows,
                             .block_columns = block_rows ? 128 : 0});
    return wide;
  };
  Scratch<float> a(ctx, args.a.numel()), b(ctx, args.b.numel());
  Scratch<float> c(ctx, args.c.dtype() == DType::F32 ? 1 : args.c.numel());
  GemmArgs wide = args;
  wide.a = widen(args.a, args.a_scale, args.a_block_rows, a.data());
  wide.b = widen(args.b.transpose(0, 1), args.b_scale.transpose(0, 1), args.b_block_rows, b.data())
               .transpose(0, 1);
  wide.bias = {};
  if (args.c.dtype() != DType::F32) {
    wide.c = Tensor::wrap(c.data(), args.c.shape(), DType::F32, args.c.device());
    if (args.beta != 0) kernels.copy(ctx, {args.c, wide.c});
  }
  gemm(ctx, wide);
  if (args.c.dtype() != DType::F32) kernels.copy(ctx, {wide.c, args.c});
  if (args.bias) kernels.binary(ctx, {Binary::Add, args.c, args.bias.expand(args.c.shape()), args.c});
}

// Expert by expert: offsets can be read here.
void check_fp8_offsets(const Tensor& offsets, bool blocks) {
  const int32_t alignment = blocks ? 128 : 16;
  for (int64_t e = 0; e < offsets.size(0); ++e)
    require(pointer<int32_t>(offsets)[e] % alignment == 0,
            "grouped_gemm: rows of expert {} begin at {}, but those in fp8 begin at multiples of {}", e,
            pointer<int32_t>(offsets)[e], alignment);
}

void fp8_grouped_gemm(const KernelContext& ctx, const GroupedGemmArgs& args) {
  check_fp8_offsets(args.offsets, args.blocks);
  const int32_t* offsets = pointer<int32_t>(args.offsets);
  for (int64_t e = 0; e < args.b.size(0); ++e) {
    const int64_t begin = offsets[e], end = offsets[e + 1];
    if (begin == end) continue;
    const auto of_expert = [&](const Tensor& scale) { return scale.slice(0, e, e + 1).view({1, 1}); };
    fp8_gemm(ctx, {.a = args.a.slice(0, begin, end),
                   .b = args.b.select(0, e),
                   .c = args.c.slice(0, begin, end),
                   .a_scale = args.blocks ? args.a_scale.slice(0, begin, end) : of_expert(args.a_scale),
                   .b_scale = args.blocks ? args.b_scale.select(0, e) : of_expert(args.b_scale),
                   .a_block_rows = args.blocks ? 1 : 0,
                   .b_block_rows = args.blocks ? 128 : 0});
  }
}

void fp8_grouped_gemm_weight(const KernelContext& ctx, const GroupedGemmWeightArgs& args) {
  check_fp8_offsets(args.offsets, args.blocks);
  const int32_t* offsets = pointer<int32_t>(args.offsets);
  const KernelTable& kernels = kernels_for(kCpu);
  Scratch<uint8_t> a(ctx, args.a.numel()), b(ctx, args.b.numel());
  for (int64_t e = 0; e < args.c.size(0); ++e) {
    const int64_t begin = offsets[e], end = offsets[e + 1];
    // [columns, the expert's rows], without gaps.
    const auto turned = [&](const Tensor& x, uint8_t* memory) {
      const Tensor own = Tensor::wrap(memory, {x.size(1), end - begin}, x.dtype(), x.device());
      kernels.copy(ctx, {x.slice(0, begin, end).transpose(0, 1), own});
      return own;
    };
    const auto of_expert = [&](const Tensor& scale) {
      return args.blocks ? scale.slice(1, begin / 128, end / 128) : scale.slice(0, e, e + 1).view({1, 1});
    };
    fp8_gemm(ctx, {.a = turned(args.a, a.data()),
                   .b = turned(args.b, b.data()).transpose(0, 1),
                   .c = args.c.select(0, e),
                   .beta = args.beta,
                   .a_scale = of_expert(args.a_scale),
                   .b_scale = of_expert(args.b_scale).transpose(0, 1),
                   .a_block_rows = args.blocks ? 1 : 0,
                   .b_block_rows = args.blocks ? 1 : 0});
  }
}

template <class Stream>
void narrow_gemm(const KernelContext& ctx, const GemmProblem& p, const Tensor& scales) {
  const auto* scale = pointer<typename Stream::Scale>(scales);
  if (p.in == DType::F32) return stream_gemm<Stream, float, float>(ctx, p, scale);
  if (p.in == DType::BF16) return stream_gemm<Stream, bf16, bf16>(ctx, p, scale);
  reject_dtype("gemm with narrow weights", p.in);
}

void gemm(const KernelContext& ctx, const GemmArgs& args) {
  if (is_fp8(args.a.dtype())) return fp8_gemm(ctx, args);
  std::vector<GemmProblem> tasks;
  GemmProblem p = problem_of(args.a, args.b, args.c);
  p.alpha = args.alpha;
  p.beta = args.beta;
  if (args.bias.defined()) p.bias = args.bias.raw();
  if (args.b.dtype() == DType::I8) return narrow_gemm<Int8Stream>(ctx, p, args.b_scale);
  if (args.b.dtype() == kInt4) return narrow_gemm<Int4Stream>(ctx, p, args.b_scale);
  if (args.c.rank() == 2) {
    if (by_stream(ctx, p)) return stream_bf16(ctx, p);
    if (by_dots(ctx, p) && p.m <= kStreamRows) return stream_dots(ctx, p);
    cut(ctx, p, ctx.pool.width(), tasks);
  } else {
    int64_t batch = args.c.size(0);
    auto in_size = static_cast<int64_t>(size_of(p.in)), out_size = static_cast<int64_t>(size_of(p.out));
    int width = batch >= ctx.pool.width() ? 1 : ctx.pool.width();
    for (int64_t i = 0; i < batch; ++i) {
      GemmProblem one = p;
      one.a = static_cast<const char*>(p.a) + i * args.a.stride(0) * in_size;
      one.b = static_cast<const char*>(p.b) + i * args.b.stride(0) * in_size;
      one.c = static_cast<char*>(p.c) + i * args.c.stride(0) * out_size;
      cut(ctx, one, width, tasks);
    }
  }
  run_all(ctx, tasks);
}

void grouped_gemm(const KernelContext& ctx, const GroupedGemmArgs& args) {
  if (is_fp8(args.a.dtype())) return fp8_grouped_gemm(ctx, args);
  const int32_t* offsets = pointer<int32_t>(args.offsets);
  std::vector<GemmProblem> tasks;
  for (int64_t e = 0; e < args.b.size(0); ++e) {
    Tensor a = args.a.slice(0, offsets[e], offsets[e + 1]), c = args.c.slice(0, offsets[e], offsets[e + 1]);
    const GemmProblem p = problem_of(a, args.b.select(0, e), c);
    if (by_stream(ctx, p))
      stream_bf16(ctx, p);
    else
      cut(ctx, p, ctx.pool.width(), tasks);
  }
  run_all(ctx, tasks);
}

void grouped_gemm_weight(const KernelContext& ctx, const GroupedGemmWeightArgs& args) {
  if (is_fp8(args.a.dtype())) return fp8_grouped_gemm_weight(ctx, args);
  const int32_t* offsets = pointer<int32_t>(args.offsets);
  std::vector<GemmProblem> tasks;
  for (int64_t e = 0; e < args.c.size(0); ++e) {
    Tensor a = args.a.slice(0, offsets[e], offsets[e + 1]), b = args.b.slice(0, offsets[e], offsets[e + 1]);
    GemmProblem p = problem_of(a.transpose(0, 1), b, args.c.select(0, e));
    p.beta = args.beta;
    cut(ctx, p, ctx.pool.width(), tasks);
  }
  run_all(ctx, tasks);
}

}  // namespace

void add_gemm_kernels(KernelTable& table) {
  table.gemm = gemm;
  table.grouped_gemm = grouped_gemm;
  table.grouped_gemm_weight = grouped_gemm_weight;
}

}  // namespace megatron::cpu::MEGATRON_ISA
