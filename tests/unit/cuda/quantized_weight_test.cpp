// Linears whose weights are of 8 bits, beside the same GEMM of the values that they stand for.
#include <cmath>

#include "megatron/ops/linear.h"
#include "megatron/ops/quantize.h"
#include "megatron/ops/quantized_weight.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaQuantizedWeight : public Sm90Twin {
 protected:
  // The largest difference from the wide GEMM, over the root mean square of its results.
  double error(int64_t rows, int64_t n, int64_t k, DType dtype, bool by_row, bool biased) {
    RankContext& ctx = gpu();
    const Tensor x = uniform({rows, k}, DType::BF16).gpu, wide = uniform({n, k}, DType::BF16).gpu;
    Weight bias;
    if (biased) bias.value = uniform({n}, DType::BF16, -9, 9).gpu;
    const Weight small = ops::quantize_weight(ctx, wide, dtype, by_row);
    const Tensor read =
        ops::dequantize(ctx, {small.value, small.scale, ops::scale_rows(small), 128}, DType::BF16);
    const std::vector<double> found = values(ctx, ops::linear(ctx, x, small, bias)),
                              expected = values(ctx, ops::linear(ctx, x, {.value = read}, bias));
    double most = 0, square = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      if (!std::isfinite(found[i])) return found[i];
      most = std::max(most, std::abs(found[i] - expected[i]));
      square += expected[i] * expected[i];
    }
    return most / std::sqrt(square / static_cast<double>(found.size()));
  }
};

// Fewer columns than a block makes, edges, K of fewer blocks than warps, of many, and unevenly shared. The
// values are exact; bf16 rounds them times their scale where they are read wide, and results in the end.
TEST_F(CudaQuantizedWeight, FewRowsReadWhatIsStored) {
  for (const DType dtype : {DType::I8, DType::F8E4M3})
    for (const bool by_row : {true, false})
      for (const auto& [n, k] :
           {std::pair<int64_t, int64_t>{5, 128}, {100, 256}, {48, 8192}, {272, 1152}, {20001, 384}})
        for (const int64_t rows : {1, 2, 4, 5, 8, 9, 16})
          EXPECT_LT(error(rows, n, k, dtype, by_row, rows % 2 == 0), 0.03)
              << rows << " x " << n << " x " << k << " " << name_of(dtype) << " by row " << by_row;
}

// x of any magnitude, beside numbers that are far smaller.
TEST_F(CudaQuantizedWeight, RowsOfAnyMagnitude) {
  RankContext& ctx = gpu();
  const Weight small = ops::quantize_weight(ctx, uniform({48, 2048}, DType::BF16).gpu, DType::F8E4M3, false);
  const Tensor read =
      ops::dequantize(ctx, {small.value, small.scale, ops::scale_rows(small), 128}, DType::BF16);
  for (const double size : {1e-30, 1e-6, 1.0, 1e6, 1e30}) {
    std::vector<double> numbers(3 * 2048);
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = size * (i % 7 == 0 ? 1 : 1e-4) * (static_cast<double>(i * 7919 % 2001) / 1000 - 1);
    const Tensor x = cast(numbers, {3, 2048}, DType::BF16).gpu;
    const std::vector<double> found = values(ctx, ops::linear(ctx, x, small, {})),
                              expected = values(ctx, ops::linear(ctx, x, {.value = read}, {}));
    double most = 0, square = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(std::isfinite(found[i])) << size;
      most = std::max(most, std::abs(found[i] - expected[i]) / size);
      square += expected[i] / size * (expected[i] / size);
    }
    EXPECT_LT(most / std::sqrt(square / static_cast<double>(found.size())), 0.03) << size;
  }
}

// More rows: as few ones, several times; widened slab by slab, which is the same GEMM; or rounded to fp8
// themselves, but for those that do not fill a tile.
TEST_F(CudaQuantizedWeight, ManyRows) {
  for (const int64_t rows : {17, 40, 48, 49, 130}) {
    const double most = rows <= 48 ? 0.03 : 0;
    EXPECT_LE(error(rows, 300, 384, DType::I8, true, true), most) << rows;
    EXPECT_LE(error(rows, 300, 384, DType::F8E4M3, true, false), most) << rows;
    EXPECT_LE(error(rows, 300, 384, DType::F8E4M3, false, true), most) << rows;
  }
  for (const int64_t rows : {17, 70, 131})
    EXPECT_LT(error(rows, 256, 512, DType::F8E4M3, false, true), 0.15) << rows;
  EXPECT_EQ(error(3, 64, 96, DType::I8, true, false), 0);  // K that kernels of few rows do not take
  EXPECT_LT(error(64, 256, 512, DType::F8E4M3, false, true), 0.15);
  EXPECT_LT(error(512, 384, 1024, DType::F8E4M3, false, false), 0.15);
}

// What a row becomes does not depend on how many there are, up to four, and from five to 16.
TEST_F(CudaQuantizedWeight, RowsAreAlone) {
  RankContext& ctx = gpu();
  const Tensor x = uniform({16, 640}, DType::BF16).gpu;
  const Weight small = ops::quantize_weight(ctx, uniform({100, 640}, DType::BF16).gpu, DType::F8E4M3, false);
  const auto product = [&](int64_t begin, int64_t end) {
    return values(ctx, ops::linear(ctx, x.slice(0, begin, end), small, {}));
  };
  const std::vector<double> four = product(0, 4), all = product(0, 16);
  for (int64_t row = 0; row < 4; ++row) {
    const std::vector<double> own = product(row, row + 1);
    for (size_t i = 0; i < own.size(); ++i)
      ASSERT_EQ(own[i], four[static_cast<size_t>(row) * 100 + i]) << row;
  }
  const std::vector<double> last = product(11, 16);
  for (size_t i = 0; i < last.size(); ++i) ASSERT_EQ(last[i], all[1100 + i]) << i;
}

}  // namespace
}  // namespace megatron::testing
