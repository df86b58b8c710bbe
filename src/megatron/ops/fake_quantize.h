#pragma once

#include <optional>

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// The numbers that values are rounded to, and what shares a scale. A scale brings the largest magnitude that
// it serves to the largest number.
struct FakeFormat {
  enum class Numbers : uint8_t { fp8, int8, int4, fp4 };  // fp8 is e4m3, fp4 e2m1
  enum class Scaled : uint8_t { matrix, row, block };
  Numbers numbers = Numbers::fp8;
  Scaled scaled = Scaled::matrix;
  int64_t block = 0;           // columns of a row that share a scale
  bool narrow_scales = false;  // those of blocks are fp8, of a scale of the matrix
};

// Where ranks hold parts of a matrix: which of its columns these are, and what makes a magnitude the largest
// over the parts. Empty functions: this rank has all.
struct FakeShare {
  int64_t column_begin = 0, columns = 0;  // of `columns` in all; 0: as many as there are
  std::function<void(RankContext&, const Tensor&)> over_matrix;   // all parts of it
  std::function<void(RankContext&, const Tensor&)> over_columns;  // the other columns of the same rows
  bool rows_alone = false;                                        // each row counts as a matrix
};

// x [.., rows, columns], each matrix of the first dimension by itself, rounded to the format and brought back
// to its own width: what a quantised model would compute with. The gradient passes straight through; nothing
// is clipped, for scales follow the values.
Tensor fake_quantize(RankContext& ctx, const Tensor& x, const FakeFormat& format,
                     const FakeShare& share = {});

// What the linears of a weight round while they are trained.
struct FakeQuantizer {
  FakeFormat weight;
  std::optional<FakeFormat> input;  // none: inputs stay as they are
  FakeShare weight_share, input_share;

  // The weight's rounded values, kept until they change.
  const Tensor& rounded(RankContext& ctx, const Tensor& weight_value);
  void forget() { current_ = false; }

 private:
  Tensor value_;
  bool current_ = false;
};

}  // namespace megatron::ops
