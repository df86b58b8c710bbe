#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaGemm : public Twin {
 protected:
  // [rows, columns], or the transposed view of [columns, rows].
  Both matrix(int64_t rows, int64_t columns, bool turned, DType dtype) {
    if (!turned) return uniform({rows, columns}, dtype);
    return uniform({columns, rows}, dtype).map([](const Tensor& x) { return x.transpose(0, 1); });
  }
  // A sum of k terms: its error is measured against its terms.
  static double tolerance(DType dtype) {
    return dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 3e-5 : tolerance_of(dtype);
  }
};

TEST_F(CudaGemm, AllTranspositionsWithBiasAndBeta) {
  struct Size {
    int64_t m, n, k;
  };
  for (DType dtype : floats())
    for (Size s : {Size{64, 96, 128}, {33, 17, 65}, {1, 40, 24}, {50, 1, 8}, {7, 9, 1}})
      for (int turned = 0; turned < 8; ++turned)
        for (DType out : {dtype, accumulation_dtype(dtype)})
          for (int variant = 0; variant < 3; ++variant) {
            Both a = matrix(s.m, s.k, turned & 1, dtype), b = matrix(s.k, s.n, turned & 2, dtype);
            Both c = matrix(s.m, s.n, turned & 4, out), bias = variant == 1 ? uniform({s.n}, dtype) : Both{};
            run(&KernelTable::gemm, [&](auto on) {
              return GemmArgs{.a = on(a),
                              .b = on(b),
                              .c = on(c),
                              .alpha = variant == 2 ? 0.5 : 1.0,
                              .beta = variant == 2 ? 1.0 : 0.0,
                              .bias = on(bias)};
            });
            same(c, tolerance(out),
                 label(dtype) + " to " + label(out) + " transposed " + std::to_string(turned) + " variant " +
                     std::to_string(variant) + " m=" + std::to_string(s.m));
          }
}

// fp8 GEMMs keep fewer bits on the GPU than the CPU's fp32.
TEST_F(CudaGemm, Fp8) {
  for (DType second : {DType::F8E4M3, DType::F8E5M2})
    for (bool into_gradient : {false, true})
      for (bool fast : {false, true}) {
        auto quantized = [&](int64_t rows, int64_t columns, DType dtype, Both& scale) {
          Both x = uniform({rows, columns}, DType::BF16, -3, 3), q = output({rows, columns}, dtype);
          scale = output({1, 1}, DType::F32);
          run(&KernelTable::quantize, [&](auto on) { return QuantizeArgs{on(x), on(q), on(scale)}; });
          return q;
        };
        Both a_scale, b_scale, a = quantized(64, 160, second, a_scale);
        Both b = quantized(96, 160, DType::F8E4M3, b_scale);
        Both c = uniform({64, 96}, into_gradient ? DType::F32 : DType::BF16),
             bias = uniform({96}, DType::BF16);
        run(&KernelTable::gemm, [&](auto on) {
          return GemmArgs{.a = on(a),
                          .b = on(b).transpose(0, 1),
                          .c = on(c),
                          .beta = into_gradient ? 1.0 : 0.0,
                          .bias = into_gradient ? Tensor{} : on(bias),
                          .a_scale = on(a_scale),
                          .b_scale = on(b_scale),
                          .fast_accum = fast};
        });
        same(c, 1.2e-2, "fp8 " + label(second));
      }
}

// A scale per block: rows of one operand, rows or squares of the other.
TEST_F(CudaGemm, Fp8Blocks) {
  struct Size {
    int64_t m, n, k;
  };
  auto quantized = [&](int64_t rows, int64_t columns, DType dtype, int64_t block_rows, Both& scale) {
    const int64_t across = (columns + 127) / 128;
    Both x = uniform({rows, columns}, DType::BF16, -3, 3), q = output({rows, columns}, dtype);
    Both turned = output({columns, rows}, dtype),
         other = output({(columns + block_rows - 1) / block_rows, (rows + 127) / 128}, DType::F32);
    scale = block_rows == 1
                ? output({across, rows}, DType::F32).map([](const Tensor& t) { return t.transpose(0, 1); })
                : output({(rows + 127) / 128, (across + 3) / 4 * 4}, DType::F32).map([&](const Tensor& t) {
                    return t.slice(1, 0, across);
                  });
    std::vector<double> factors;  // blocks of different magnitudes
    for (int64_t i = 0; i < rows * columns; ++i)
      factors.push_back(std::exp2((i / columns / 16 * 3 + i % columns / 128 * 5) % 7 - 3));
    Both factor = cast(factors, {rows, columns}, DType::BF16);
    run(&KernelTable::binary, [&](auto on) { return BinaryArgs{Binary::Mul, on(x), on(factor), on(x)}; });
    run(&KernelTable::quantize_blocks, [&](auto on) {
      return QuantizeBlocksArgs{on(x), on(q), on(scale), on(turned), on(other), block_rows};
    });
    return q;
  };
  for (Size s : {Size{256, 384, 512}, {64, 96, 160}, {272, 144, 80}, {128, 128, 1152}})
    for (DType first : {DType::F8E4M3, DType::F8E5M2})
      for (int64_t block_rows : {1, 128})
        for (bool into_gradient : {false, true}) {
          Both a_scale, b_scale, a = quantized(s.m, s.k, first, 1, a_scale);
          Both b = quantized(s.n, s.k, DType::F8E4M3, block_rows, b_scale);
          Both c = uniform({s.m, s.n}, into_gradient ? DType::F32 : DType::BF16),
               bias = uniform({s.n}, DType::BF16);
          run(&KernelTable::gemm, [&](auto on) {
            return GemmArgs{.a = on(a),
                            .b = on(b).transpose(0, 1),
                            .c = on(c),
                            .beta = into_gradient ? 1.0 : 0.0,
                            .bias = into_gradient ? Tensor{} : on(bias),
                            .a_scale = on(a_scale),
                            .b_scale = on(b_scale).transpose(0, 1),
                            .a_block_rows = 1,
                            .b_block_rows = block_rows};
          });
          same(c, 1.2e-2, "fp8 in blocks, " + label(first) + " by " + std::to_string(block_rows));
        }
}

TEST_F(CudaGemm, Batched) {
  for (DType dtype : floats()) {
    Both a = uniform({5, 48, 40}, dtype), b = uniform({5, 56, 40}, dtype), c = output({5, 48, 56}, dtype);
    run(&KernelTable::gemm,
        [&](auto on) { return GemmArgs{.a = on(a), .b = on(b).transpose(1, 2), .c = on(c)}; });
    same(c, tolerance(dtype), "batched " + label(dtype));
    Both one = uniform({1, 40, 56}, dtype);
    run(&KernelTable::gemm, [&](auto on) {
      return GemmArgs{.a = on(a), .b = on(one).expand({5, 40, 56}), .c = on(c)};
    });
    same(c, tolerance(dtype), "one matrix for all " + label(dtype));
  }
}

TEST_F(CudaGemm, SlicesAndNothingToContract) {
  for (DType dtype : {DType::F64, DType::BF16}) {
    Both a = uniform({40, 100}, dtype), b = uniform({70, 90}, dtype), c = uniform({40, 90}, dtype);
    run(&KernelTable::gemm, [&](auto on) {
      return GemmArgs{.a = on(a).slice(1, 7, 40), .b = on(b).slice(0, 3, 36), .c = on(c), .bias = {}};
    });
    same(c, tolerance(dtype), "slices " + label(dtype));
    run(&KernelTable::gemm, [&](auto on) {
      return GemmArgs{
          .a = on(a).slice(1, 5, 5), .b = on(b).slice(0, 5, 5), .c = on(c), .beta = 0.5, .bias = {}};
    });
    same(c, tolerance(dtype), "k = 0 " + label(dtype));
  }
}

TEST_F(CudaGemm, Grouped) {
  for (DType dtype : floats())
    for (int64_t size : sanitized() ? std::vector<int64_t>{72, 37} : std::vector<int64_t>{64, 200, 37})
      for (bool turned : {false, true}) {
        std::vector<int32_t> bounds{0, 130, 130, 131, 400, 400, 650};
        if (sanitized()) bounds = {0, 70, 70, 71, 80, 80, 150};
        int64_t experts = 6, rows = bounds.back() + 50, k = size, n = size + 24;
        Both offsets = on_both(cpu.from_vector(bounds, {experts + 1}));
        Both a = uniform({rows, k}, dtype), c = output({rows, n}, dtype);
        Both b = turned
                     ? uniform({experts, n, k}, dtype).map([](const Tensor& x) { return x.transpose(1, 2); })
                     : uniform({experts, k, n}, dtype);
        run(&KernelTable::grouped_gemm, [&](auto on) {
          return GroupedGemmArgs{on(a), on(b), on(c), on(offsets)};
        });
        same(c, tolerance(dtype), "grouped " + label(dtype) + " size " + std::to_string(size));
        for (DType out : {dtype, accumulation_dtype(dtype)})
          for (double beta : {0.0, 1.0}) {
            Both grad = uniform({rows, n}, dtype), dw = uniform({experts, k, n}, out);
            run(&KernelTable::grouped_gemm_weight, [&](auto on) {
              return GroupedGemmWeightArgs{on(a), on(grad), on(dw), on(offsets), beta};
            });
            same(dw, 3 * tolerance(out), "grouped weight " + label(dtype) + " size " + std::to_string(size));
          }
      }
}

// More tiles than a GPU has SMs, or several in each direction and more of the contraction than is
// fetched ahead; experts of no token, of one, of a tile exactly and of one more. The rows of no expert hold
// NaN: none of it may get into a sum, nor may anything get into them.
TEST_F(CudaGemm, GroupedInManyTiles) {
  struct Size {
    int64_t k, n;
    std::vector<int32_t> bounds;
  };
  std::vector<Size> sizes{{328, 520, {0, 0, 1, 257, 257, 513, 1300, 1428}},
                          {64, 2312, {0, 1500, 1500, 2311}},
                          {1104, 1032, {0, 40, 40, 105}},
                          {8, 8, {0, 3, 3, 3}},
                          {264, 1000, {0, 0, 0}}};
  if (sanitized()) sizes[0] = {328, 264, {0, 0, 1, 130}}, sizes.erase(sizes.begin() + 2);
  for (DType dtype : some_of({DType::BF16, DType::F16}))
    for (const Size& s : sizes) {
      const int64_t k = s.k, n = s.n, experts = std::ssize(s.bounds) - 1, rows = s.bounds.back() + 33;
      const std::string what =
          label(dtype) + " " + std::to_string(rows) + "x" + std::to_string(k) + "x" + std::to_string(n);
      Both offsets = on_both(cpu.from_vector(s.bounds, {experts + 1}));
      auto of_experts = [&](const Tensor& x) { return x.slice(0, 0, s.bounds.back()); };
      auto of_none = [&](const Tensor& x) { return x.slice(0, s.bounds.back(), rows); };
      auto tokens = [&](int64_t width) {
        Both x = uniform({rows, width}, dtype);
        Both rest = x.map(of_none);
        run(&KernelTable::fill, [&](auto on) {
          return FillArgs{on(rest), std::numeric_limits<double>::quiet_NaN()};
        });
        return x;
      };
      Both a = tokens(k), grad = tokens(n);
      for (bool turned : {false, true}) {
        Both b = turned
                     ? uniform({experts, n, k}, dtype).map([](const Tensor& x) { return x.transpose(1, 2); })
                     : uniform({experts, k, n}, dtype);
        Both c = output({rows, n}, dtype);
        run(&KernelTable::grouped_gemm, [&](auto on) {
          return GroupedGemmArgs{on(a), on(b), on(c), on(offsets)};
        });
        same(c.map(of_experts), tolerance(dtype), "grouped " + what);
        same(c.map(of_none), 0, "rows of no expert, grouped " + what);
      }
      for (DType out : {dtype, DType::F32})
        for (double beta : {0.0, 1.0, 0.5}) {
          Both dw = beta == 0 ? output({experts, k, n}, out) : uniform({experts, k, n}, out);
          run(&KernelTable::grouped_gemm_weight, [&](auto on) {
            return GroupedGemmWeightArgs{on(a), on(grad), on(dw), on(offsets), beta};
          });
          same(dw, 3 * tolerance(out), "grouped weight " + what);
        }
    }
}

// Matrices that lie within larger ones: some begin where whole vectors can be read, some do not.
TEST_F(CudaGemm, GroupedViews) {
  constexpr int64_t experts = 3, rows = 300, k = 136, n = 264;
  Both offsets = on_both(cpu.from_vector(std::vector<int32_t>{0, 131, 131, 290}, {experts + 1}));
  for (DType dtype : some_of({DType::BF16, DType::F16}))
    for (int64_t begin : {8, 4, 1}) {
      auto inner = [&](Shape shape, DType type, Both& whole) {
        const int last = shape.rank() - 1;
        const int64_t width = shape[last];
        shape[last] = width + 16;
        whole = uniform(shape, type);
        return whole.map([&](const Tensor& x) { return x.slice(last, begin, begin + width); });
      };
      const std::string what = label(dtype) + " from column " + std::to_string(begin);
      Both all_a, all_b, all_c, all_grad, all_dw;
      Both a = inner({rows, k}, dtype, all_a), b = inner({experts, k, n}, dtype, all_b),
           c = inner({rows, n}, dtype, all_c), grad = inner({rows, n}, dtype, all_grad),
           dw = inner({experts, k, n}, DType::F32, all_dw);
      run(&KernelTable::grouped_gemm, [&](auto on) {
        return GroupedGemmArgs{on(a), on(b), on(c), on(offsets)};
      });
      same(all_c, tolerance(dtype), "grouped " + what);
      run(&KernelTable::grouped_gemm_weight, [&](auto on) {
        return GroupedGemmWeightArgs{on(a), on(grad), on(dw), on(offsets), 1};
      });
      same(all_dw, 3 * tolerance(DType::F32), "grouped weight " + what);
    }
}

}  // namespace
}  // namespace megatron::testing
