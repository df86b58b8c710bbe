#include <gtest/gtest.h>

#include <cmath>

#include "megatron/kernels/cpu/isa_tables.h"
#include "megatron/ops/quantize.h"
#include "support/gradcheck.h"
#include "support/to_doubles.h"

// GEMMs whose weights are int8 or int4, or pass by once for a few rows.
namespace megatron {
namespace {

using testing::random_tensor;
using testing::to_doubles;

double tolerance_of(DType dtype) { return dtype == DType::F32 ? 1e-5 : 8e-3; }

ops::Quantized quantize(RankContext& ctx, const Tensor& w, DType narrow) {
  return ops::quantize(ctx, w, narrow, 1, scale_columns(narrow));
}

// x · wᵀ by a GEMM that reads w in few bits.
Tensor multiply(RankContext& ctx, const Tensor& x, const ops::Quantized& w, const Tensor& bias = {}) {
  const Tensor y = ctx.empty({x.size(0), w.data.size(0)}, x.dtype());
  ctx.kernels->gemm(ctx.kernel_context(),
                    {.a = x, .b = w.data.transpose(0, 1), .c = y, .bias = bias, .b_scale = w.inverse_scale});
  return y;
}

// Numbers are rounded to the nearest multiple of their group's step; int4 has no 8, which becomes 7.
void expect_nearest(double stored, double exact, double scale, DType narrow) {
  double steps = exact / scale;
  if (narrow == kInt4) {
    ASSERT_LE(std::abs(steps), 8.04) << "a scale is rounded to 8 bits";
    steps = std::clamp(steps, -8.0, 7.0);
  }
  ASSERT_NEAR(stored, steps * scale, std::abs(scale) * 0.5001);
}

class NarrowGemm : public ::testing::TestWithParam<DType> {};

// The GEMM of what the weights stand for, whatever does not fill a group, a step or a byte.
TEST_P(NarrowGemm, WeightsAreThoseTheyStandFor) {
  RankContext ctx(kCpu, 2);
  for (DType dtype : {DType::F32, DType::BF16})
    for (auto [m, n, k] : {std::array<int64_t, 3>{1, 7, 5},
                           {1, 1, 1},
                           {3, 33, 128},
                           {4, 20, 300},
                           {18, 64, 129},
                           {2, 5, 96},
                           {5, 17, 97},
                           {6, 3, 511}}) {
      SCOPED_TRACE(fmt::format("{}x{}x{} {}", m, n, k, dtype));
      const Tensor x = random_tensor(ctx, {m, k}, 1, dtype), w = random_tensor(ctx, {n, k}, 2, dtype),
                   bias = random_tensor(ctx, {n}, 3, dtype);
      const ops::Quantized small = quantize(ctx, w, GetParam());
      const auto exact = to_doubles(ctx, w),
                 stored = to_doubles(ctx, ops::dequantize(ctx, small, DType::F32)),
                 scale = to_doubles(ctx, small.inverse_scale), input = to_doubles(ctx, x),
                 shift = to_doubles(ctx, bias);
      ASSERT_EQ(stored.size(), exact.size());
      const auto group_size = static_cast<size_t>(scale_columns(GetParam()));
      for (size_t i = 0; i < exact.size(); ++i) {
        const size_t row = i / static_cast<size_t>(k), group = i % static_cast<size_t>(k) / group_size;
        const double step = scale[row * static_cast<size_t>(small.inverse_scale.size(1)) + group];
        ASSERT_NO_FATAL_FAILURE(expect_nearest(stored[i], exact[i], step, GetParam())) << i;
      }
      const auto found = to_doubles(ctx, multiply(ctx, x, small, bias));
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = shift[static_cast<size_t>(j)];
          for (int64_t p = 0; p < k; ++p)
            sum += input[static_cast<size_t>(i * k + p)] * stored[static_cast<size_t>(j * k + p)];
          ASSERT_NEAR(found[static_cast<size_t>(i * n + j)], sum,
                      tolerance_of(dtype) * std::sqrt(static_cast<double>(k)));
        }
    }
}

TEST_P(NarrowGemm, EveryInstructionSetGivesTheSameBits) {
  RankContext ctx(kCpu, 2);
  std::vector<KernelTable> tables{cpu::v3::make_table()};
  if (cpu::has_v4()) tables.push_back(cpu::v4::make_table());
  const Tensor x = random_tensor(ctx, {7, 333}, 1, DType::F32),
               w = random_tensor(ctx, {19, 333}, 2, DType::F32);
  std::vector<double> first, first_values;
  for (const KernelTable& table : tables) {
    ctx.kernels = &table;
    const ops::Quantized small = quantize(ctx, w, GetParam());
    const auto values = to_doubles(ctx, small.data), found = to_doubles(ctx, multiply(ctx, x, small));
    if (first.empty()) std::tie(first, first_values) = std::tie(found, values);
    EXPECT_EQ(values, first_values);
    EXPECT_EQ(found, first);
  }
}

TEST_P(NarrowGemm, GroupsOfZerosAndOfTinyNumbersStayFinite) {
  RankContext ctx;
  const DType narrow = GetParam();
  std::vector<float> values(256, 0.f);
  values[130] = 0x1p-149f;
  values[131] = -0x1p-149f;
  const ops::Quantized small = quantize(ctx, ctx.from_vector(values, {1, 256}), narrow);
  for (double value : to_doubles(ctx, ops::dequantize(ctx, small, DType::F32)))
    ASSERT_LE(std::abs(value), 0x1p-148);
}

INSTANTIATE_TEST_SUITE_P(Formats, NarrowGemm, ::testing::Values(DType::I8, kInt4),
                         [](const auto& info) { return info.param == kInt4 ? "Int4" : "Int8"; });

// The largest magnitude is kept, whatever its sign; a group of what is no number is none.
TEST(Int4, LargestMagnitudesAreKept) {
  RankContext ctx;
  std::vector<float> values(96, 0.5f);
  values[3] = -3, values[40] = 3, values[70] = std::numeric_limits<float>::quiet_NaN();
  const ops::Quantized small = quantize(ctx, ctx.from_vector(values, {1, 96}), kInt4);
  EXPECT_EQ(small.data.shape(), (Shape{1, 48}));
  EXPECT_EQ(small.inverse_scale.dtype(), DType::BF16);
  const auto stored = ctx.to_vector<float>(ops::dequantize(ctx, small, DType::F32));
  EXPECT_EQ(stored[3], -3);
  EXPECT_EQ(stored[40], 3);
  for (size_t i = 4; i < 40; ++i) ASSERT_NEAR(stored[i], 0.5, 0.1876) << i;
  for (size_t i = 64; i < 96; ++i) ASSERT_TRUE(std::isnan(stored[i])) << i;
  EXPECT_THROW(ops::quantize(ctx, ctx.from_vector(values, {1, 96}), kInt4, 1, 128), Error);
}

// Rows of a GEMM that streams its weights have the bits that they have alone: fp32 in batch-invariant mode,
// bf16 up to sixteen rows, int8 and int4 always.
TEST(StreamGemm, StreamedRowsDoNotDependOnOthers) {
  RankContext ctx(kCpu, 2);
  constexpr int64_t rows = 15, n = 70, k = 333;
  for (DType dtype : {DType::F32, DType::BF16})
    for (const std::optional<DType> narrow : {std::optional<DType>{}, {DType::I8}, {kInt4}}) {
      ctx.batch_invariant = dtype == DType::F32;
      const Tensor x = random_tensor(ctx, {rows, k}, 1, dtype), w = random_tensor(ctx, {n, k}, 2, dtype);
      ops::Quantized small{.data = w};
      if (narrow) small = quantize(ctx, w, *narrow);
      const std::vector<double> together = to_doubles(ctx, multiply(ctx, x, small));
      for (int64_t row = 0; row < rows; ++row) {
        const std::vector<double> alone = to_doubles(ctx, multiply(ctx, x.slice(0, row, row + 1), small));
        for (int64_t j = 0; j < n; ++j)
          ASSERT_EQ(alone[static_cast<size_t>(j)], together[static_cast<size_t>(row * n + j)])
              << name_of(dtype) << " weights " << name_of(narrow.value_or(dtype)) << " row " << row;
      }
    }
}

}  // namespace
}  // namespace megatron
