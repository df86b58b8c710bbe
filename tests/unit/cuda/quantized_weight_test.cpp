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
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5, 128}, {100, 256}, {48, 8192}, {272, 1152}})
        for (const int64_t rows : {1, 2, 7, 8, 9, 16})
          EXPECT_LT(error(rows, n, k, dtype, by_row, rows % 2 == 0), 0.03)
              << rows << " x " << n << " x " << k << " " << name_of(dtype) << " by row " << by_row;
}

// More rows: widened slab by slab, which is the same GEMM, or rounded to fp8 themselves.
TEST_F(CudaQuantizedWeight, ManyRows) {
  for (const int64_t rows : {17, 40, 130}) {
    EXPECT_EQ(error(rows, 300, 384, DType::I8, true, true), 0) << rows;
    EXPECT_EQ(error(rows, 300, 384, DType::F8E4M3, true, false), 0) << rows;
    EXPECT_EQ(error(rows, 300, 384, DType::F8E4M3, false, true), 0) << rows;
  }
  EXPECT_EQ(error(3, 64, 96, DType::I8, true, false), 0);  // K that kernels of few rows do not take
  EXPECT_LT(error(64, 256, 512, DType::F8E4M3, false, true), 0.15);
  EXPECT_LT(error(512, 384, 1024, DType::F8E4M3, false, false), 0.15);
}

// What a row becomes does not depend on how many there are, up to 16.
TEST_F(CudaQuantizedWeight, RowsAreAlone) {
  RankContext& ctx = gpu();
  const Tensor x = uniform({16, 640}, DType::BF16).gpu;
  const Weight small = ops::quantize_weight(ctx, uniform({100, 640}, DType::BF16).gpu, DType::F8E4M3, false);
  const std::vector<double> all = values(ctx, ops::linear(ctx, x, small, {}));
  for (int64_t row = 0; row < 16; ++row) {
    const std::vector<double> own = values(ctx, ops::linear(ctx, x.slice(0, row, row + 1), small, {}));
    for (size_t i = 0; i < own.size(); ++i) ASSERT_EQ(own[i], all[static_cast<size_t>(row) * 100 + i]) << row;
  }
}

}  // namespace
}  // namespace megatron::testing
