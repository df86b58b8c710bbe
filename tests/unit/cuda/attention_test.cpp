#include "megatron/kernels/attention_dispatch.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

struct Case {
  const char* name;
  int64_t batch = 2, heads = 4, kv_heads = 2, queries = 70, keys = 70, d = 64, dv = 64;
  bool causal = true;
  int64_t window_left = -1, window_right = -1;
  double softcap = 0, dropout = 0;
  bool sinks = false;
  int bias = 0;  // 1: one for all; 2: per batch and head
  bool packed = false;
  bool own_keys = false;   // packed sequences have as many keys as queries
  bool any_order = false;  // of the sums in the backward pass
  bool fused = false;      // q, k and v are slices of one tensor
  int64_t query_chunk = -1, key_chunk = 0, row_length = 0, query_chunks = 1;  // of longer sequences
};

class CudaAttention : public Twin {
 protected:
  void check(Case c, DType dtype) {
    if (sanitized()) {
      c.batch = c.packed ? c.batch : 1, c.heads = 2, c.kv_heads = 1;
      if (size_of(dtype) > 2)
        c.queries = std::min<int64_t>(c.queries, 75), c.keys = std::min<int64_t>(c.keys, 75);
    }
    DType wide = accumulation_dtype(dtype);
    std::vector<int32_t> cu_q{0}, cu_k{0};
    for (int64_t b = 0; b < c.batch; ++b) {
      cu_q.push_back(static_cast<int32_t>(cu_q.back() + (c.packed ? c.queries - 13 * b : c.queries)));
      cu_k.push_back(static_cast<int32_t>(cu_k.back() + (c.packed ? c.keys - 5 * b : c.keys)));
    }
    if (c.own_keys) cu_k = cu_q;
    int64_t query_tokens = cu_q.back(), key_tokens = cu_k.back();
    Both q = uniform({query_tokens, c.heads, c.d}, dtype, -2, 2),
         k = uniform({key_tokens, c.kv_heads, c.d}, dtype, -2, 2);
    Both v = uniform({key_tokens, c.kv_heads, c.dv}, dtype);
    if (c.fused) {
      Both all = uniform({query_tokens, c.heads + 2 * c.kv_heads, c.d}, dtype, -2, 2);
      auto part = [&](int64_t begin, int64_t end) {
        return all.map([&](const Tensor& x) { return x.slice(1, begin, end); });
      };
      q = part(0, c.heads);
      k = part(c.heads, c.heads + c.kv_heads);
      v = part(c.heads + c.kv_heads, c.heads + 2 * c.kv_heads);
    }
    Both o = output({query_tokens, c.heads, c.dv}, dtype), lse = output({c.heads, query_tokens}, wide);
    Both sinks = c.sinks ? uniform({c.heads}, dtype, -1, 2) : Both{};
    Shape bias_shape =
        c.bias == 2 ? Shape{c.batch, c.heads, c.queries, c.keys} : Shape{1, 1, c.queries, c.keys};
    Both bias = c.bias ? uniform(bias_shape, dtype) : Both{};
    Both cu_queries = c.packed ? on_both(cpu.from_vector(cu_q, {c.batch + 1})) : Both{};
    Both cu_keys = c.own_keys ? cu_queries
                   : c.packed ? on_both(cpu.from_vector(cu_k, {c.batch + 1}))
                              : Both{};
    Both offset = on_both(cpu.from_vector(std::vector<int64_t>{7 << 24}, {1}));  // of random numbers
    auto forward = [&](auto on) {
      return AttentionArgs{.q = on(q),
                           .k = on(k),
                           .v = on(v),
                           .o = on(o),
                           .lse = on(lse),
                           .batch = c.batch,
                           .cu_queries = on(cu_queries),
                           .cu_keys = on(cu_keys),
                           .max_queries = c.packed ? c.queries : 0,
                           .max_keys = c.packed ? c.keys : 0,
                           .scale = 0.125,
                           .causal = c.causal,
                           .window_left = c.window_left,
                           .window_right = c.window_right,
                           .softcap = c.softcap,
                           .sinks = on(sinks),
                           .bias = on(bias),
                           .dropout = c.dropout,
                           .dropout_key = {3, 4, static_cast<const int64_t*>(on(offset).raw())},
                           .offsets = {.batch_begin = 5,
                                       .head_begin = 1,
                                       .global_heads = 16,
                                       .query_chunk = c.query_chunk,
                                       .key_chunk = c.key_chunk,
                                       .row_length = c.row_length,
                                       .query_chunks = c.query_chunks}};
    };
    std::string what = std::string(c.name) + " " + label(dtype);
    run(&KernelTable::attention, forward);
    // Tensor cores take probabilities and their gradients as 16-bit numbers: half a unit in the last place of
    // each term.
    bool narrow = dtype == DType::BF16 || dtype == DType::F16;
    double slack = dtype == DType::F64   ? 1e-11
                   : dtype == DType::F32 ? 2e-5
                   : dtype == DType::F16 ? 1e-3
                                         : 8e-3;
    auto compare = [&](const Both& x, const char* name) {
      if (narrow)
        alike(x, slack, std::string(name) + " of " + what);
      else
        same(x, slack, std::string(name) + " of " + what);
    };
    compare(o, "o");
    same(lse, dtype == DType::F64 ? 1e-12 : 1e-5, "lse of " + what);

    // Both go on from the same forward results.
    o = on_both(o.cpu);
    lse = on_both(lse.cpu);
    Both grad = uniform({query_tokens, c.heads, c.dv}, dtype),
         dq = output({query_tokens, c.heads, c.d}, dtype);
    Both dk = output({key_tokens, c.kv_heads, c.d}, dtype),
         dv = output({key_tokens, c.kv_heads, c.dv}, dtype);
    Both dsinks = c.sinks ? uniform({c.heads}, wide) : Both{},
         dbias = c.bias ? output(bias_shape, wide) : Both{};
    run(&KernelTable::attention_backward, [&](auto on) {
      return AttentionBackwardArgs{forward(on), on(grad),  on(dq), on(dk),      on(dv),
                                   on(dsinks),  on(dbias), true,   !c.any_order};
    });
    compare(dq, "dq");
    compare(dk, "dk");
    compare(dv, "dv");
    if (c.sinks) compare(dsinks, "dsinks");
    if (c.bias) compare(dbias, "dbias");
  }
};

const Case kCases[] = {
    {.name = "causal"},
    {.name = "full", .causal = false},
    {.name = "one query", .queries = 1, .keys = 90},
    {.name = "longer keys", .queries = 40, .keys = 150},
    {.name = "shorter keys", .queries = 90, .keys = 60},
    {.name = "several tiles", .queries = 200, .keys = 200},
    {.name = "window", .queries = 200, .keys = 200, .window_left = 33},
    {.name = "two-sided window",
     .queries = 150,
     .keys = 150,
     .causal = false,
     .window_left = 20,
     .window_right = 9},
    {.name = "softcap", .softcap = 5},
    {.name = "sinks", .sinks = true},
    {.name = "sinks and window", .queries = 130, .keys = 130, .window_left = 16, .sinks = true},
    {.name = "one bias", .bias = 1},
    {.name = "bias per head", .causal = false, .bias = 2},
    {.name = "dropout", .dropout = 0.25},
    {.name = "packed", .batch = 3, .queries = 90, .keys = 90, .packed = true},
    {.name = "packed with window and sinks",
     .batch = 3,
     .queries = 150,
     .keys = 160,
     .window_left = 40,
     .sinks = true,
     .packed = true},
    {.name = "all at once",
     .queries = 96,
     .keys = 110,
     .window_left = 50,
     .softcap = 8,
     .dropout = 0.2,
     .sinks = true,
     .bias = 1},
    {.name = "one kv head", .heads = 6, .kv_heads = 1},
    {.name = "head 128", .queries = 130, .keys = 130, .d = 128, .dv = 128},
    {.name = "head 40", .d = 40, .dv = 40},
    {.name = "odd head", .d = 33, .dv = 21},
    {.name = "mla", .kv_heads = 4, .d = 192, .dv = 128},
    {.name = "head 256", .queries = 100, .keys = 100, .d = 256, .dv = 256},
    {.name = "slices of one tensor", .queries = 100, .keys = 100, .fused = true},
    {.name = "the same chunk", .queries = 96, .keys = 96, .dropout = 0.2, .query_chunk = 3, .key_chunk = 3},
    {.name = "an earlier chunk", .queries = 96, .keys = 96, .dropout = 0.2, .query_chunk = 3, .key_chunk = 1},
    {.name = "an earlier chunk and a window",
     .queries = 96,
     .keys = 96,
     .window_left = 120,
     .query_chunk = 3,
     .key_chunk = 2},
    {.name = "a later chunk, both ways",
     .queries = 80,
     .keys = 80,
     .causal = false,
     .window_left = 20,
     .window_right = 100,
     .query_chunk = 1,
     .key_chunk = 2},
    {.name = "a chunk against whole sequences",
     .queries = 40,
     .keys = 160,
     .window_left = 70,
     .dropout = 0.2,
     .query_chunk = 2},
    {.name = "packed chunks",
     .batch = 3,
     .queries = 90,
     .keys = 90,
     .dropout = 0.2,
     .packed = true,
     .query_chunk = 2,
     .key_chunk = 1,
     .row_length = 400,
     .query_chunks = 4},
};
// Long enough for cuDNN, where there is one.
const Case kLongCases[] = {
    {.name = "long chunk", .batch = 2, .queries = 256, .keys = 256, .query_chunk = 1, .key_chunk = 1},
    {.name = "long causal", .batch = 2, .queries = 512, .keys = 512, .d = 128, .dv = 128},
    {.name = "long mla", .batch = 2, .kv_heads = 4, .queries = 512, .keys = 512, .d = 192, .dv = 128},
    {.name = "long mla, in any order",
     .batch = 1,
     .kv_heads = 4,
     .queries = 300,
     .keys = 300,
     .d = 192,
     .dv = 128,
     .any_order = true},
    {.name = "long packed mla",
     .batch = 3,
     .kv_heads = 4,
     .queries = 400,
     .keys = 400,
     .d = 192,
     .dv = 128,
     .packed = true,
     .own_keys = true},
    {.name = "long head 80", .batch = 2, .queries = 320, .keys = 320, .d = 80, .dv = 80},
    {.name = "long head 96", .batch = 1, .queries = 300, .keys = 300, .d = 96, .dv = 96, .any_order = true},
    {.name = "long head 256", .batch = 2, .queries = 384, .keys = 384, .d = 256, .dv = 256},
    {.name = "long head 256, in any order",
     .batch = 1,
     .queries = 300,
     .keys = 300,
     .d = 256,
     .dv = 256,
     .any_order = true},
    {.name = "long head 64", .batch = 1, .queries = 384, .keys = 384},
    {.name = "long window", .batch = 1, .queries = 512, .keys = 512, .window_left = 100},
    {.name = "long full", .batch = 2, .queries = 256, .keys = 320, .causal = false},
    {.name = "long against a cache", .batch = 2, .queries = 256, .keys = 512},
    {.name = "long packed", .batch = 5, .queries = 300, .keys = 300, .packed = true, .own_keys = true},
    {.name = "long packed, in any order, slices of one tensor",
     .batch = 3,
     .queries = 517,
     .keys = 517,
     .d = 128,
     .dv = 128,
     .packed = true,
     .own_keys = true,
     .any_order = true,
     .fused = true},
    {.name = "long packed window",
     .batch = 3,
     .queries = 400,
     .keys = 400,
     .window_left = 77,
     .packed = true,
     .own_keys = true},
    {.name = "long packed, both ways",
     .batch = 2,
     .heads = 6,
     .kv_heads = 6,
     .queries = 350,
     .keys = 350,
     .causal = false,
     .packed = true,
     .own_keys = true},
};

TEST_F(CudaAttention, Fp64) {
  for (const Case& c : kCases) check(c, DType::F64);
}
TEST_F(CudaAttention, Fp32) {
  for (const Case& c : kCases) check(c, DType::F32);
}
TEST_F(CudaAttention, Bf16) {
  for (const Case& c : kCases) check(c, DType::BF16);
}
TEST_F(CudaAttention, Fp16) {
  for (const Case& c : kCases) check(c, DType::F16);
}

TEST_F(CudaAttention, Long) {
  for (DType dtype : floats())
    for (const Case& c : kLongCases) check(c, dtype);
}

TEST_F(CudaAttention, Merge) {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16}) {
    DType wide = accumulation_dtype(dtype);
    Both o = uniform({50, 3, 24}, wide), lse = uniform({3, 50}, wide, -2, 2);
    Both part = uniform({50, 3, 24}, dtype), part_lse = uniform({3, 50}, wide, -2, 2);
    run(&KernelTable::attention_merge, [&](auto on) {
      return AttentionMergeArgs{.o = on(o), .lse = on(lse), .part_o = on(part), .part_lse = on(part_lse)};
    });
    same(o, dtype == DType::F64 ? 1e-12 : 1e-5, "o of merge " + label(dtype));
    same(lse, dtype == DType::F64 ? 1e-12 : 1e-5, "lse of merge " + label(dtype));
  }
}

TEST_F(CudaAttention, BackwardIsBitwiseRepeatable) {
  Both q = uniform({512, 8, 64}, DType::BF16), k = uniform({512, 2, 64}, DType::BF16),
       v = uniform({512, 2, 64}, DType::BF16);
  RankContext& ctx = gpu();
  std::vector<std::vector<double>> first;
  for (int round = 0; round < 3; ++round) {
    Tensor o = ctx.empty({512, 8, 64}, DType::BF16), lse = ctx.empty({8, 512}, DType::F32);
    Tensor dq = ctx.empty({512, 8, 64}, DType::BF16), dk = ctx.empty({512, 2, 64}, DType::BF16),
           dv = ctx.empty({512, 2, 64}, DType::BF16);
    AttentionArgs forward{.q = q.gpu, .k = k.gpu, .v = v.gpu, .o = o, .lse = lse, .scale = 0.125};
    ctx.kernels->attention(ctx.kernel_context(), forward);
    ctx.kernels->attention_backward(ctx.kernel_context(),
                                    {.forward = forward, .grad_o = o, .dq = dq, .dk = dk, .dv = dv});
    std::vector<std::vector<double>> results{values(ctx, o), values(ctx, dq), values(ctx, dk),
                                             values(ctx, dv)};
    if (round == 0)
      first = results;
    else
      EXPECT_EQ(results, first) << "round " << round;
  }
}

// What a plan made on the meta device counts on for the time of the backward pass.
TEST_F(CudaAttention, ScratchMemoryIsPredicted) {
  struct Sizes {
    int64_t batch, heads, kv_heads, length, d, dv;
  };
  RankContext plan(Device{DeviceType::Meta, 0});
  const auto held_by = [](RankContext& ctx, const Sizes& s, bool deterministic) {
    auto make = [&](int64_t n, int64_t d) { return ctx.empty({s.batch * s.length, n, d}, DType::BF16); };
    Tensor q = make(s.heads, s.d), k = make(s.kv_heads, s.d), v = make(s.kv_heads, s.dv),
           o = make(s.heads, s.dv), dq = make(s.heads, s.d), dk = make(s.kv_heads, s.d),
           dv = make(s.kv_heads, s.dv), lse = ctx.empty({s.heads, s.batch * s.length}, DType::F32);
    for (const Tensor& x : {q, k, v, o, lse}) ctx.kernels->fill(ctx.kernel_context(), {x, 0.0});
    const AttentionBackwardArgs args{
        .forward = {.q = q, .k = k, .v = v, .o = o, .lse = lse, .batch = s.batch, .scale = 0.125},
        .grad_o = o,
        .dq = dq,
        .dk = dk,
        .dv = dv,
        .deterministic = deterministic};
    const bool fused =
        !ctx.device.is_cuda() || probe_attention(ctx.kernel_context(), args).backward.kernel == "cuDNN";
    ctx.allocator->reset_peaks();
    ctx.kernels->attention_backward(ctx.kernel_context(), args);
    const size_t peak = ctx.allocator->statistics().by_tag[static_cast<int>(MemoryTag::Workspace)].peak;
    return fused ? static_cast<double>(peak) : -1.0;
  };
  for (const Sizes& s : {Sizes{2, 8, 2, 2048, 64, 64},
                         {3, 4, 4, 1000, 64, 64},
                         {2, 8, 2, 2048, 128, 128},
                         {3, 4, 4, 1000, 128, 128},
                         {2, 8, 8, 2048, 192, 128},
                         {2, 4, 4, 1000, 192, 128},
                         {2, 8, 2, 2048, 96, 96},
                         {2, 8, 2, 2048, 256, 256}})
    for (bool deterministic : {true, false}) {
      const double held = held_by(gpu(), s, deterministic), predicted = held_by(plan, s, deterministic);
      if (held < 0) GTEST_SKIP() << "no cuDNN here";
      EXPECT_NEAR(held, predicted, 0.05 * predicted)
          << s.batch << " x " << s.length << ", heads of " << s.d << " and " << s.dv;
    }
}

}  // namespace
}  // namespace megatron::testing
