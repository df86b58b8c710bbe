// Attention of packed queries to keys in blocks of a pool: what attention to the same keys in a row gives,
// and states that scans carry on from step to step.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "megatron/ops/attention.h"
#include "megatron/ops/delta_rule.h"
#include "megatron/ops/index.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/ssd.h"
#include "support/gradcheck.h"
#include "support/to_doubles.h"

namespace megatron {
namespace {

using testing::random_tensor;
using testing::to_doubles;

struct PagedCase {
  const char* name;
  int64_t heads = 4, kv_heads = 2, d = 8, dv = 8;
  int64_t window = -1;
  double softcap = 0;
  bool sinks = false;
};

// Sequences of which the last `queries` tokens are asked for.
struct PagedSequence {
  int64_t queries, keys;
};
const std::vector<PagedSequence> kSequences = {{1, 1}, {1, 70}, {5, 5}, {3, 130}, {40, 67}};
constexpr int64_t kBlock = 4;

// Keys and values of all sequences, scattered over the blocks of a pool in some order.
struct Pool {
  Pool(RankContext& ctx, const Tensor& k, const Tensor& v, const std::vector<PagedSequence>& sequences) {
    std::vector<int64_t> order(80);
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    const int64_t most = 40;
    std::vector<int32_t> table, lengths;
    std::vector<int64_t> slots;
    size_t next = 0;
    for (const PagedSequence& s : sequences) {
      const size_t row = table.size();
      table.resize(row + most, 0);
      for (int64_t key = 0; key < s.keys; ++key) {
        auto& block = table[row + static_cast<size_t>(key / kBlock)];
        if (key % kBlock == 0) block = static_cast<int32_t>(order[next++]);
        slots.push_back(block * kBlock + key % kBlock);
      }
      lengths.push_back(static_cast<int32_t>(s.keys));
    }
    const auto count = static_cast<int64_t>(sequences.size());
    blocks = ctx.from_vector(table, {count, most});
    key_lengths = ctx.from_vector(lengths, {count});
    keys = ctx.full({80 * kBlock, k.size(1), k.size(2)}, k.dtype(), 9);
    values = ctx.full({80 * kBlock, v.size(1), v.size(2)}, v.dtype(), 9);
    const Tensor ids = ctx.from_vector(slots, {static_cast<int64_t>(slots.size())});
    ops::put_rows(ctx, k, ids, keys);
    ops::put_rows(ctx, v, ids, values);
  }
  Tensor keys, values, blocks, key_lengths;
};

std::vector<int32_t> cumulated(const std::vector<PagedSequence>& sequences, bool keys) {
  std::vector<int32_t> cu = {0};
  for (const PagedSequence& s : sequences)
    cu.push_back(cu.back() + static_cast<int32_t>(keys ? s.keys : s.queries));
  return cu;
}

class PagedAttention : public ::testing::TestWithParam<PagedCase> {};

TEST_P(PagedAttention, IsAttentionToTheSameKeysInARow) {
  const PagedCase& c = GetParam();
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    RankContext ctx(testing::test_device());
    const auto cu_q = cumulated(kSequences, false), cu_k = cumulated(kSequences, true);
    const auto sequences = static_cast<int64_t>(kSequences.size());
    const Tensor q = random_tensor(ctx, {cu_q.back(), c.heads, c.d}, 1, dtype),
                 k = random_tensor(ctx, {cu_k.back(), c.kv_heads, c.d}, 2, dtype),
                 v = random_tensor(ctx, {cu_k.back(), c.kv_heads, c.dv}, 3, dtype);
    ops::AttentionOptions options;
    options.window_left = c.window;
    options.softcap = c.softcap;
    if (c.sinks) options.sinks = {.value = random_tensor(ctx, {c.heads}, 4, dtype)};
    options.cu_queries = ctx.from_vector(cu_q, {sequences + 1});
    options.max_queries = 40;
    ops::AttentionOptions in_a_row = options;
    in_a_row.cu_keys = ctx.from_vector(cu_k, {sequences + 1});
    in_a_row.max_keys = 130;
    const Pool pool(ctx, k, v, kSequences);
    options.blocks = pool.blocks;
    options.key_lengths = pool.key_lengths;
    options.block_size = kBlock;
    options.max_keys = 130;
    const auto paged = ops::attention(ctx, q, pool.keys, pool.values, options);
    const auto plain = ops::attention(ctx, q, k, v, in_a_row);
    const double tolerance = dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 2e-6 : 2e-2;
    const auto o = to_doubles(ctx, paged.o), expected = to_doubles(ctx, plain.o);
    const auto lse = to_doubles(ctx, paged.lse), expected_lse = to_doubles(ctx, plain.lse);
    for (size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], expected[i], tolerance) << c.name << " o " << i;
    for (size_t i = 0; i < lse.size(); ++i)
      ASSERT_NEAR(lse[i], expected_lse[i], tolerance) << c.name << " lse " << i;
  }
}

// The last query of a sequence alone, and among others: the same bits.
TEST_P(PagedAttention, AQueryDoesNotDependOnTheOthers) {
  const PagedCase& c = GetParam();
  RankContext ctx(testing::test_device());
  const std::vector<PagedSequence> whole = {{67, 67}}, last = {{1, 67}};
  const Tensor q = random_tensor(ctx, {67, c.heads, c.d}, 1, DType::F32),
               k = random_tensor(ctx, {67, c.kv_heads, c.d}, 2, DType::F32),
               v = random_tensor(ctx, {67, c.kv_heads, c.dv}, 3, DType::F32);
  const Pool pool(ctx, k, v, whole);
  ops::AttentionOptions options;
  options.window_left = c.window;
  options.softcap = c.softcap;
  if (c.sinks) options.sinks = {.value = random_tensor(ctx, {c.heads}, 4, DType::F32)};
  options.blocks = pool.blocks;
  options.key_lengths = pool.key_lengths;
  options.block_size = kBlock;
  options.max_keys = options.max_queries = 67;
  options.cu_queries = ctx.from_vector(cumulated(whole, false), {2});
  const Tensor all = ops::attention(ctx, q, pool.keys, pool.values, options).o;
  options.cu_queries = ctx.from_vector(cumulated(last, false), {2});
  options.max_queries = 1;
  const Tensor one = ops::attention(ctx, q.slice(0, 66, 67), pool.keys, pool.values, options).o;
  EXPECT_EQ(to_doubles(ctx, all.slice(0, 66, 67)), to_doubles(ctx, one));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PagedAttention,
    ::testing::Values(PagedCase{.name = "gqa"}, PagedCase{.name = "mqa", .kv_heads = 1},
                      PagedCase{.name = "own_keys", .heads = 2}, PagedCase{.name = "window", .window = 6},
                      PagedCase{.name = "sinks", .sinks = true},
                      PagedCase{.name = "window_sinks", .window = 70, .sinks = true},
                      PagedCase{.name = "softcap", .softcap = 0.7},
                      PagedCase{.name = "latents", .heads = 3, .kv_heads = 1, .d = 20, .dv = 16},
                      PagedCase{.name = "odd", .heads = 5, .kv_heads = 5, .d = 7, .dv = 3}),
    [](const auto& info) { return std::string(info.param.name); });

// A scan in two steps leaves what it leaves in one, and begins with what stands in the state.
TEST(RecurrentState, MambaGoesOn) {
  for (DType dtype : {DType::F64, DType::F32}) {
    RankContext ctx(testing::test_device());
    const DType wide = accumulation_dtype(dtype);
    const ops::SsdOptions options{.heads = 4, .channels = 3, .groups = 2, .states = 5, .chunk = 1};
    const Tensor xbc = random_tensor(ctx, {9, 12 + 20}, 1, dtype), dt = random_tensor(ctx, {9, 4}, 2, dtype);
    const ops::SsdWeights weights{{random_tensor(ctx, {4}, 3, wide)},
                                  {random_tensor(ctx, {4}, 4, wide)},
                                  {random_tensor(ctx, {4}, 5, wide)}};
    const SequenceRows row{.count = 1, .cu = {}};
    const Tensor whole =
        ops::ssd(ctx, xbc, dt, weights, {.heads = 4, .channels = 3, .groups = 2, .states = 5}, row);
    const Tensor state = ctx.zeros({1, 4, 3, 5}, wide);
    std::vector<double> parts;
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 4}, {4, 5}, {5, 9}}) {
      const auto part = to_doubles(ctx, ops::ssd(ctx, xbc.slice(0, begin, end), dt.slice(0, begin, end),
                                                 weights, options, row, state));
      parts.insert(parts.end(), part.begin(), part.end());
    }
    const auto expected = to_doubles(ctx, whole);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(parts[i], expected[i], dtype == DType::F64 ? 1e-12 : 1e-5) << "element " << i;
  }
}

TEST(RecurrentState, DeltaNetsGoOn) {
  for (DType dtype : {DType::F64, DType::F32}) {
    RankContext ctx(testing::test_device());
    const DType wide = accumulation_dtype(dtype);
    const ops::DeltaRuleOptions options{
        .key_heads = 2, .value_heads = 4, .key_channels = 3, .value_channels = 5};
    const Tensor qkv = random_tensor(ctx, {9, 12 + 20}, 1, dtype), b = random_tensor(ctx, {9, 4}, 2, dtype),
                 a = random_tensor(ctx, {9, 4}, 3, dtype);
    const Weight a_log{random_tensor(ctx, {4}, 4, wide)}, dt_bias{random_tensor(ctx, {4}, 5, wide)};
    const SequenceRows row{.count = 1, .cu = {}};
    const Tensor whole = ops::delta_rule(ctx, qkv, b, a, a_log, dt_bias, options, row);
    const Tensor state = ctx.zeros({1, 4, 3, 5}, wide);
    std::vector<double> parts;
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 4}, {4, 5}, {5, 9}}) {
      const auto part =
          to_doubles(ctx, ops::delta_rule(ctx, qkv.slice(0, begin, end), b.slice(0, begin, end),
                                          a.slice(0, begin, end), a_log, dt_bias, options, row, state));
      parts.insert(parts.end(), part.begin(), part.end());
    }
    const auto expected = to_doubles(ctx, whole);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(parts[i], expected[i], dtype == DType::F64 ? 1e-12 : 1e-5) << "element " << i;
  }
}

}  // namespace
}  // namespace megatron
