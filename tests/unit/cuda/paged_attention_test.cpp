#include "megatron/kernels/fp8_pages.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

struct Sequence {
  int32_t queries, keys;
};

struct Case {
  const char* name;
  std::vector<Sequence> sequences;
  int64_t heads = 4, kv_heads = 2, d = 64, dv = 64, window_left = -1;
};

// Keys in blocks of a pool, as the inference engine has them.
class CudaPagedAttention : public Twin {
 protected:
  static constexpr int64_t kBlock = 16, kBlocks = 96;

  struct Inputs {
    Both q, k, v, blocks;
  };
  Inputs inputs(const Case& c, DType dtype) {
    int64_t tokens = 0, most = 1;
    for (const Sequence& s : c.sequences) {
      tokens += s.queries;
      most = std::max<int64_t>(most, (s.keys + kBlock - 1) / kBlock);
    }
    std::vector<int32_t> table(c.sequences.size() * static_cast<size_t>(most));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>((i * 37 + 5) % kBlocks);
    return {uniform({tokens, c.heads, c.d}, dtype, -2, 2),
            uniform({kBlocks * kBlock, c.kv_heads, c.d}, dtype, -2, 2),
            uniform({kBlocks * kBlock, c.kv_heads, c.dv}, dtype),
            on_both(cpu.from_vector(table, {std::ssize(c.sequences), most}))};
  }

  // The same keys and values in e4m3, rounded on the CPU.
  Inputs small(Inputs in) {
    for (Both* pool : {&in.k, &in.v}) {
      const int64_t rows = pool->cpu.size(0), heads = pool->cpu.size(1), dim = pool->cpu.size(2);
      std::vector<int64_t> ids(static_cast<size_t>(rows));
      for (int64_t i = 0; i < rows; ++i) ids[static_cast<size_t>(i)] = i;
      const Tensor bytes = cpu.zeros({rows, fp8_row_bytes(heads, dim)}, DType::F8E4M3);
      const auto heads_of = [&](const Tensor& x) {
        return x.slice(1, 0, heads * dim).view({rows, heads, dim});
      };
      cpu.kernels->put_rows(cpu.kernel_context(), {pool->cpu, cpu.from_vector(ids, {rows}), heads_of(bytes)});
      *pool = on_both(bytes).map(heads_of);
    }
    return in;
  }

  // o of the sequences [first, last).
  Both run_some(const Case& c, const Inputs& in, size_t first, size_t last, DType dtype) {
    std::vector<int32_t> cu{0}, lengths;
    int64_t skipped = 0, longest = 0, most_keys = 0;
    for (size_t i = 0; i < last; ++i) {
      const Sequence& s = c.sequences[i];
      if (i < first) {
        skipped += s.queries;
        continue;
      }
      cu.push_back(cu.back() + s.queries);
      lengths.push_back(s.keys);
      longest = std::max<int64_t>(longest, s.queries);
      most_keys = std::max<int64_t>(most_keys, s.keys);
    }
    const int64_t tokens = cu.back(), batch = std::ssize(lengths);
    Both q = in.q.map([&](const Tensor& x) { return x.slice(0, skipped, skipped + tokens); });
    Both blocks = in.blocks.map(
        [&](const Tensor& x) { return x.slice(0, static_cast<int64_t>(first), static_cast<int64_t>(last)); });
    Both o = output({tokens, c.heads, c.dv}, dtype),
         lse = output({c.heads, tokens}, accumulation_dtype(dtype));
    Both cu_queries = on_both(cpu.from_vector(cu, {batch + 1})),
         key_lengths = on_both(cpu.from_vector(lengths, {batch}));
    run(&KernelTable::attention, [&](auto on) {
      return AttentionArgs{.q = on(q),
                           .k = on(in.k),
                           .v = on(in.v),
                           .o = on(o),
                           .lse = on(lse),
                           .batch = batch,
                           .cu_queries = on(cu_queries),
                           .max_queries = longest,
                           .max_keys = most_keys,
                           .blocks = on(blocks),
                           .key_lengths = on(key_lengths),
                           .block_size = kBlock,
                           .scale = 0.125,
                           .window_left = c.window_left};
    });
    return o;
  }
};

const Case kCases[] = {
    {.name = "prompts", .sequences = {{70, 70}, {130, 130}, {17, 17}}},
    {.name = "parts of prompts", .sequences = {{64, 300}, {33, 97}, {2, 65}}},
    {.name = "prompts beside answers", .sequences = {{1, 200}, {90, 90}, {1, 1}, {1, 333}}},
    {.name = "answers", .sequences = {{1, 64}, {1, 129}, {1, 500}}},
    {.name = "one answer", .sequences = {{1, 700}}, .heads = 8, .kv_heads = 1},
    {.name = "head 128", .sequences = {{100, 164}, {1, 90}}, .heads = 8, .kv_heads = 2, .d = 128, .dv = 128},
    {.name = "window", .sequences = {{80, 300}, {1, 211}, {5, 150}}, .window_left = 63},
    {.name = "mla", .sequences = {{70, 90}, {1, 90}}, .heads = 4, .kv_heads = 4, .d = 192, .dv = 128},
    {.name = "head 256", .sequences = {{40, 90}, {1, 170}}, .d = 256, .dv = 256},
};

TEST_F(CudaPagedAttention, IsThatOfTheCpu) {
  for (DType dtype : floats())
    for (const Case& c : kCases) {
      const Inputs in = inputs(c, dtype);
      const Both o = run_some(c, in, 0, c.sequences.size(), dtype);
      const std::string what = std::string(c.name) + " " + label(dtype);
      if (size_of(dtype) == 2)
        alike(o, dtype == DType::F16 ? 1e-3 : 8e-3, what);
      else
        same(o, dtype == DType::F64 ? 1e-11 : 2e-5, what);
    }
}

TEST_F(CudaPagedAttention, InFp8IsThatOfTheCpu) {
  for (DType dtype : floats())
    for (const Case& c : kCases) {
      const Both o = run_some(c, small(inputs(c, dtype)), 0, c.sequences.size(), dtype);
      const std::string what = std::string(c.name) + " e4m3 " + label(dtype);
      if (size_of(dtype) == 2)
        alike(o, dtype == DType::F16 ? 1e-3 : 8e-3, what);
      else
        same(o, dtype == DType::F64 ? 1e-11 : 2e-5, what);
    }
}

// What a sequence gets is the same, to the bit, whatever runs beside it.
TEST_F(CudaPagedAttention, DoesNotDependOnTheOthers) {
  for (DType dtype : floats())
    for (const Case& c : kCases)
      for (bool rounded : {false, true}) {
        const Inputs in = rounded ? small(inputs(c, dtype)) : inputs(c, dtype);
        const std::vector<double> all = values(gpu(), run_some(c, in, 0, c.sequences.size(), dtype).gpu);
        size_t at = 0;
        for (size_t i = 0; i < c.sequences.size(); ++i) {
          const std::vector<double> alone = values(gpu(), run_some(c, in, i, i + 1, dtype).gpu);
          EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + static_cast<ptrdiff_t>(at)))
              << c.name << ", sequence " << i << " " << label(dtype);
          at += alone.size();
        }
      }
}

}  // namespace
}  // namespace megatron::testing
