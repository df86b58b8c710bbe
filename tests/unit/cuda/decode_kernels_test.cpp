// Kernels of a decoder's step: GEMMs of few rows, attention of one query to keys in blocks, rotation into the
// cache, the largest logit.
#include <array>
#include <limits>

#include "megatron/device/graph.h"
#include "megatron/kernels/fp8_pages.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaDecode : public Twin {
 protected:
  static std::vector<DType> narrow() { return some_of({DType::BF16, DType::F16}); }
};

struct Sizes {
  int64_t n, k;
};
// Fewer columns than a block makes, edges, K of fewer pieces than warps, of many, and unevenly shared, and
// more columns than the GPU makes at once.
const std::vector<Sizes> kSizes = {{5, 32},     {40, 96},   {16, 256},  {100, 544},
                                   {256, 2080}, {48, 8192}, {20001, 96}};

TEST_F(CudaDecode, GemmOfFewRows) {
  for (DType dtype : narrow())
    for (auto [n, k] : kSizes)
      for (int64_t rows : {1, 2, 7, 8, 9, 16, 17})
        for (bool biased : {false, true}) {
          Both x = uniform({rows, k}, dtype), w = uniform({n, k}, dtype);
          Both y = output({rows, n}, dtype), bias = biased ? uniform({n}, dtype, -9, 9) : Both{};
          run(&KernelTable::gemm, [&](auto on) {
            return GemmArgs{.a = on(x), .b = on(w).transpose(0, 1), .c = on(y), .bias = on(bias)};
          });
          same(y, fmt::format("{} x {} x {}", rows, n, k) + label(dtype));
        }
}

// Parts of wider tensors, as a projection's are.
TEST_F(CudaDecode, GemmOfRowsApart) {
  const auto left = [](const Tensor& x) { return x.slice(1, 0, x.size(1) / 2); };
  Both x = uniform({3, 128}, DType::BF16), w = uniform({24, 128}, DType::BF16);
  Both y = output({3, 48}, DType::BF16);
  run(&KernelTable::gemm, [&](auto on) {
    return GemmArgs{.a = left(on(x)), .b = left(on(w)).transpose(0, 1), .c = left(on(y))};
  });
  same(y, "left halves");
}

// What a row becomes does not depend on how many there are.
TEST_F(CudaDecode, RowsOfAGemmAreAlone) {
  Both x = uniform({16, 544}, DType::BF16), w = uniform({100, 544}, DType::BF16);
  const auto product = [&](int64_t begin, int64_t end) {
    Tensor y = gpu().empty({end - begin, 100}, DType::BF16);
    gpu().kernels->gemm(gpu().kernel_context(),
                        {.a = x.gpu.slice(0, begin, end), .b = w.gpu.transpose(0, 1), .c = y});
    return values(gpu(), y);
  };
  const std::vector<double> all = product(0, 16);
  for (int64_t row = 0; row < 16; ++row) {
    const std::vector<double> alone = product(row, row + 1);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + row * 100)) << "row " << row;
  }
}

TEST_F(CudaDecode, SwigluOfFewRows) {
  for (auto [n, k] : kSizes)
    for (int64_t rows : {1, 8, 9, 16}) {
      Both a = uniform({rows, k}, DType::BF16), b = uniform({2 * n, k}, DType::BF16, -0.2, 0.2);
      Both x = output({rows, 2 * n}, DType::BF16), y = output({rows, n}, DType::BF16);
      ASSERT_TRUE(gpu().kernels->gemm_swiglu(gpu().kernel_context(), {a.gpu, b.gpu, x.gpu, y.gpu}));
      Tensor active = gpu().empty_like(y.gpu);
      gpu().kernels->gated(gpu().kernel_context(), {.x = x.gpu, .y = active});
      EXPECT_TRUE(values(gpu(), y.gpu) == values(gpu(), active)) << rows << " x " << n << " x " << k;
      cpu.kernels->gemm(cpu.kernel_context(), {a.cpu, b.cpu.transpose(0, 1), x.cpu});
      same(x, fmt::format("{} x {} x {}", rows, n, k));
    }
}

// Layers whose kernels start before those in front of them are done, one by one and as a CUDA graph: each
// reads what the last one has just written, in memory that an earlier one had.
TEST_F(CudaDecode, PdlKernelsReadWhatIsThere) {
  constexpr int64_t hidden = 256, inner = 7680, layers = 4;
  RankContext& ctx = gpu();
  std::vector<std::array<Tensor, 3>> weights;
  for (int64_t i = 0; i < layers; ++i)
    weights.push_back({uniform({hidden}, DType::BF16, 0.5, 1.5).gpu,
                       uniform({2 * inner, hidden}, DType::BF16, -0.1, 0.1).gpu,
                       uniform({hidden, inner}, DType::BF16, -0.1, 0.1).gpu});
  for (int64_t rows : {1, 16, 64}) {
    const Tensor x = uniform({rows, hidden}, DType::BF16).gpu;
    const Tensor last = ctx.empty({rows, hidden}, DType::BF16), found = ctx.empty({rows}, DType::I64);
    const auto compute = [&] {
      Tensor stream = x, update = x;
      for (const auto& [norm, fc1, fc2] : weights) {
        Tensor sum = ctx.empty_like(x), y = ctx.empty_like(x);
        ctx.kernels->norm(ctx.kernel_context(),
                          {.x = stream, .residual = update, .weight = norm, .y = y, .sum = sum});
        Tensor both = ctx.empty({rows, 2 * inner}, DType::BF16),
               active = ctx.empty({rows, inner}, DType::BF16);
        ASSERT_TRUE(ctx.kernels->gemm_swiglu(ctx.kernel_context(), {y, fc1, both, active, true}));
        stream = sum;
        update = ctx.empty_like(x);
        ctx.kernels->gemm(ctx.kernel_context(),
                          {.a = active, .b = fc2.transpose(0, 1), .c = update, .static_b = true});
      }
      ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, stream, update, last});
      ASSERT_TRUE(ctx.kernels->argmax(ctx.kernel_context(), {last, found}));
    };
    const auto result = [&] {
      std::vector<double> all = values(ctx, last);
      for (int64_t token : ctx.to_vector<int64_t>(found)) all.push_back(static_cast<double>(token));
      ctx.kernels->fill(ctx.kernel_context(), {last, 0});
      return all;
    };
    compute();
    const std::vector<double> expected = result();
    ctx.pdl = true;
    for (int i = 0; i < 20; ++i) {
      compute();
      ASSERT_TRUE(result() == expected) << rows << " rows, time " << i;
    }
    {
      const auto own = std::make_shared<Allocator>(ctx.runtime);  // outlives the graph's memory
      const auto before = std::exchange(ctx.allocator, own);
      const CudaGraph graph(ctx.runtime, ctx.stream, *own, compute);
      ctx.allocator = before;
      for (int i = 0; i < 20; ++i) {
        graph.run(ctx.stream);
        ASSERT_TRUE(result() == expected) << rows << " rows, graph, time " << i;
      }
    }
    ctx.pdl = false;
  }
}

struct PagedCase {
  const char* name;
  int64_t heads = 8, kv_heads = 2, d = 64, dv = 64;
  int64_t window = -1;
  double softcap = 0;
  bool sinks = false;
  int64_t block_size = 16;
};
const PagedCase kPagedCases[] = {
    {.name = "groups of four"},
    {.name = "a KV head each", .kv_heads = 8},
    {.name = "pairs", .kv_heads = 4},
    {.name = "one KV head", .kv_heads = 1},
    {.name = "groups of twelve", .heads = 24},
    {.name = "groups of three", .heads = 6},
    {.name = "head 128", .d = 128, .dv = 128},
    {.name = "head 128, one KV head", .kv_heads = 1, .d = 128, .dv = 128},
    {.name = "head 256", .kv_heads = 1, .d = 256, .dv = 256},
    {.name = "head 8", .d = 8, .dv = 8},
    {.name = "head 80", .d = 80, .dv = 80},
    {.name = "narrower values", .d = 96, .dv = 64},
    {.name = "window", .window = 100},
    {.name = "softcap", .softcap = 3},
    {.name = "sinks", .sinks = true},
    {.name = "sinks and window", .window = 5, .sinks = true, .block_size = 3},
};

// Sequences with one query, and others, which another kernel takes; none too, as in a step of fewer.
TEST_F(CudaDecode, AttentionOfOneQuery) {
  const std::vector<int32_t> keys = {1, 700, 128, 129, 64, 300, 5};
  for (DType dtype : narrow())
    for (const PagedCase& c : kPagedCases)
      for (bool mixed : {false, true}) {
        const auto count = static_cast<int64_t>(keys.size());
        std::vector<int32_t> cu = {0};
        for (size_t i = 0; i < keys.size(); ++i)
          cu.push_back(cu.back() + (mixed && i == 1 ? 33 : mixed && i == 4 ? 0 : 1));
        const int64_t most = 1024 / c.block_size, pool = count * most;
        std::vector<int32_t> table(static_cast<size_t>(pool));
        for (int64_t i = 0; i < pool; ++i)  // 5 has no factor in common with pool: every block is used once
          table[static_cast<size_t>(i)] = static_cast<int32_t>(i * 5 % pool);
        Both q = uniform({cu.back(), c.heads, c.d}, dtype, -2, 2),
             k = uniform({pool * c.block_size, c.kv_heads, c.d}, dtype, -2, 2),
             v = uniform({pool * c.block_size, c.kv_heads, c.dv}, dtype);
        Both o = output({cu.back(), c.heads, c.dv}, dtype), lse = output({c.heads, cu.back()}, DType::F32);
        Both sinks = c.sinks ? uniform({c.heads}, dtype, -1, 2) : Both{};
        Both blocks = on_both(cpu.from_vector(table, {count, most})),
             lengths = on_both(cpu.from_vector(keys, {count})),
             cu_queries = on_both(cpu.from_vector(cu, {count + 1}));
        run(&KernelTable::attention, [&](auto on) {
          return AttentionArgs{.q = on(q),
                               .k = on(k),
                               .v = on(v),
                               .o = on(o),
                               .lse = on(lse),
                               .batch = count,
                               .cu_queries = on(cu_queries),
                               .max_queries = mixed ? 33 : 1,
                               .max_keys = 700,
                               .blocks = on(blocks),
                               .key_lengths = on(lengths),
                               .block_size = c.block_size,
                               .scale = 0.125,
                               .window_left = c.window,
                               .softcap = c.softcap,
                               .sinks = on(sinks)};
        });
        const std::string what = fmt::format("{}{} {}", c.name, mixed ? ", mixed" : "", label(dtype));
        alike(o, dtype == DType::F16 ? 1e-3 : 8e-3, "o of " + what);
        same(lse, 1e-5, "lse of " + what);
      }
}

// Cut less finely than few are, and more of them than the GPU counts splits for.
TEST_F(CudaDecode, AttentionOfManySequences) {
  constexpr int64_t heads = 8, d = 8, block = 64, most = 18;
  for (int64_t count : {17, 1100}) {
    std::vector<int32_t> table, keys, cu = {0};
    for (int32_t i = 0; i < count; ++i) {
      keys.push_back(1 + i * 37 % (most * block));
      cu.push_back(i + 1);
      for (int32_t at = 0; at < most; ++at) table.push_back((i * 7 + at) % 50);
    }
    Both q = uniform({count, heads, d}, DType::BF16), k = uniform({50 * block, heads, d}, DType::BF16),
         v = uniform({50 * block, heads, d}, DType::BF16);
    Both o = output({count, heads, d}, DType::BF16), lse = output({heads, count}, DType::F32);
    Both blocks = on_both(cpu.from_vector(table, {count, most})),
         lengths = on_both(cpu.from_vector(keys, {count})),
         cu_queries = on_both(cpu.from_vector(cu, {count + 1}));
    run(&KernelTable::attention, [&](auto on) {
      return AttentionArgs{.q = on(q),
                           .k = on(k),
                           .v = on(v),
                           .o = on(o),
                           .lse = on(lse),
                           .batch = count,
                           .cu_queries = on(cu_queries),
                           .max_queries = 1,
                           .max_keys = most * block,
                           .blocks = on(blocks),
                           .key_lengths = on(lengths),
                           .block_size = block,
                           .scale = 0.35};
    });
    alike(o, 8e-3, fmt::format("o of {}", count));
    same(lse, 1e-5, fmt::format("lse of {}", count));
  }
}

// How many keys there is room for, and what other sequences have, changes no bit.
TEST_F(CudaDecode, ASequenceIsAlone) {
  constexpr int64_t heads = 8, kv_heads = 2, d = 64, block = 64;
  Both q = uniform({3, heads, d}, DType::BF16), k = uniform({64 * block, kv_heads, d}, DType::BF16),
       v = uniform({64 * block, kv_heads, d}, DType::BF16);
  const auto attend = [&](const std::vector<int32_t>& keys, int64_t first, int64_t room) {
    const auto count = static_cast<int64_t>(keys.size()), most = room / block;
    std::vector<int32_t> table, cu = {0};
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t at = 0; at < most; ++at)
        table.push_back(static_cast<int32_t>((20 * (first + i) + at) % 64));
      cu.push_back(static_cast<int32_t>(i + 1));
    }
    RankContext& ctx = gpu();
    Tensor o = ctx.empty({count, heads, d}, DType::BF16), lse = ctx.empty({heads, count}, DType::F32);
    ctx.kernels->attention(ctx.kernel_context(), {.q = q.gpu.slice(0, first, first + count),
                                                  .k = k.gpu,
                                                  .v = v.gpu,
                                                  .o = o,
                                                  .lse = lse,
                                                  .batch = count,
                                                  .cu_queries = ctx.from_vector(cu, {count + 1}),
                                                  .max_queries = 1,
                                                  .max_keys = room,
                                                  .blocks = ctx.from_vector(table, {count, most}),
                                                  .key_lengths = ctx.from_vector(keys, {count}),
                                                  .block_size = block,
                                                  .scale = 0.125});
    return values(ctx, o);
  };
  const std::vector<double> together = attend({100, 577, 1000}, 0, 1024);
  const std::vector<std::pair<int32_t, int64_t>> alone = {{100, 128}, {577, 640}, {1000, 2048}};
  for (int64_t i = 0; i < 3; ++i) {
    const auto [keys, room] = alone[static_cast<size_t>(i)];
    const std::vector<double> one = attend({keys}, i, room);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), together.begin() + i * heads * d)) << "sequence " << i;
  }
}

TEST_F(CudaDecode, QueriesTurnAndKeysGoToTheCache) {
  for (DType dtype : floats())
    for (auto [heads, groups, d] : {std::array<int64_t, 3>{8, 2, 64}, {3, 3, 10}, {4, 1, 8}})
      for (bool rotates : {true, false}) {
        constexpr int64_t tokens = 5, rows = 12;
        Both qkv = uniform({tokens, (heads + 2 * groups) * d}, dtype), q = output({tokens, heads, d}, dtype),
             k = output({tokens, groups, d}, dtype), v = output({tokens, groups, d}, dtype),
             keys = output({rows, groups, d}, dtype), others = output({rows, groups, d}, dtype);
        const DType wide = accumulation_dtype(dtype);
        Both cos = rotates ? uniform({tokens, d / 2}, wide) : Both{},
             sin = rotates ? uniform({tokens, d / 2}, wide) : Both{};
        Both slots = on_both(cpu.from_vector(std::vector<int64_t>{7, 0, 11, 3, 4}, {tokens}));
        ASSERT_TRUE(gpu().kernels->qkv_cache(gpu().kernel_context(), {.qkv = qkv.gpu,
                                                                      .q = q.gpu,
                                                                      .keys = keys.gpu,
                                                                      .values = others.gpu,
                                                                      .slots = slots.gpu,
                                                                      .cos = cos.gpu,
                                                                      .sin = sin.gpu}));
        cpu.kernels->qkv_split(
            cpu.kernel_context(),
            {.qkv = qkv.cpu, .q = q.cpu, .k = k.cpu, .v = v.cpu, .cos = cos.cpu, .sin = sin.cpu});
        cpu.kernels->put_rows(cpu.kernel_context(), {k.cpu, slots.cpu, keys.cpu});
        cpu.kernels->put_rows(cpu.kernel_context(), {v.cpu, slots.cpu, others.cpu});
        same(q, "q " + label(dtype));
        same(keys, "keys " + label(dtype));
        same(others, 0, "values " + label(dtype));
      }
}

// The same into a pool of e4m3, with scales behind each row.
TEST_F(CudaDecode, KeysGoToACacheOfFp8) {
  for (DType dtype : floats())
    for (auto [heads, groups, d] : {std::array<int64_t, 3>{8, 2, 64}, {3, 3, 10}, {32, 8, 128}})
      for (bool rotates : {true, false}) {
        constexpr int64_t tokens = 5, rows = 12;
        const int64_t row_bytes = fp8_row_bytes(groups, d);
        Both qkv = uniform({tokens, (heads + 2 * groups) * d}, dtype), q = output({tokens, heads, d}, dtype),
             k = output({tokens, groups, d}, dtype), v = output({tokens, groups, d}, dtype);
        Both keys = on_both(cpu.zeros({rows, row_bytes}, DType::F8E4M3)),
             others = on_both(cpu.zeros({rows, row_bytes}, DType::F8E4M3));
        const auto pool = [&](const Tensor& x) { return x.slice(1, 0, groups * d).view({rows, groups, d}); };
        const DType wide = accumulation_dtype(dtype);
        Both cos = rotates ? uniform({tokens, d / 2}, wide) : Both{},
             sin = rotates ? uniform({tokens, d / 2}, wide) : Both{};
        Both slots = on_both(cpu.from_vector(std::vector<int64_t>{7, 0, 11, 3, 4}, {tokens}));
        ASSERT_TRUE(gpu().kernels->qkv_cache(gpu().kernel_context(), {.qkv = qkv.gpu,
                                                                      .q = q.gpu,
                                                                      .keys = pool(keys.gpu),
                                                                      .values = pool(others.gpu),
                                                                      .slots = slots.gpu,
                                                                      .cos = cos.gpu,
                                                                      .sin = sin.gpu}));
        cpu.kernels->qkv_split(
            cpu.kernel_context(),
            {.qkv = qkv.cpu, .q = q.cpu, .k = k.cpu, .v = v.cpu, .cos = cos.cpu, .sin = sin.cpu});
        cpu.kernels->put_rows(cpu.kernel_context(), {k.cpu, slots.cpu, pool(keys.cpu)});
        cpu.kernels->put_rows(cpu.kernel_context(), {v.cpu, slots.cpu, pool(others.cpu)});
        same(q, "q " + label(dtype));
        const auto bytes = [](const Both& x) {
          return x.map([](const Tensor& t) { return t.reinterpret(DType::U8); });
        };
        // Values are not turned, so their bytes are the same; a turned key may be rounded to its neighbour.
        same(bytes(others), 0, "values " + label(dtype));
        if (!rotates) same(bytes(keys), 0, "keys " + label(dtype));
        same(keys.map(pool), 0.13, "turned keys " + label(dtype));

        // Rows that are put by themselves.
        Both again = on_both(cpu.zeros({rows, row_bytes}, DType::F8E4M3));
        Both from = on_both(v.cpu);
        gpu().kernels->put_rows(gpu().kernel_context(), {from.gpu, slots.gpu, pool(again.gpu)});
        again.cpu = others.cpu;
        same(bytes(again), 0, "rows " + label(dtype));
      }
}

TEST_F(CudaDecode, LargestOfARow) {
  const double infinity = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : floats())
    for (auto [rows, n] : {std::pair<int64_t, int64_t>{1, 128256}, {3, 50}, {70, 4096}, {2, 33333}}) {
      std::vector<double> numbers(static_cast<size_t>(rows * n));
      std::vector<int64_t> expected;
      for (int64_t row = 0; row < rows; ++row) {
        double* at = numbers.data() + row * n;
        for (int64_t i = 0; i < n; ++i)
          at[i] =
              static_cast<double>(Philox::at({static_cast<uint64_t>(row), 3}, i).word[0] % 1000) / 8 - 100;
        expected.push_back((row * 7919 + n - 1) % n);
        at[expected.back()] = 77;
        if (expected.back() + 1 < n) at[n - 1] = 77;  // equal, but behind
        if (row % 3 == 1) at[expected.back() / 2] = expected.back() / 2 < expected.back() ? nan : 77;
        if (row % 3 == 2) at[0] = infinity, expected.back() = -1;
      }
      const Both x = cast(numbers, {rows, n}, dtype);
      Tensor indices = gpu().empty({rows}, DType::I64);
      ASSERT_TRUE(gpu().kernels->argmax(gpu().kernel_context(), {x.gpu, indices}));
      EXPECT_EQ(gpu().to_vector<int64_t>(indices), expected) << n << " " << label(dtype);
    }
  // Nothing but NaN, and nothing but minus infinity.
  const Both x = cast({nan, nan, nan, -infinity, -infinity, -infinity}, {2, 3}, DType::BF16);
  Tensor indices = gpu().empty({2}, DType::I64);
  ASSERT_TRUE(gpu().kernels->argmax(gpu().kernel_context(), {x.gpu, indices}));
  EXPECT_EQ(gpu().to_vector<int64_t>(indices), (std::vector<int64_t>{-1, -1}));
  EXPECT_FALSE(cpu.kernels->argmax(cpu.kernel_context(), {x.cpu, cpu.empty({2}, DType::I64)}));
}

}  // namespace
}  // namespace megatron::testing
