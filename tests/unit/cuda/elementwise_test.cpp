#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaElementwise : public Twin {};
constexpr DType kFloats[] = {DType::F64, DType::F32, DType::BF16, DType::F16};
constexpr DType kAll[] = {DType::F64, DType::F32, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2,
                          DType::I64, DType::I32, DType::I16,  DType::I8,  DType::U8,     DType::Bool};

TEST_F(CudaElementwise, CopiesBetweenAllDtypes) {
  for (DType from : kAll)
    for (DType to : kAll) {
      Both x = integers({3, 37}, from == DType::Bool ? 0 : 1, from == DType::Bool ? 2 : 100, from);
      Both y = output({3, 37}, to);
      run(&KernelTable::copy, [&](auto on) { return CopyArgs{on(x), on(y)}; });
      same(y, 0, label(from) + " to " + label(to));
    }
}

// Sizes that are multiples of words and tiles, and that are not.
TEST_F(CudaElementwise, CopiesStridedViews) {
  struct Size {
    int64_t rows, columns;
  };
  for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F8E4M3})
    for (auto [rows, columns] : {Size{70, 44}, {136, 72}, {128, 64}}) {
      SCOPED_TRACE(label(dtype) + " " + std::to_string(rows) + " rows");
      Both x = uniform({5, rows, columns}, dtype);
      Both turned = output({5, columns, rows}, dtype), matrix = output({columns, 5, rows}, dtype),
           cut = output({5, 33, columns}, dtype), narrow = output({5, rows, 32}, dtype);
      run(&KernelTable::copy, [&](auto on) { return CopyArgs{on(x).transpose(1, 2), on(turned)}; });
      same(turned, 0, "batched transpose");
      run(&KernelTable::copy, [&](auto on) {
        return CopyArgs{on(x).transpose(0, 2).transpose(1, 2), on(matrix)};
      });
      same(matrix, 0, "rotated dimensions");
      run(&KernelTable::copy, [&](auto on) { return CopyArgs{on(x).slice(1, 20, 53), on(cut)}; });
      same(cut, 0, "slice");
      for (int64_t first : {8, 9}) {
        run(&KernelTable::copy, [&](auto on) {
          return CopyArgs{on(x).slice(2, first, first + 32), on(narrow)};
        });
        same(narrow, 0, "slice of columns");
      }
      Both wide = output({5, columns, rows}, DType::F64);
      run(&KernelTable::copy, [&](auto on) { return CopyArgs{on(x).transpose(1, 2), on(wide)}; });
      same(wide, 0, "transpose with conversion");
      Both target = uniform({5, rows, columns}, dtype);
      run(&KernelTable::copy, [&](auto on) { return CopyArgs{on(x), on(target).transpose(0, 0)}; });
      same(target, 0, "whole");
      Both square = uniform({40, 40}, dtype), into = uniform({40, 40}, dtype);
      run(&KernelTable::copy, [&](auto on) { return CopyArgs{on(square), on(into).transpose(0, 1)}; });
      same(into, 0, "into a transposed view");
    }
}

TEST_F(CudaElementwise, Fills) {
  for (DType dtype : kAll)
    for (double value : {0.0, 1.0}) {
      Both x = integers({6, 50}, 0, 2, dtype);
      run(&KernelTable::fill, [&](auto on) { return FillArgs{on(x).slice(1, 3, 41), value}; });
      same(x, 0, "slice of " + label(dtype));
      run(&KernelTable::fill, [&](auto on) { return FillArgs{on(x), value}; });
      same(x, 0, label(dtype));
    }
}

TEST_F(CudaElementwise, UnaryAndItsGradient) {
  for (DType dtype : kFloats)
    for (int kind = 0; kind <= static_cast<int>(Unary::Mish); ++kind)
      for (bool biased : {false, true}) {
        Unary f = static_cast<Unary>(kind);
        bool positive = f == Unary::Sqrt || f == Unary::Rsqrt || f == Unary::Log;
        Both x = uniform({7, 83}, dtype, positive ? 0.3 : -4, 4), y = output({7, 83}, dtype);
        Both bias = biased ? uniform({83}, dtype, 0, 1) : Both{}, dy = uniform({7, 83}, dtype);
        run(&KernelTable::unary, [&](auto on) { return UnaryArgs{f, on(x), on(bias), on(y)}; });
        same(y, "unary " + std::to_string(kind) + " " + label(dtype));
        run(&KernelTable::unary_backward, [&](auto on) {
          return UnaryBackwardArgs{f, on(x), on(bias), on(dy), on(y)};
        });
        same(y, "unary_backward " + std::to_string(kind) + " " + label(dtype));
      }
}

TEST_F(CudaElementwise, BinaryWithRepeatedOperands) {
  for (DType dtype : kFloats)
    for (int kind = 0; kind <= static_cast<int>(Binary::Min); ++kind) {
      Binary f = static_cast<Binary>(kind);
      Both a = uniform({4, 6, 40}, dtype), b = uniform({4, 6, 40}, dtype, 0.5, 2),
           row = uniform({40}, dtype, 0.5, 2);
      Both column = uniform({4, 6, 1}, dtype, 0.5, 2), out = output({4, 6, 40}, dtype);
      run(&KernelTable::binary, [&](auto on) { return BinaryArgs{f, on(a), on(b), on(out)}; });
      same(out, "dense");
      run(&KernelTable::binary, [&](auto on) {
        return BinaryArgs{f, on(a), on(row).expand({4, 6, 40}), on(out)};
      });
      same(out, "row");
      run(&KernelTable::binary, [&](auto on) {
        return BinaryArgs{f, on(column).expand({4, 6, 40}), on(b), on(out)};
      });
      same(out, "column");
      run(&KernelTable::binary, [&](auto on) { return BinaryArgs{f, on(out), on(b), on(out)}; });
      same(out, "in place");
    }
}

TEST_F(CudaElementwise, Compare) {
  for (DType dtype : kAll)
    for (int kind = 0; kind <= static_cast<int>(Comparison::LessEqual); ++kind) {
      int64_t high = dtype == DType::Bool ? 2 : 4;
      Both a = integers({9, 31}, 0, high, dtype), b = integers({31}, 0, high, dtype),
           out = output({9, 31}, DType::Bool);
      run(&KernelTable::compare, [&](auto on) {
        return CompareArgs{static_cast<Comparison>(kind), on(a), on(b).expand({9, 31}), on(out)};
      });
      same(out, 0, label(dtype));
    }
}

TEST_F(CudaElementwise, AxpbyOfMixedDtypes) {
  for (DType a : kFloats)
    for (DType b : kFloats)
      for (DType out : kFloats) {
        Both x = uniform({1003}, a), y = uniform({1003}, b), z = output({1003}, out);
        run(&KernelTable::axpby, [&](auto on) { return AxpbyArgs{0.7, on(x), -1.3, on(y), on(z)}; });
        same(z, std::max({tolerance_of(out), a == DType::F64 && b == DType::F64 ? 0 : 1e-6}), "axpby");
        run(&KernelTable::axpby,
            [&](auto on) { return AxpbyArgs{.alpha = 0.7, .a = on(x), .b = {}, .out = on(z)}; });
        same(z, std::max(tolerance_of(out), a == DType::F64 ? 0 : 1e-6), "scaled copy");
      }
}

TEST_F(CudaElementwise, Where) {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::U8}) {
    Both condition = integers({9, 1}, 0, 2, DType::Bool), a = uniform({9, 31}, dtype, 0, 90);
    Both b = uniform({31}, dtype, 0, 90), out = output({9, 31}, dtype);
    run(&KernelTable::where, [&](auto on) {
      return WhereArgs{on(condition).expand({9, 31}), on(a), on(b).expand({9, 31}), on(out)};
    });
    same(out, 0, label(dtype));
  }
}

// Of a part of the columns, which begins within a counter or not, and of whole rows; in their order or not.
TEST_F(CudaElementwise, DropoutKeepsTheSameElements) {
  for (DType dtype : kFloats)
    for (bool with_residual : {false, true})
      for (int64_t columns : {64, 37})
        for (int64_t column_begin : {11, 12, 0}) {
          Both x = uniform({19, columns}, dtype), y = output({19, columns}, dtype);
          Both residual = with_residual ? uniform({19, columns}, dtype) : Both{};
          std::vector<int64_t> places;
          for (int64_t row = 0; row < 19; ++row) places.push_back(row * 7 % 19);
          Both rows = with_residual && column_begin != 12 ? on_both(cpu.from_vector(places, {19})) : Both{};
          Both offset = on_both(cpu.from_vector(std::vector<int64_t>{column_begin << 24}, {1}));
          run(&KernelTable::dropout, [&](auto on) {
            return DropoutArgs{.x = on(x),
                               .residual = on(residual),
                               .y = on(y),
                               .p = 0.3,
                               .key = {5, 9, static_cast<const int64_t*>(on(offset).raw())},
                               .row_begin = 3,
                               .column_begin = column_begin,
                               .global_columns = column_begin ? 200 : columns,
                               .rows = on(rows)};
          });
          same(y, dtype == DType::F64 ? 1e-15 : tolerance_of(dtype), "dropout " + label(dtype));
        }
}

TEST_F(CudaElementwise, RandomNumbersAreThoseOfTheCpu) {
  for (DType dtype : kFloats)
    for (auto kind : {Distribution::Normal, Distribution::Uniform}) {
      Both out = output({13, 5, 17}, dtype);
      run(&KernelTable::random, [&](auto on) {
        return RandomArgs{.kind = kind,
                          .out = on(out),
                          .a = 0.5,
                          .b = 2,
                          .key = {77, 3},
                          .base = 1000,
                          .global_strides = {4000, 170, 2}};
      });
      same(out, dtype == DType::F64 ? 1e-14 : tolerance_of(dtype), "random " + label(dtype));
    }
}

TEST_F(CudaElementwise, Gated) {
  for (DType dtype : kFloats)
    for (Unary kind :
         {Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::QuickGelu, Unary::Relu, Unary::Sigmoid})
      for (bool biased : {false, true})
        for (double limit : {0.0, 1.5})
          for (int64_t width : {64, 35}) {
            Both x = uniform({11, 2 * width}, dtype, -3, 3), y = output({11, width}, dtype);
            Both bias = biased ? uniform({2 * width}, dtype) : Both{}, dy = uniform({11, width}, dtype);
            Both dx = output({11, 2 * width}, dtype);
            run(&KernelTable::gated,
                [&](auto on) { return GatedArgs{kind, on(x), on(bias), on(y), limit, 0.25}; });
            same(y, "gated " + label(dtype));
            run(&KernelTable::gated_backward, [&](auto on) {
              return GatedBackwardArgs{kind, on(x), on(bias), on(dy), on(dx), {}, limit, 0.25};
            });
            same(dx, "gated_backward " + label(dtype));
            Both again = output({11, width}, dtype);
            run(&KernelTable::gated_backward, [&](auto on) {
              return GatedBackwardArgs{kind, on(x), on(bias), on(dy), on(x), on(again), limit, 0.25};
            });
            same(x, "gated_backward in place " + label(dtype));
            same(again, "gated again " + label(dtype));
          }
}

}  // namespace
}  // namespace megatron::testing
