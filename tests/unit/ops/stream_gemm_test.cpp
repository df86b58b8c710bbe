#include <gtest/gtest.h>

#include <cmath>

#include "megatron/ops/quantize.h"
#include "support/gradcheck.h"

// GEMMs whose weights are int8, or pass by once for a few rows.
namespace megatron {
namespace {

using testing::random_tensor;

std::vector<double> wide(RankContext& ctx, const Tensor& tensor) {
  Tensor result = ctx.empty(tensor.shape(), DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {tensor, result});
  return ctx.to_vector<double>(result);
}

double tolerance_of(DType dtype) { return dtype == DType::F32 ? 1e-5 : 8e-3; }

// int8 weights with a scale for each 128 numbers: the GEMM of what they stand for.
TEST(StreamGemm, Int8WeightsAreThoseTheyStandFor) {
  RankContext ctx(kCpu, 2);
  for (DType dtype : {DType::F32, DType::BF16})
    for (auto [m, n, k] : {std::array<int64_t, 3>{1, 7, 5}, {3, 33, 128}, {4, 20, 300}, {18, 64, 129}}) {
      SCOPED_TRACE(fmt::format("{}x{}x{} {}", m, n, k, dtype));
      const Tensor x = random_tensor(ctx, {m, k}, 1, dtype), w = random_tensor(ctx, {n, k}, 2, dtype),
                   bias = random_tensor(ctx, {n}, 3, dtype);
      const ops::Quantized small = ops::quantize(ctx, w, DType::I8, 1, 128);
      const auto exact = wide(ctx, w), stored = wide(ctx, ops::dequantize(ctx, small, DType::F32)),
                 scale = wide(ctx, small.inverse_scale), input = wide(ctx, x), shift = wide(ctx, bias);
      for (size_t i = 0; i < exact.size(); ++i) {
        const size_t row = i / static_cast<size_t>(k), group = i % static_cast<size_t>(k) / 128;
        const double step = scale[row * static_cast<size_t>(small.inverse_scale.size(1)) + group];
        ASSERT_NEAR(stored[i], exact[i], step * 0.5001) << i;
      }
      const Tensor y = ctx.empty({m, n}, dtype);
      ctx.kernels->gemm(
          ctx.kernel_context(),
          {.a = x, .b = small.data.transpose(0, 1), .c = y, .bias = bias, .b_scale = small.inverse_scale});
      const auto found = wide(ctx, y);
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

// Rows of a GEMM that streams its weights have the bits that they have alone: fp32 in batch-invariant mode,
// bf16 up to sixteen rows, int8 always.
TEST(StreamGemm, StreamedRowsDoNotDependOnOthers) {
  RankContext ctx(kCpu, 2);
  constexpr int64_t rows = 15, n = 70, k = 333;
  for (DType dtype : {DType::F32, DType::BF16})
    for (bool int8 : {false, true}) {
      ctx.batch_invariant = dtype == DType::F32;
      const Tensor x = random_tensor(ctx, {rows, k}, 1, dtype), w = random_tensor(ctx, {n, k}, 2, dtype);
      const ops::Quantized small = ops::quantize(ctx, w, DType::I8, 1, 128);
      const auto multiply = [&](const Tensor& a) {
        const Tensor y = ctx.empty({a.size(0), n}, dtype);
        GemmArgs args{.a = a, .b = (int8 ? small.data : w).transpose(0, 1), .c = y};
        if (int8) args.b_scale = small.inverse_scale;
        ctx.kernels->gemm(ctx.kernel_context(), args);
        return wide(ctx, y);
      };
      const std::vector<double> together = multiply(x);
      for (int64_t row = 0; row < rows; ++row) {
        const std::vector<double> alone = multiply(x.slice(0, row, row + 1));
        for (int64_t j = 0; j < n; ++j)
          ASSERT_EQ(alone[static_cast<size_t>(j)], together[static_cast<size_t>(row * n + j)])
              << name_of(dtype) << " int8 " << int8 << " row " << row;
      }
    }
}

}  // namespace
}  // namespace megatron
