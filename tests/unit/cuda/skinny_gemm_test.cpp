// GEMMs of 9 to 64 rows, whose weights fill the tensor cores.
#include <algorithm>

#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

using CudaSkinnyGemm = Sm90Twin;

struct Sizes {
  int64_t n, k;
};

// Rows of x that wgmma takes as columns: one tile of w, edges of tiles, of K and of the rows, K shared by one
// block up to eight, unevenly, too.
TEST_F(CudaSkinnyGemm, OfAllSizes) {
  const std::vector<Sizes> sizes = {{128, 64},   {40, 96},    {264, 544}, {136, 1088},
                                    {2048, 512}, {256, 8192}, {20008, 96}};
  for (auto [n, k] : sizes)
    for (int64_t rows : {9, 16, 17, 32, 33, 64})
      for (bool biased : {false, true}) {
        Both x = uniform({rows, k}, DType::BF16), w = uniform({n, k}, DType::BF16);
        Both y = output({rows, n}, DType::BF16), bias = biased ? uniform({n}, DType::BF16, -9, 9) : Both{};
        run(&KernelTable::gemm, [&](auto on) {
          return GemmArgs{.a = on(x), .b = on(w).transpose(0, 1), .c = on(y), .bias = on(bias)};
        });
        same(y, fmt::format("{} x {} x {}", rows, n, k));
      }
}

// What a row becomes does not depend on how many there are.
TEST_F(CudaSkinnyGemm, RowsAreAlone) {
  const auto check = [&](int64_t n, int64_t k, int64_t rows, int64_t min_rows) {
    Both x = uniform({rows, k}, DType::BF16), w = uniform({n, k}, DType::BF16);
    const auto product = [&](int64_t begin, int64_t end) {
      Tensor y = gpu().empty({end - begin, n}, DType::BF16);
      gpu().kernels->gemm(gpu().kernel_context(),
                          {.a = x.gpu.slice(0, begin, end), .b = w.gpu.transpose(0, 1), .c = y});
      return values(gpu(), y);
    };
    const std::vector<double> all = product(0, rows);
    for (int64_t begin : {int64_t{0}, int64_t{5}, rows - min_rows}) {
      const std::vector<double> some = product(begin, std::min(rows, begin + min_rows + begin % 3));
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + begin * n))
          << n << " x " << k << ", from row " << begin;
    }
  };
  check(136, 2048, 16, 9);    // K shared by eight blocks
  check(20008, 256, 64, 17);  // by none
}

// Gate and up of a tile lie in one block.
TEST_F(CudaSkinnyGemm, Swiglu) {
  for (auto [n, k] : std::vector<Sizes>{{64, 64}, {40, 96}, {1096, 544}, {72, 4096}, {8192, 128}})
    for (int64_t rows : {9, 16, 17, 33, 64}) {
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

}  // namespace
}  // namespace megatron::testing
