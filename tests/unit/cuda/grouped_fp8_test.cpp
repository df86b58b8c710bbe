// GEMMs of experts in fp8 and the casts before them, against the CPU.
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaGroupedFp8 : public Twin {
 protected:
  struct Size {
    int64_t k, n;
    std::vector<int32_t> bounds;
    int64_t experts() const { return std::ssize(bounds) - 1; }
    int64_t rows() const { return bounds.back() + 128; }  // the last belong to no expert
    std::string name() const { return fmt::format("{} × {} × {}", rows(), k, n); }
  };
  // Experts of no row, of a part of a tile, of a tile exactly and of more, with more tiles than SMs, and with
  // more of the contraction than is fetched ahead.
  static std::vector<Size> sizes(bool blocks) {
    if (blocks)
      return {{256, 384, {0, 128, 128, 512, 1280}}, {144, 272, {0, 0, 256, 384}}, {1152, 640, {0, 384, 512}}};
    return {{336, 528, {0, 0, 16, 272, 272, 528, 1296, 1424}},
            {64, 2320, {0, 1504, 1504, 2320}},
            {1104, 1040, {0, 48, 48, 112}},
            {16, 16, {0, 16, 16, 48}},
            {272, 1008, {0, 0, 0}}};
  }
  Both offsets_of(const Size& s) { return on_both(cpu.from_vector(s.bounds, {s.experts() + 1})); }

  // Another magnitude for each expert; rows of no expert are NaN.
  Both tokens(const Size& s, int64_t columns, DType dtype = DType::BF16) {
    std::vector<double> factors;
    for (int64_t row = 0; row < s.rows(); ++row) {
      double factor = std::numeric_limits<double>::quiet_NaN();
      for (int64_t e = 0; e < s.experts(); ++e)
        if (row >= s.bounds[static_cast<size_t>(e)] && row < s.bounds[static_cast<size_t>(e) + 1])
          factor = std::exp2(e % 5 - 4 + row / 64 % 3);
      factors.insert(factors.end(), static_cast<size_t>(columns), factor);
    }
    Both x = uniform({s.rows(), columns}, dtype, -3, 3), factor = cast(factors, {s.rows(), columns}, dtype);
    run(&KernelTable::binary, [&](auto on) { return BinaryArgs{Binary::Mul, on(x), on(factor), on(x)}; });
    return x;
  }

  struct Operand {
    Both q, turned, scale, turned_scale;
  };
  // A scale for each group. offsets: undefined where x is [groups, rows, columns].
  Operand by_group(const Both& x, const Both& offsets, int64_t groups, DType dtype, const Both& scale = {},
                   const Both& amax = {}) {
    const Shape shape = x.cpu.shape();
    Operand r;
    r.q = output(shape, dtype);
    r.turned = shape.rank() == 2 ? output({shape[1], shape[0]}, dtype)
                                 : output({shape[0], shape[2], shape[1]}, dtype);
    r.scale = r.turned_scale = output({groups}, DType::F32);
    run(&KernelTable::quantize_grouped, [&](auto on) {
      return QuantizeGroupedArgs{on(x), on(offsets), on(r.q), on(r.turned), on(r.scale), on(scale), on(amax)};
    });
    return r;
  }
  // A scale for each 1 × 128 of a matrix and of its transposed.
  Operand by_blocks(const Both& x, DType dtype) {
    const int64_t rows = x.cpu.size(0), columns = x.cpu.size(1);
    const auto scales = [&](int64_t down, int64_t across) {
      return output({(across + 127) / 128, down}, DType::F32).map([](const Tensor& t) {
        return t.transpose(0, 1);
      });
    };
    Operand r{output({rows, columns}, dtype), output({columns, rows}, dtype), scales(rows, columns),
              scales(columns, rows)};
    run(&KernelTable::quantize_blocks, [&](auto on) {
      return QuantizeBlocksArgs{on(x), on(r.q), on(r.scale), on(r.turned), on(r.turned_scale), 1};
    });
    return r;
  }
  // Matrices [experts, n, k] with a scale for each 128 × 128.
  Operand by_squares(int64_t experts, int64_t n, int64_t k) {
    const auto blocks = [](int64_t size) { return (size + 127) / 128; };
    Both x = uniform({experts, n, k}, DType::BF16, -2, 2);
    Operand r{output({experts, n, k}, DType::F8E4M3), output({experts, k, n}, DType::F8E4M3),
              output({experts, blocks(n), blocks(k)}, DType::F32),
              output({experts, blocks(k), blocks(n)}, DType::F32)};
    for (int64_t e = 0; e < experts; ++e)
      run(&KernelTable::quantize_blocks, [&](auto on) {
        const auto one = [&](const Both& t) { return on(t).select(0, e); };
        return QuantizeBlocksArgs{one(x), one(r.q), one(r.scale), one(r.turned), one(r.turned_scale), 128};
      });
    return r;
  }
};

TEST_F(CudaGroupedFp8, Casts) {
  for (DType dtype : some_of({DType::BF16, DType::F16, DType::F32}))
    for (DType fp8 : {DType::F8E4M3, DType::F8E5M2})
      for (const bool delayed : {false, true})
        for (int64_t columns : {208, 1040, 24}) {
          const Size s{0, 0, {0, 16, 16, 176, 432, 448}};
          const int64_t experts = s.experts();
          const std::string what = fmt::format("{} to {}, {} columns{}", label(dtype), label(fp8), columns,
                                               delayed ? ", delayed" : "");
          Both x = tokens(s, columns, dtype), offsets = offsets_of(s);
          std::vector<double> given;
          for (int64_t i = 0; i < 3 * experts; ++i) given.push_back(std::exp2(i % 7) * 1.3);
          // Rows of a table, so that they have gaps.
          Both scales = cast(given, {experts, 3}, DType::F32), met = cast(given, {experts, 3}, DType::F32);
          const auto column = [](const Tensor& t) { return t.select(1, 1); };
          const Operand rows =
              by_group(x, offsets, experts, fp8, delayed ? scales.map(column) : Both{}, met.map(column));
          same(rows.scale, 0, "scale, " + what);
          same(met, 0, "amax, " + what);
          same(rows.q, 0, "q, " + what);  // neither writes rows of no expert
          same(rows.turned, 0, "transposed, " + what);

          Both matrices = uniform({experts, 144, columns}, dtype, -5, 5);
          const Operand all = by_group(matrices, {}, experts, fp8, delayed ? scales.map(column) : Both{});
          same(all.scale, 0, "scale of matrices, " + what);
          same(all.q, 0, "matrices, " + what);
          same(all.turned, 0, "transposed matrices, " + what);
        }
}

TEST_F(CudaGroupedFp8, ForwardAndInputGradients) {
  for (const bool blocks : {false, true})
    for (const Size& s : sizes(blocks))
      for (DType first : {DType::F8E4M3, DType::F8E5M2})
        for (DType out : some_of({DType::BF16, DType::F16, DType::F32})) {
          Both offsets = offsets_of(s), c = output({s.rows(), s.n}, out);
          const Operand a = blocks ? by_blocks(tokens(s, s.k), first)
                                   : by_group(tokens(s, s.k), offsets, s.experts(), first);
          const Operand w = blocks ? by_squares(s.experts(), s.n, s.k)
                                   : by_group(uniform({s.experts(), s.n, s.k}, DType::BF16, -2, 2), {},
                                              s.experts(), DType::F8E4M3);
          run(&KernelTable::grouped_gemm, [&](auto on) {
            return GroupedGemmArgs{.a = on(a.q),
                                   .b = on(w.q).transpose(1, 2),
                                   .c = on(c),
                                   .offsets = on(offsets),
                                   .a_scale = on(a.scale),
                                   .b_scale = blocks ? on(w.scale).transpose(1, 2) : on(w.scale),
                                   .blocks = blocks};
          });
          const std::string what =
              fmt::format("{}, {} to {}{}", s.name(), label(first), label(out), blocks ? ", blocks" : "");
          same(c.map([&](const Tensor& t) { return t.slice(0, 0, s.bounds.back()); }), 1.2e-2, what);
          same(c.map([&](const Tensor& t) { return t.slice(0, s.bounds.back(), s.rows()); }), 0,
               "rows of no expert, " + what);
        }
}

TEST_F(CudaGroupedFp8, WeightGradients) {
  for (const bool blocks : {false, true})
    for (const Size& s : sizes(blocks))
      for (DType first : {DType::F8E4M3, DType::F8E5M2})
        for (DType out : some_of({DType::BF16, DType::F32, DType::F16}))
          for (double beta : {0.0, 1.0, 0.5}) {
            Both offsets = offsets_of(s);
            const auto operand = [&](int64_t columns, DType dtype) {
              return blocks ? by_blocks(tokens(s, columns), dtype)
                            : by_group(tokens(s, columns), offsets, s.experts(), dtype);
            };
            const Operand dy = operand(s.k, first), x = operand(s.n, DType::F8E4M3);
            Both dw = beta == 0 ? output({s.experts(), s.k, s.n}, out)
                                : uniform({s.experts(), s.k, s.n}, out, -100, 100);
            run(&KernelTable::grouped_gemm_weight, [&](auto on) {
              return GroupedGemmWeightArgs{.a = on(dy.turned).transpose(0, 1),
                                           .b = on(x.turned).transpose(0, 1),
                                           .c = on(dw),
                                           .offsets = on(offsets),
                                           .beta = beta,
                                           .a_scale = on(dy.turned_scale),
                                           .b_scale = on(x.turned_scale),
                                           .blocks = blocks};
            });
            same(dw, 1.2e-2,
                 fmt::format("{}, {} to {}, beta {}{}", s.name(), label(first), label(out), beta,
                             blocks ? ", blocks" : ""));
          }
}

}  // namespace
}  // namespace megatron::testing
