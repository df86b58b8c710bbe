// Keys and values of a cache in e4m3 with a scale for each head of a token.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "megatron/kernels/fp8_pages.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/index.h"
#include "support/gradcheck.h"
#include "support/to_doubles.h"

namespace megatron {
namespace {

using testing::random_tensor;
using testing::to_doubles;

constexpr int64_t kBlock = 16, kBlocks = 12, kRows = kBlock * kBlocks;

struct Fp8Pool {
  Fp8Pool(RankContext& ctx, int64_t heads, int64_t dim)
      : bytes(ctx.zeros({kRows, fp8_row_bytes(heads, dim)}, DType::F8E4M3)),
        rows(bytes.slice(1, 0, heads * dim).view({kRows, heads, dim})) {}
  Tensor bytes, rows;  // with the scales, and without
};

Tensor all_rows(RankContext& ctx) {
  std::vector<int64_t> ids(kRows);
  for (int64_t i = 0; i < kRows; ++i) ids[static_cast<size_t>(i)] = i * 7 % kRows;
  return ctx.from_vector(ids, {kRows});
}

// What the rows of a pool stand for, in fp64.
std::vector<double> stored(RankContext& ctx, const Fp8Pool& pool) {
  const int64_t heads = pool.rows.size(1), dim = pool.rows.size(2), row_bytes = pool.rows.stride(0);
  const std::vector<double> values = to_doubles(ctx, pool.rows);
  std::vector<uint8_t> bytes(static_cast<size_t>(kRows * row_bytes));
  ctx.to_host(pool.bytes, bytes.data());
  std::vector<double> result(values.size());
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t head = 0; head < heads; ++head) {
      float scale;
      std::memcpy(&scale, bytes.data() + row * row_bytes + fp8_scale_offset(row_bytes, heads) + 4 * head,
                  sizeof scale);
      for (int64_t c = 0; c < dim; ++c) {
        const auto at = static_cast<size_t>((row * heads + head) * dim + c);
        result[at] = values[at] * static_cast<double>(scale);
      }
    }
  return result;
}

TEST(Fp8Pages, ValuesAreRoundedByHead) {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16})
    for (auto [heads, dim] : {std::pair<int64_t, int64_t>{2, 64}, {1, 36}, {5, 7}}) {
      RankContext ctx(testing::test_device());
      const Tensor x = random_tensor(ctx, {kRows, heads, dim}, 1, dtype);
      const Fp8Pool pool(ctx, heads, dim);
      // A head of zeros, whose scale is 1.
      ctx.kernels->fill(ctx.kernel_context(), {x.slice(0, 3, 4).slice(1, 0, 1), 0});
      const Tensor ids = all_rows(ctx);
      ops::put_rows(ctx, x, ids, pool.rows);
      const std::vector<double> given = to_doubles(ctx, x), kept = stored(ctx, pool);
      const std::vector<int64_t> rows = ctx.to_vector<int64_t>(ids);
      for (int64_t i = 0; i < kRows; ++i)
        for (int64_t head = 0; head < heads; ++head) {
          double amax = 0;
          for (int64_t c = 0; c < dim; ++c)
            amax = std::max(amax, std::abs(given[static_cast<size_t>((i * heads + head) * dim + c)]));
          for (int64_t c = 0; c < dim; ++c) {
            const double
                value = given[static_cast<size_t>((i * heads + head) * dim + c)],
                found = kept[static_cast<size_t>((rows[static_cast<size_t>(i)] * heads + head) * dim + c)];
            // Half of the last of three bits, or of the smallest number.
            const double step = std::max(std::abs(value) / 16, amax / 448 / 1024);
            ASSERT_NEAR(found, value, step * 1.0001) << "row " << i << " head " << head << " element " << c;
            if (std::abs(value) == amax) {
              ASSERT_NEAR(found, value, amax * 1e-6);
            }
          }
        }
    }
}

struct Fp8Case {
  const char* name;
  int64_t heads = 4, kv_heads = 2, d = 64, dv = 64, window = -1;
  bool sinks = false;
};

class Fp8PagedAttention : public ::testing::TestWithParam<Fp8Case> {};

// Attention to e4m3 is attention to the values that it stands for; to those that were given it is near.
TEST_P(Fp8PagedAttention, ReadsTheValuesThatAreStored) {
  const Fp8Case& c = GetParam();
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    RankContext ctx(testing::test_device());
    const std::vector<int32_t> cu = {0, 1, 2, 42, 45}, lengths = {1, 70, 64, 90};
    std::vector<int32_t> table;
    for (int i = 0; i < 4 * 6; ++i) table.push_back((i * 5 + 1) % static_cast<int>(kBlocks));
    const Tensor q = random_tensor(ctx, {45, c.heads, c.d}, 1, dtype),
                 k = random_tensor(ctx, {kRows, c.kv_heads, c.d}, 2, dtype),
                 v = random_tensor(ctx, {kRows, c.kv_heads, c.dv}, 3, dtype), ids = all_rows(ctx);
    const Fp8Pool fp8_k(ctx, c.kv_heads, c.d), fp8_v(ctx, c.kv_heads, c.dv);
    ops::put_rows(ctx, k, ids, fp8_k.rows);
    ops::put_rows(ctx, v, ids, fp8_v.rows);
    const auto in_dtype = [&](const std::vector<double>& values, const Tensor& like) {
      Tensor wide = ctx.from_vector(values, like.shape()), result = ctx.empty(like.shape(), dtype);
      ctx.kernels->copy(ctx.kernel_context(), {wide, result});
      return result;
    };
    const Tensor wide_k = in_dtype(stored(ctx, fp8_k), k), wide_v = in_dtype(stored(ctx, fp8_v), v);
    Tensor given_k = ctx.empty_like(k), given_v = ctx.empty_like(v);
    ops::put_rows(ctx, k, ids, given_k);
    ops::put_rows(ctx, v, ids, given_v);
    ops::AttentionOptions options;
    options.window_left = c.window;
    if (c.sinks) options.sinks = {.value = random_tensor(ctx, {c.heads}, 4, dtype)};
    options.cu_queries = ctx.from_vector(cu, {5});
    options.key_lengths = ctx.from_vector(lengths, {4});
    options.blocks = ctx.from_vector(table, {4, 6});
    options.block_size = kBlock;
    options.max_queries = 40;
    options.max_keys = 90;
    const auto found = to_doubles(ctx, ops::attention(ctx, q, fp8_k.rows, fp8_v.rows, options).o),
               expected = to_doubles(ctx, ops::attention(ctx, q, wide_k, wide_v, options).o),
               given = to_doubles(ctx, ops::attention(ctx, q, given_k, given_v, options).o);
    const double tolerance = dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 2e-6 : 2e-2;
    double error = 0, size = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i], tolerance) << c.name << " " << i;
      error += std::pow(found[i] - given[i], 2);
      size += std::pow(given[i], 2);
    }
    EXPECT_GT(error, 0) << c.name << ": something was rounded";
    EXPECT_LT(std::sqrt(error / size), 0.06) << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Fp8PagedAttention,
    ::testing::Values(Fp8Case{.name = "gqa"}, Fp8Case{.name = "head_128", .d = 128, .dv = 128},
                      Fp8Case{.name = "mqa", .heads = 8, .kv_heads = 1},
                      Fp8Case{.name = "window", .window = 6}, Fp8Case{.name = "sinks", .sinks = true},
                      Fp8Case{.name = "latents", .heads = 3, .kv_heads = 1, .d = 48, .dv = 40},
                      Fp8Case{.name = "odd", .heads = 5, .kv_heads = 5, .d = 7, .dv = 3}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace megatron
